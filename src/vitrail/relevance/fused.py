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

from vitrail.capture.recording import Layer
from vitrail.relevance import chunked, dense
from vitrail.relevance.dense import Weigh, note_backend

LOG = logging.getLogger(__name__)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = 256
MOST_COLUMNS = 128
KERNELS: dict[Weigh, str] = {
    weigh: weigh.__name__
    for weigh in (
        dense.attention,
        dense.gradient,
        dense.positive,
        dense.complete,
        dense.magnitude,
        dense.score_gradient,
        dense.positive_gradient,
    )
}
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
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def refusal(*, device: str, dtype: torch.dtype, widths: tuple[int, ...]) -> str | None:
    """Why a layer cannot be computed here, or None if it can."""
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
    if layer.weights is not None or weigh not in KERNELS:
        reason = (
            "the model computes its maps itself" if layer.weights is not None else f"no kernel for {weigh.__name__}"
        )
        fall_back(reason)
        return chunked.pull(layer, rows, weigh)
    note_backend("fused")
    kernel = KERNELS[weigh]
    operands = Operands(layer, gradient=kernel != "attention")
    out = torch.empty(operands.batch, operands.heads, operands.keys, device=rows.device)
    operands.pull(rows.to(torch.float32).contiguous(), kernel, out, sparse=layer.is_last)
    if kernel == "attention" or layer.grad_scale is None:
        return out
    return out.mul_(layer.grad_scale[:, None, None].to(out.dtype))


def push(layer: Layer, columns: Float[Tensor, "b k c"]) -> Float[Tensor, "b q c"]:
    """The head mean of A applied to columns."""
    if layer.weights is not None or columns.shape[2] > MOST_COLUMNS:
        reason = "the model computes its maps itself" if layer.weights is not None else f"over {MOST_COLUMNS} columns"
        fall_back(reason)
        return chunked.push(layer, columns)
    note_backend("fused")
    operands = Operands(layer, gradient=False)
    out = torch.empty(operands.batch, operands.heads, operands.queries, columns.shape[2], device=columns.device)
    operands.push(columns.to(torch.float32).contiguous(), out)
    return out.mean(dim=1)


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
        self.precision = "tf32" if self._is_half() else "tf32x3"

    @property
    def logsumexp(self) -> Tensor:
        """The logarithm of the softmax's denominator `[b, h, q]`: the model's own, or computed now."""
        kept = self.layer.logsumexp
        if kept is not None and kept.stride(2) == 1:
            return kept
        out = torch.empty(self.batch, self.heads, self.queries, device=self.query.device)

        def run(tiling: Tiling) -> None:
            grid = (_blocks(self.queries, tiling.queries) * self.batch * self.heads,)
            triton_kernels().logsumexp[grid](
                self.query, self.key, self.mask, out, *self.query.stride()[:3], *self.key.stride()[:3],
                *self._mask_strides(), self.layer.scale, self.lowest, *self._sizes(), self.width, MASK=self.kind,
                CAUSAL=self.layer.causal, PRECISION=self.precision, BLOCK_Q=tiling.queries, BLOCK_K=tiling.keys,
                BLOCK_D=padded(self.width), num_warps=tiling.warps, num_stages=tiling.stages,
            )  # fmt: skip

        launch(self._form("logsumexp"), self._tiling_of_rows(), run)
        return out

    def pull(self, rows: Tensor, kernel: str, out: Tensor, *, sparse: bool) -> None:
        """Fill `out[b, h, k]` with the sums over queries.

        Args:
            sparse: whether most rows may be zero, so that it pays to look where they are not.
        """
        half = LONG if self.queries >= SHORTEST_LONG else SHORT
        half = half if self.kind == "none" else half | MASKED
        tiling = (half if self._is_half() else WIDE)[padded(max(self.width, self.value.shape[3]))]
        lse = self.logsumexp if kernel not in ("gradient", "positive_gradient") else rows
        delta = self._delta() if kernel == "score_gradient" else rows

        def run(tiling: Tiling) -> None:
            grid = (_blocks(self.keys, tiling.keys) * self.batch * self.heads,)
            triton_kernels().pull[grid](
                self.query, self.key, self.value, self.upstream, lse, delta, rows, self.mask, out,
                *self.query.stride()[:3], *self.key.stride()[:3], *self.value.stride()[:3],
                *self.upstream.stride()[:3], *lse.stride()[:2], *self._mask_strides(), self.layer.scale, self.lowest,
                *self._sizes(), self.width, self.value.shape[3], WEIGH=kernel, MASK=self.kind,
                CAUSAL=self.layer.causal, SPARSE=sparse, PRECISION=self.precision, BLOCK_Q=tiling.queries,
                BLOCK_K=tiling.keys, BLOCK_D=padded(self.width), BLOCK_E=padded(self.value.shape[3]),
                num_warps=tiling.warps, num_stages=tiling.stages,
            )  # fmt: skip

        launch(self._form(kernel), tiling, run)

    def push(self, columns: Tensor, out: Tensor) -> None:
        """Fill `out[b, h, q, c]` with the maps applied to columns."""
        lse = self.logsumexp

        def run(tiling: Tiling) -> None:
            grid = (_blocks(self.queries, tiling.queries) * self.batch * self.heads,)
            triton_kernels().push[grid](
                self.query, self.key, columns, lse, self.mask, out, *self.query.stride()[:3], *self.key.stride()[:3],
                *lse.stride()[:2], *self._mask_strides(), self.layer.scale, self.lowest, *self._sizes(), self.width,
                columns.shape[2], MASK=self.kind, CAUSAL=self.layer.causal, PRECISION=self.precision,
                BLOCK_Q=tiling.queries, BLOCK_K=tiling.keys, BLOCK_D=padded(self.width),
                BLOCK_C=padded(columns.shape[2]), num_warps=tiling.warps, num_stages=tiling.stages,
            )  # fmt: skip

        launch(self._form("push", columns.shape[2]), self._tiling_of_rows(), run)

    def _form(self, kernel: str, *more: int) -> tuple[Any, ...]:
        """What decides how much shared memory a kernel takes beside its tiles."""
        mask = self.mask.dtype if self.kind != "none" else None
        return kernel, self.query.device, self.query.dtype, mask, self.width, self.value.shape[3], *more

    def _is_half(self) -> bool:
        return self.query.dtype is not torch.float32

    def _tiling_of_rows(self) -> Tiling:
        return (ROWS if self._is_half() else WIDE)[padded(self.width)]

    def _delta(self) -> Tensor:
        """`sum_k A G` of every row, which is the output times its gradient."""
        return (self.layer.get("output").float() * self.upstream.float()).sum(dim=3).contiguous()

    def _sizes(self) -> tuple[int, ...]:
        return self.heads, self.heads // self.key.shape[1], self.queries, self.keys

    def _mask_strides(self) -> tuple[int, ...]:
        return (0, 0, 0, 0) if self.kind == "none" else self.mask.stride()


def padded(width: int) -> int:
    """The next power of two that a matrix unit takes."""
    return max(16, 1 << (width - 1).bit_length())


def _blocks(length: int, size: int) -> int:
    return -(-length // size)


def _rows_in_order(x: Tensor) -> Tensor:
    """The tensor with channels side by side in memory, and small strides inside a head; a copy only where needed."""
    return x if x.stride(3) == 1 and x.shape[2] * x.stride(2) < 2**31 else x.contiguous()
