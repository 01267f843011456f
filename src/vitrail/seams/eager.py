"""Attention written by hand: a softmax over the last axis, then a product with the values.

The follower keeps the latest softmax result and what was made of it without changing its entries
(dropout in evaluation mode, casts, reshapes). When one of those is multiplied with something, that was an
attention call. The operands of the scores are the first product since the previous call whose
result has as many entries as the softmax.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import mul, truediv
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
SCALINGS: dict[Callable[..., Any], Callable[[float, float], float]] = {
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.mul_, Tensor.__imul__), mul),
    **dict.fromkeys((torch.div, Tensor.div, Tensor.__truediv__, Tensor.div_, Tensor.__itruediv__), truediv),
}
PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
FOLLOWED = SOFTMAX | SAME_ENTRIES | set(SCALINGS) | PRODUCTS | {torch.einsum}
"""All that may be part of attention written by hand; most functions are not."""


@dataclass
class Product:
    """A product that may have made the scores, and what it was scaled by since."""

    left: Tensor
    right: Tensor
    result: Tensor
    scale: float = 1.0


class Follower:
    """Follows one softmax at a time to the product that makes it an attention call."""

    def __init__(self, emit: Callable[[AttentionCall], None]) -> None:
        self.emit = emit
        self.forget()

    def same(self, old: Tensor, new: Tensor) -> None:
        """Take one tensor for another that has its entries."""
        if self.is_trace(old):
            self.traces.append(new)
        for product in self.products:
            product.result = new if product.result is old else product.result

    def forget(self) -> None:
        """Start afresh: whatever came before belongs to an earlier call."""
        self.traces: list[Tensor] = []
        self.softmax_input: Tensor | None = None
        self.products: list[Product] = []

    def hear(self, func: Callable[..., Any], out: Any, args: tuple, kwargs: dict) -> None:  # noqa: ANN401
        """Take note of one torch function and its result."""
        if is_attention(func, out, args, kwargs):
            self.traces, self.softmax_input = [out], args[0] if args else kwargs["input"]
        elif func in SAME_ENTRIES:
            if self.is_trace(args[0] if args else None) and isinstance(out, Tensor):
                self.traces.append(out)
        elif func in PRODUCTS:
            self._product(out, args)
        elif func in SCALINGS:
            self._scaling(SCALINGS[func], out, args)
        elif func is torch.einsum and self.reads_trace(args):
            self._finish(self.traces[-1], value=None, output=None)

    def is_trace(self, x: object) -> bool:
        """Whether this is the latest softmax, or was made of it without changing its entries."""
        return any(x is trace for trace in self.traces)

    def reads_trace(self, args: tuple) -> bool:
        """Whether such a tensor is among the arguments of a function."""
        return any(self.is_trace(x) for x in _flat(args))

    def _product(self, out: Tensor, args: tuple) -> None:
        left, right = args[0], args[1] if len(args) > 1 else None
        if self.is_trace(left) and isinstance(right, Tensor):
            self._finish(left, value=right, output=out)
        elif out.ndim in (3, 4) and isinstance(right, Tensor) and right.ndim == out.ndim:
            self.products = [*self.products[-7:], Product(left, right, out)]

    def _scaling(self, apply: Callable[[float, float], float], out: Tensor, args: tuple) -> None:
        for product in self.products:
            if args[0] is product.result and isinstance(args[1], (int, float)):
                product.result, product.scale = out, apply(product.scale, args[1])

    def _finish(self, weights: Tensor, value: Tensor | None, output: Tensor | None) -> None:
        scores = next((p for p in self.products if p.result.numel() == weights.numel()), None)
        self.emit(
            AttentionCall(
                query=None if scores is None else scores.left,
                key=None if scores is None else scores.right.transpose(-1, -2),
                value=value,
                output=output,
                weights=weights,
                softmax_input=self.softmax_input,
                scale=1.0 if scores is None else scores.scale,
            )
        )
        self.forget()


def is_attention(func: Callable[..., Any], out: Any, args: tuple, kwargs: dict) -> bool:  # noqa: ANN401
    """Whether a function was a softmax over keys."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return func in SOFTMAX and out.ndim in (3, 4) and dim in (-1, out.ndim - 1)


def _flat(args: tuple) -> list[object]:
    return [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else [arg])]
