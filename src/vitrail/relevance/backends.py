"""Which code computes the sums of a layer: the same three functions, looked up by the layer's backend."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Layer
from vitrail.errors import OptionError, OutOfMemoryError, suggest
from vitrail.relevance import chunked, dense, fused
from vitrail.relevance.dense import Weigh

BACKENDS: dict[str, ModuleType] = {"dense": dense, "chunked": chunked, "fused": fused}


def check_backend(name: str) -> None:
    """Raise if there is no such backend."""
    if name != "auto" and name not in BACKENDS:
        raise OptionError(f"unknown backend {name!r}. {suggest(name, ['auto', *BACKENDS])}")


def choose_backend(
    name: str, *, entries: int, device: str, refusal: str | None, shared: bool, bounded: bool = False
) -> str:
    """The backend asked for, or the fastest.

    Args:
        entries: of one layer's maps. Small maps are taken whole: on a CPU, and where several methods share them.
        refusal: why fused kernels cannot be used, if they cannot.
        shared: whether several methods read each layer.
        bounded: whether a number of rows at a time was asked for, which only blocks keep to.
    """
    if refusal is not None and (name == "fused" or (name == "auto" and device == "cuda")):
        fused.say_once(refusal)
    if name == "fused" and refusal is not None:
        return "chunked"
    if name != "auto":
        return name
    if bounded:
        return "chunked"
    small = entries <= chunked.BUDGET.get(device, chunked.LARGE_BUDGET)
    if refusal is None and device == "cuda" and not (shared and small):
        return "fused"
    return "dense" if small else "chunked"


def pull(layer: Layer, rows: Float[Tensor, "b q"], weigh: Weigh) -> Float[Tensor, "b h k"]:
    """Per head, the rows of the weighed map, summed with these weights: `sum_q rows[q] * w[h, q, k]`."""
    with working(layer):
        return BACKENDS[layer.backend].pull(layer, rows, weigh)


def push(layer: Layer, columns: Float[Tensor, "b k c"]) -> Float[Tensor, "b q c"]:
    """The head mean of A applied to columns: `E_h A[h] @ columns`."""
    with working(layer):
        return BACKENDS[layer.backend].push(layer, columns)


def tiles(layer: Layer) -> Iterator[tuple[slice, Layer]]:
    """Blocks of queries that together make the layer, for reductions over whole maps."""
    with working(layer):
        return BACKENDS[layer.backend].tiles(layer)


@contextmanager
def working(layer: Layer) -> Iterator[None]:
    """Note which backend works; where memory runs out over the layer's maps, say how many rows would fit."""
    try:
        if layer.backend != "fused":  # which notes itself whether a kernel or blocks did the work
            layer.ran.add(layer.backend)
        yield
    except RuntimeError as error:  # a GPU's has a type of its own, a CPU's only its words
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        rows = chunked.fitting_rows(layer)
        raise OutOfMemoryError(
            f"memory ran out over the attention maps of layer {layer.index} (backend {layer.backend!r}). "
            f"backend='chunked', chunk_rows={rows} would fit, or a smaller batch."
        ) from error
