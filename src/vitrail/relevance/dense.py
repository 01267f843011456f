"""The readable reference: whole maps at once."""

from collections.abc import Callable, Iterator

from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Layer, Probs

Weigh = Callable[[Layer], Probs]


def tiles(layer: Layer) -> Iterator[tuple[slice, Layer]]:
    """The layer as one piece."""
    yield slice(None), layer


def pull(layer: Layer, rows: Float[Tensor, "b q"], weigh: Weigh) -> Float[Tensor, "b h k"]:
    """Per head, the rows of the weighed map, summed with these weights: `sum_q rows[q] * w[h, q, k]`."""
    return (rows[:, None, None, :] @ weigh(layer)).squeeze(2)


def push(layer: Layer, columns: Float[Tensor, "b k c"]) -> Float[Tensor, "b q c"]:
    """The head mean of A applied to columns: `E_h A[h] @ columns`."""
    return layer.probs.mean(dim=1) @ columns
