"""The sums of `dense` by Triton kernels, without any n x n tensor: on CUDA, or in Triton's interpreter on a CPU."""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.layer import Layer
from vitrail.relevance import chunked, dense
from vitrail.relevance.dense import Weigh, note_backend

LOG = logging.getLogger(__name__)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = 256
MOST_COLUMNS = 128
KERNELS: tuple[Weigh, ...] = (
    dense.attention,
    dense.gradient,
    dense.positive,
    dense.complete,
    dense.magnitude,
    dense.score_gradient,
    dense.positive_gradient,
)
"""What a kernel knows to compute of an entry."""


@dataclass(frozen=True)
class Tiling:
    """The shape of a kernel's tiles."""

    queries: int
    keys: int
    warps: int
    stages: int

    @property
    def smaller(self) -> "Tiling | None":
        """The next tiles that take less of a device's shared memory; None where there are none."""
        if self.stages > 1:
            return replace(self, stages=self.stages - 1)
        if self.keys > SMALLEST:
            return replace(self, keys=self.keys // 2)
        return replace(self, queries=self.queries // 2) if self.queries > SMALLEST else None


SMALLEST = 16
"""Rows or columns of a tile that a matrix unit takes at least."""
_fitting: dict[tuple[Any, ...], Tiling] = {}
"""Tiles that a device has held, by device, kernel and form of its operands."""


def launch(form: tuple[Any, ...], tiling: Tiling, run: Callable[[Tiling], None]) -> None:
    """Run a kernel with these tiles, or with the largest smaller ones that the device's shared memory holds.

    Tiles are chosen for long sequences without a mask on an H200. Masks and other devices leave less room.
    """
    form, fitting = (*form, tiling), _fitting.get((*form, tiling), tiling)
    while True:
        try:
            run(fitting)
        except triton_kernels().OutOfResources as error:
            smaller = fitting.smaller
            if smaller is None:
                raise
            LOG.info("tiles %s do not fit (%s); taking %s", fitting, error, smaller)
            fitting = smaller
        else:
            _fitting[form] = fitting
            return


# By the padded head width, for half precision and long sequences, for half precision and short ones, and for float32,
# whose operands take twice the room; measured on an H200.
LONG = {16: Tiling(64, 128, 4, 4), 32: Tiling(64, 128, 4, 4), 64: Tiling(64, 128, 4, 4), 128: Tiling(64, 256, 8, 3),
        256: Tiling(32, 64, 4, 2)}  # fmt: skip
SHORT = LONG | {16: Tiling(32, 128, 4, 4), 32: Tiling(32, 128, 4, 4), 64: Tiling(32, 128, 4, 4)}
MASKED = {128: Tiling(64, 256, 8, 2)}
"""With a mask, whose tiles take room too: three stages need 1 kB more of shared memory than an H200 has."""
WIDE = {16: Tiling(32, 64, 4, 2), 32: Tiling(32, 64, 4, 2), 64: Tiling(32, 64, 4, 2), 128: Tiling(32, 32, 4, 1),
        256: Tiling(16, 32, 4, 1)}  # fmt: skip
ROWS = WIDE | {16: Tiling(64, 64, 4, 2), 32: Tiling(64, 64, 4, 2), 64: Tiling(64, 64, 4, 2), 128: Tiling(128, 64, 8, 2)}
"""For the kernels whose programs take a block of queries, in half precision."""
SHORTEST_LONG = 2048


@cache
def triton_kernels() -> Any:  # noqa: ANN401
    """The kernels, imported when first used: Triton is not on every machine."""
    from vitrail.relevance import kernels

    return kernels


@cache
def has_triton() -> bool:
    """Return True if Triton is installed."""
    return find_spec("triton") is not None


def refusal(*, device: str, dtype: torch.dtype, widths: tuple[int, ...]) -> str | None:
    """Return why a layer cannot be computed here, or None if it can."""
    if not has_triton():
        return "Triton is not installed"
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the kernels run on CUDA, not on {device}"
    if dtype not in DTYPES:
        return f"there is no kernel for {str(dtype).removeprefix('torch.')}"
    if max(widths) > WIDEST:
        return f"heads are {max(widths)} wide, and kernels go up to {WIDEST}"
    return None


@cache
def say_once(what: str) -> None:
    """Log, once, why blocks are used instead of a kernel."""
    LOG.warning("computing in blocks instead of by a fused kernel: %s", what)


def fall_back(why: str) -> None:
    """Say once that blocks are used instead of a kernel."""
    say_once(why)
    note_backend("chunked")


def tiles(layer: Layer) -> Iterator[tuple[slice, Layer]]:
    """Blocks of queries, for sums no kernel knows."""
    fall_back("a method reads whole rows")
    return chunked.tiles(layer)


def pull(layer: Layer, rows: Float[Tensor, "b q"], weigh: Weigh) -> Float[Tensor, "b h k"]:
    """Per head, the rows of the weighed map, summed with these weights."""
    if weigh not in KERNELS:
        fall_back(f"no kernel for {weigh.__name__}")
        return chunked.pull(layer, rows, weigh)
    note_backend("fused")
    kernel = weigh.__name__
    operands = Operands(layer, gradient=kernel != "attention")
    out = operands.pull(rows.to(torch.float32).contiguous(), kernel, sparse=layer.is_last)
    if kernel == "attention" or layer.grad_scale is None:
        return out
    return out.mul_(layer.grad_scale[:, None, None].to(out.dtype))


def push(layer: Layer, columns: Float[Tensor, "b k c"]) -> Float[Tensor, "b q c"]:
    """The head mean of A applied to columns."""
    if columns.shape[2] > MOST_COLUMNS:
        fall_back(f"over {MOST_COLUMNS} columns")
        return chunked.push(layer, columns)
    note_backend("fused")
    return Operands(layer, gradient=False).push(columns.to(torch.float32).contiguous()).mean(dim=1)


class Operands:
    """The tensors of one layer as kernels take them."""

    def __init__(self, layer: Layer, *, gradient: bool) -> None:
        self.query, self.key = _rows_in_order(layer.get("query")), _rows_in_order(layer.get("key"))
        self.layer = layer
        self.batch, self.heads, self.queries, self.width = self.query.shape
        self.keys = self.key.shape[2]
        # Kernels that read no gradient are handed something that is never looked at.
        self.value = _rows_in_order(layer.get("value")) if gradient else self.key
        self.upstream = _rows_in_order(layer.get("output_grad")) if gradient else self.query
        self.mask = (
            self.query if layer.mask is None else layer.mask.expand(self.batch, self.heads, self.queries, self.keys)
        )
        self.kind = "none" if layer.mask is None else "float" if layer.mask.is_floating_point() else "bool"
        self.lowest = torch.finfo(self.mask.dtype).min / 2 if self.kind == "float" else 0.0
        self.half = self.query.dtype is not torch.float32

    @property
    def logsumexp(self) -> Tensor:
        """The logarithm of the softmax's denominator `[b, h, q]`: the model's own, or computed now."""
        kept = self.layer.logsumexp
        if kept is not None and kept.stride(2) == 1:
            return kept
        out = torch.empty(self.batch, self.heads, self.queries, device=self.query.device)
        self._run("logsumexp", self._tiling_of_rows, out)
        return out

    def pull(self, rows: Tensor, kernel: str, *, sparse: bool) -> Tensor:
        """The sums over queries `[b, h, k]`.

        Args:
            sparse: whether most rows may be zero, so that it pays to look where they are not.
        """
        out = torch.empty(self.batch, self.heads, self.keys, device=rows.device)
        width = self.value.shape[3]
        half = LONG if self.queries >= SHORTEST_LONG else SHORT
        half = half if self.kind == "none" else half | MASKED
        tiling = (half if self.half else WIDE)[padded(max(self.width, width))]
        lse = self.logsumexp if kernel not in ("gradient", "positive_gradient") else rows
        delta = rows
        if kernel == "score_gradient":  # `sum_k A G` of every row, which is the output times its gradient
            delta = (self.layer.get("output").float() * self.upstream.float()).sum(dim=3).contiguous()
        operands = (self.value, self.upstream, lse, delta, rows)
        strides = (*self.value.stride()[:3], *self.upstream.stride()[:3], *lse.stride()[:2])
        constants = {"WEIGH": kernel, "SPARSE": sparse, "BLOCK_E": padded(width)}
        self._run("pull", tiling, out, operands, strides, width, **constants)
        return out

    def push(self, columns: Tensor) -> Tensor:
        """The maps applied to columns `[b, h, q, c]`."""
        width, lse = columns.shape[2], self.logsumexp
        out = torch.empty(self.batch, self.heads, self.queries, width, device=columns.device)
        strides = lse.stride()[:2]
        self._run("push", self._tiling_of_rows, out, (columns, lse), strides, width, BLOCK_C=padded(width))
        return out

    @property
    def _tiling_of_rows(self) -> Tiling:
        return (ROWS if self.half else WIDE)[padded(self.width)]

    def _run(
        self,
        kernel: str,
        tiling: Tiling,
        out: Tensor,
        operands: tuple[Tensor, ...] = (),
        strides: tuple[int, ...] = (),
        *widths: int,
        **constants: Any,  # noqa: ANN401
    ) -> None:
        """Run a kernel: one program for each block of keys (`pull`) or queries (all others) of every head.

        Args:
            operands: what it reads beside queries, keys and the mask, with these strides and widths.
        """
        masked = (0, 0, 0, 0) if self.kind == "none" else self.mask.stride()
        sizes = (self.heads, self.heads // self.key.shape[1], self.queries, self.keys, self.width)
        # What decides how much shared memory a kernel takes beside its tiles.
        dtypes = self.query.dtype, self.mask.dtype if self.kind != "none" else None
        form = kernel, constants.get("WEIGH"), self.query.device, *dtypes, self.width, self.value.shape[3], *widths

        def run(tiling: Tiling) -> None:
            blocks = _blocks(self.keys, tiling.keys) if kernel == "pull" else _blocks(self.queries, tiling.queries)
            getattr(triton_kernels(), kernel)[(blocks * self.batch * self.heads,)](
                self.query, self.key, *operands, self.mask, out, *self.query.stride()[:3], *self.key.stride()[:3],
                *strides, *masked, self.layer.scale, self.lowest, *sizes, *widths, **constants, MASK=self.kind,
                CAUSAL=self.layer.causal, PRECISION="tf32" if self.half else "tf32x3", BLOCK_Q=tiling.queries,
                BLOCK_K=tiling.keys, BLOCK_D=padded(self.width), num_warps=tiling.warps, num_stages=tiling.stages,
            )  # fmt: skip

        launch(form, tiling, run)


def padded(width: int) -> int:
    """The next power of two that a matrix unit takes."""
    return max(16, 1 << (width - 1).bit_length())


def _blocks(length: int, size: int) -> int:
    return -(-length // size)


def _rows_in_order(x: Tensor) -> Tensor:
    """The tensor with channels side by side in memory, and small strides inside a head; a copy only where needed."""
    return x if x.stride(3) == 1 and x.shape[2] * x.stride(2) < 2**31 else x.contiguous()
