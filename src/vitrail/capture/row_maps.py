"""Projections whose gradient costs little, for passes that ask which row depends on which.

A projection by a stored weight makes every number of a row of its output from all numbers of the same row of its input,
and from no other row. Which rows depend on which follows from that alone, whatever the weight is. So a pass that asks
nothing else keeps the projection's values and replaces its gradient by a map of rank one: all numbers of a row are
summed with fixed weights, and handed to all numbers of the row below. Of a block, nearly all work of a backward pass is
projections.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.capture.torch_private import transformed

Pair = tuple[Tensor, Tensor]
"""What the numbers of a row of the output are summed with, and what the sum is handed to the row of the input by."""


class _RowMap(torch.autograd.Function):
    """A projection whose gradient is a map of rank one, row by row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, project: Callable[[Tensor], Tensor], pair: Pair) -> Tensor:  # noqa: ANN401
        """What the projection gives."""
        ctx.pair = pair
        return project(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        """The sum over each row, handed to all numbers of that row."""
        summed, handed = ctx.pair
        return (grads[0].to(summed.dtype) @ summed)[..., None] * handed, None, None  # autocast gives other dtypes


@dataclass(frozen=True)
class _Projection:
    """Where the arguments of a projection stand, and the axis of its weight that is the width of the result."""

    rows: int
    weight: int
    bias: int
    axis: int


LINEAR, ADDMM, MATMUL = _Projection(0, 1, 2, 0), _Projection(1, 2, 0, 1), _Projection(0, 1, 2, 1)
PROJECTIONS: dict[Callable[..., Any], _Projection] = {
    F.linear: LINEAR,
    torch.addmm: ADDMM,
    torch.matmul: MATMUL,
    Tensor.matmul: MATMUL,
    Tensor.__matmul__: MATMUL,
}


class CheapProjections(TorchFunctionMode):
    """Replace the gradient of projections by stored weights while `active` says so."""

    def __init__(self, active: Callable[[], bool]) -> None:
        super().__init__()
        self.active = active
        self.pairs: dict[tuple[object, ...], Pair] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:  # noqa: ANN401
        """Run the function; a projection with the cheap gradient."""
        kwargs, place = kwargs or {}, PROJECTIONS.get(func)
        if place is None or not self.active() or transformed() or not _is_plain(args, place):
            return func(*args, **kwargs)
        x, before, after = args[place.rows], args[: place.rows], args[place.rows + 1 :]
        pair = self._pair(x, args[place.weight].shape[place.axis])
        return _RowMap.apply(x, lambda given: func(*before, given, *after, **kwargs), pair)

    def _pair(self, x: Tensor, wide: int) -> Pair:
        key = (x.shape[-1], wide, x.dtype, x.device)
        if key not in self.pairs:
            generator = torch.Generator().manual_seed(0)
            summed, handed = (torch.randn(size, generator=generator).to(x) for size in (wide, x.shape[-1]))
            self.pairs[key] = summed / wide**0.5, handed
        return self.pairs[key]


def _is_plain(args: tuple, place: _Projection) -> bool:
    """Whether rows are projected by a matrix and a bias that are stored, and not computed from the input."""
    if len(args) <= max(place.rows, place.weight):
        return False
    x, weight = args[place.rows], args[place.weight]
    bias = args[place.bias] if len(args) > place.bias else None
    if type(x) is not Tensor or not x.requires_grad or x.ndim < 2:
        return False
    return _is_stored(weight) and weight.ndim == 2 and weight.dtype is x.dtype and (bias is None or _is_stored(bias))


def _is_stored(x: object) -> bool:
    return isinstance(x, nn.Parameter) or (type(x) is Tensor and not x.requires_grad)
