"""Choose the backend that computes the sums over a layer's attention maps: dense, chunked or fused."""

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import ParamSpec, TypeVar, cast

import torch

from vitrail.capture.recording.layer import Layer
from vitrail.capture.seams import AttentionCall
from vitrail.errors import OutOfMemoryError
from vitrail.relevance import chunked, dense, fused
from vitrail.relevance.dense import entries, note_backend

P = ParamSpec("P")
T = TypeVar("T")

BACKENDS: dict[str, ModuleType] = {"dense": dense, "chunked": chunked, "fused": fused}


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


def backend_of(layer: Layer) -> str:
    """The backend that computes the sums of this layer: the one it names, or the fastest."""
    if layer.backend in ("dense", "chunked"):
        return layer.backend
    device, bounded = layer.valid.device.type, layer.chunk_rows is not None
    if layer.backend == "auto" and device != "cuda":  # kernels are asked for by name there
        small = entries(layer) <= chunked.BUDGET.get(device, chunked.LARGE_BUDGET)
        return "dense" if small and not bounded else "chunked"
    refusal = fused_refusal(layer, device)
    return choose_backend(
        layer.backend, entries=entries(layer), device=device, refusal=refusal, shared=layer.shared, bounded=bounded
    )


def fused_refusal(layer: Layer | AttentionCall, device: str) -> str | None:
    """Return why the sums over a layer's maps cannot be computed by a fused kernel, or None if they can."""
    if layer.weights is not None or layer.query is None or layer.value is None:
        return "the model computes its attention maps itself"
    dtypes = {x.dtype for x in (layer.query, layer.key, layer.value, layer.output) if x is not None}
    if len(dtypes) > 1:  # as under autocast, which casts what the call is given after it is intercepted
        return "the operands of attention have different dtypes"
    widths = (layer.query.shape[-1], layer.value.shape[-1])
    return fused.refusal(device=device, dtype=layer.query.dtype, widths=widths)


def _by_backend(reference: Callable[P, T]) -> Callable[P, T]:
    """A function of `dense`, computed by the layer's backend; where memory runs out, an error says what would fit."""

    @wraps(reference)
    def compute(*args: P.args, **kwargs: P.kwargs) -> T:
        layer = cast(Layer, args[0])
        backend = backend_of(layer)
        if backend != "fused":  # which reports itself whether a kernel or blocks did the work
            note_backend(backend)
        try:
            return getattr(BACKENDS[backend], reference.__name__)(*args, **kwargs)
        except RuntimeError as error:  # a GPU's has a type of its own, a CPU's only its words
            if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
            rows = chunked.fitting_rows(layer)
            raise OutOfMemoryError(
                f"memory ran out over the attention maps of layer {layer.index} (backend {backend!r}). "
                f"backend='chunked', chunk_rows={rows} would fit, or a smaller batch."
            ) from error

    return compute


pull, push, tiles = _by_backend(dense.pull), _by_backend(dense.push), _by_backend(dense.tiles)
