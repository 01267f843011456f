"""Attention written by hand: a softmax over the last axis, then a product with the values.

The follower keeps the latest softmax result and what was made of it without changing its entries
(dropout in evaluation mode, casts, reshapes). When one of those is multiplied with something, that was an
attention call. The operands of the scores are the first product since the previous call whose
result has as many entries as the softmax.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.seams.call import AttentionCall

SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax}
SAME_ENTRIES = {
    F.dropout, torch.dropout, Tensor.to, Tensor.type_as, Tensor.float, Tensor.half, Tensor.bfloat16,
    Tensor.double, Tensor.view, Tensor.reshape, torch.reshape, Tensor.contiguous, Tensor.clone,
    torch.clone, Tensor.flatten, torch.flatten, Tensor.unflatten, torch.nan_to_num, Tensor.nan_to_num,
}  # fmt: skip
PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}


class Follower:
    """Follows one softmax at a time to the product that makes it an attention call."""

    def __init__(self, emit: Callable[[AttentionCall], None]) -> None:
        self.emit = emit
        self.forget()

    def forget(self) -> None:
        """Start afresh: whatever came before belongs to an earlier call."""
        self.traces: list[Tensor] = []
        self.products: list[tuple[Tensor, Tensor, int]] = []

    def hear(self, func: Callable[..., Any], out: Any, args: tuple, kwargs: dict) -> None:  # noqa: ANN401
        """Take note of one torch function and its result."""
        if func in SOFTMAX:
            self._softmax(out, args, kwargs)
        elif func in SAME_ENTRIES:
            if self._is_trace(args[0] if args else None) and isinstance(out, Tensor):
                self.traces.append(out)
        elif func in PRODUCTS:
            self._product(out, args)
        elif func is torch.einsum and any(self._is_trace(x) for x in _flat(args)):
            self._finish(self.traces[-1], value=None, output=None)

    def _is_trace(self, x: object) -> bool:
        return any(x is trace for trace in self.traces)

    def _softmax(self, out: Tensor, args: tuple, kwargs: dict) -> None:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if out.ndim in (3, 4) and dim in (-1, out.ndim - 1):
            self.traces = [out]

    def _product(self, out: Tensor, args: tuple) -> None:
        left, right = args[0], args[1] if len(args) > 1 else None
        if self._is_trace(left) and isinstance(right, Tensor):
            self._finish(left, value=right, output=out)
        elif out.ndim in (3, 4) and isinstance(right, Tensor) and right.ndim == out.ndim:
            self.products = [*self.products[-7:], (left, right, out.numel())]

    def _finish(self, weights: Tensor, value: Tensor | None, output: Tensor | None) -> None:
        operands = [(q, k) for q, k, size in self.products if size == weights.numel()]
        query, key = operands[0] if operands else (None, None)
        self.emit(
            AttentionCall(
                query=query,
                key=None if key is None else key.transpose(-1, -2),
                value=value,
                output=output,
                weights=weights,
            )
        )
        self.forget()


def _flat(args: tuple) -> list[object]:
    return [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else [arg])]
