"""The readable reference backend: weights of attention entries, and sums over whole maps.

Cui, Fan and Chen number these weights Eqs. 4 to 6. `positive` is also Chefer's Eq. 5 of GAE, because A >= 0 makes
`[G * A]^+` and `[G]^+ * A` the same. The backends that compute sums report here (`backends_used`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.layer import Layer, Probs, widen

Weigh = Callable[[Layer], Probs]
_observers: ContextVar[tuple[set[str], ...]] = ContextVar("observers of backends", default=())


@contextmanager
def backends_used() -> Iterator[set[str]]:
    """The names of the backends that compute sums inside the block, in this thread."""
    used: set[str] = set()
    token = _observers.set((*_observers.get(), used))
    try:
        yield used
    finally:
        _observers.reset(token)


def note_backend(name: str) -> None:
    """Report that a backend computes a sum."""
    for used in _observers.get():
        used.add(name)


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


def entries(layer: Layer) -> int:
    """Return the number of entries in the attention map of a layer."""
    heads = (layer.query if layer.query is not None else layer.get("weights")).shape[1]
    return layer.valid.numel() * heads * layer.readout.shape[1]


def tiles(layer: Layer) -> Iterator[tuple[slice, Layer]]:
    """Blocks of queries that together make the layer, for reductions over whole maps; here all of them at once."""
    yield slice(None), layer


def pull(layer: Layer, rows: Float[Tensor, "b q"], weigh: Weigh) -> Float[Tensor, "b h k"]:
    """Per head, the rows of the weighed map, summed with these weights: `sum_q rows[q] * w[h, q, k]`."""
    return (rows[:, None, None, :] @ weigh(layer)).squeeze(2)


def push(layer: Layer, columns: Float[Tensor, "b k c"]) -> Float[Tensor, "b q c"]:
    """The head mean of A applied to columns: `E_h A[h] @ columns`."""
    maps = layer.probs.mean(dim=1)
    wide = torch.promote_types(maps.dtype, columns.dtype)  # a model may compute its maps in another precision
    return maps.to(wide) @ columns.to(wide)


HALF = (torch.float16, torch.bfloat16)


def on_matrix_units(*operands: Tensor) -> bool:
    """Return True if a GPU's matrix units multiply these as they are."""
    first = operands[0]
    return first.is_cuda and first.dtype in HALF and all(x.dtype is first.dtype for x in operands)


def wide_product(x: Tensor, matrix: Tensor) -> Tensor:
    """`x @ matrix` for one matrix of weights. Where that is in half precision, so is x rounded."""
    x = x.to(matrix.dtype) if matrix.dtype in HALF else x
    if on_matrix_units(x, matrix):
        return torch.mm(x.flatten(0, -2), matrix, out_dtype=torch.float32).unflatten(0, x.shape[:-1])
    return widen(x) @ matrix.to(widen(x).dtype)
