"""What one attention entry is worth: functions of A and G = ds/dA, entry by entry.

Cui, Fan and Chen number them Eqs. 4 to 6; `positive` is Chefer's Eq. 5 of GAE as well, because A >= 0 makes
`[G * A]^+` and `[G]^+ * A` the same.
"""

from vitrail.capture.recording import Layer, Probs


def attention(layer: Layer) -> Probs:
    """A itself."""
    return layer.probs


def gradient(layer: Layer) -> Probs:
    """G itself, where a query may see the key at all."""
    if layer.visible is None:
        return layer.probs_grad
    return layer.probs_grad.masked_fill(~layer.visible, 0)


def positive_gradient(layer: Layer) -> Probs:
    """[G]^+, where a query may see the key."""
    return gradient(layer).clamp(min=0)


def positive(layer: Layer) -> Probs:
    """Eq. 4: A where more of it would raise the scalar, weighted by how much."""
    return layer.probs_grad.clamp(min=0).mul_(layer.probs)


def complete(layer: Layer) -> Probs:
    """Eq. 5: A weighted by its gradient, signs kept."""
    return layer.probs_grad * layer.probs


def magnitude(layer: Layer) -> Probs:
    """Eq. 6: A weighted by the size of its gradient."""
    return layer.probs_grad.abs().mul_(layer.probs)


def score_gradient(layer: Layer) -> Probs:
    """The gradient at the scores before the softmax: A * (G - sum_k A G); each row sums to zero."""
    product = layer.probs_grad * layer.probs
    return product - layer.probs * product.sum(dim=-1, keepdim=True)
