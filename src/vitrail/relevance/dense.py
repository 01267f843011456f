"""The readable reference: whole maps at once; and the observation of which backends were used."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Layer, Probs

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


def tiles(layer: Layer) -> Iterator[tuple[slice, Layer]]:
    """The layer as one piece."""
    yield slice(None), layer


def pull(layer: Layer, rows: Float[Tensor, "b q"], weigh: Weigh) -> Float[Tensor, "b h k"]:
    """Per head, the rows of the weighed map, summed with these weights: `sum_q rows[q] * w[h, q, k]`."""
    return (rows[:, None, None, :] @ weigh(layer)).squeeze(2)


def push(layer: Layer, columns: Float[Tensor, "b k c"]) -> Float[Tensor, "b q c"]:
    """The head mean of A applied to columns: `E_h A[h] @ columns`."""
    maps = layer.probs.mean(dim=1)
    wide = torch.promote_types(maps.dtype, columns.dtype)  # a model may compute its maps in another precision
    return maps.to(wide) @ columns.to(wide)
