"""Projections whose gradient costs little, for passes that ask which row depends on which.

A projection by a stored weight makes every number of a row of its output from all numbers of the same row of its input,
and from no other row. Which rows depend on which follows from that alone, whatever the weight is. So a pass that asks
nothing else keeps the projection's values and replaces its gradient by a map of rank one: all numbers of a row are
summed with fixed weights, and handed to all numbers of the row below. Of a block, nearly all work of a backward pass is
projections. A maximum over places, in the same way, gets the gradient of a sum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.capture.torch_private import current_transform

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
        if place is None or not self.active() or current_transform() is not None or not _is_plain(args, place):
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


class _Even(torch.autograd.Function):
    """A maximum whose gradient is that of a sum over the same places while `evenly.on`, and its own otherwise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pool: Callable[[Tensor], Tensor], even: Callable, evenly: "EvenMaxima") -> Tensor:  # noqa: ANN401
        """The maximum."""
        ctx.save_for_backward(x)
        ctx.pool, ctx.even, ctx.evenly = pool, even, evenly
        return pool(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        """What arrives at each place of the input."""
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = (torch.zeros_like(x) if ctx.evenly.on else x.detach()).requires_grad_()
            given = (ctx.even if ctx.evenly.on else ctx.pool)(leaf)
        return torch.autograd.grad(given, leaf, grads[0])[0], None, None, None


MAXIMA = {Tensor.max, torch.max, Tensor.amax, torch.amax}
POOLS = {torch.max_pool1d: F.avg_pool1d, torch.max_pool2d: F.avg_pool2d, torch.max_pool3d: F.avg_pool3d}
SIZES = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


class EvenMaxima(TorchFunctionMode):
    """Let every token that a maximum is taken over count as read by it, whichever was the largest in this input.

    A structure that is measured once holds for all inputs of one form. The gradient of a maximum shows the tokens that
    were largest in one of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on = True

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:  # noqa: ANN401
        """Run the function; a maximum over places with the even gradient."""
        kwargs = kwargs or {}
        known = func in MAXIMA or func in POOLS
        if (
            not known
            or not args
            or type(args[0]) is not Tensor
            or not args[0].requires_grad
            or current_transform() is not None
        ):
            return func(*args, **kwargs)
        x, rest = args[0], args[1:]
        if func in POOLS:
            return self._pooled(func, x, rest, kwargs)
        if isinstance(dim := kwargs.get("dim", rest[0] if rest else None), Tensor) or dim is None:
            return func(*args, **kwargs)
        kept = bool(kwargs.get("keepdim", rest[1] if len(rest) > 1 else False))
        out = func(*args, **kwargs)
        largest = _Even.apply(x, lambda y: y.amax(dim, kept), lambda y: y.sum(dim, kept), self)
        return largest if isinstance(out, Tensor) else type(out)((largest, out[1]))

    def _pooled(self, func: Callable[..., Tensor], x: Tensor, rest: tuple, kwargs: dict) -> Tensor:
        """Maxima over windows. Windows with holes have no sum of their own in torch, and keep their gradient."""
        sizes = {**dict(zip(SIZES, rest, strict=False)), **kwargs}
        holes = sizes.pop("dilation", 1)
        out = func(x, *rest, **kwargs)
        plain = holes == 1 or (isinstance(holes, (tuple, list)) and set(holes) == {1})
        if not plain or POOLS[func](x.detach(), **sizes).shape != out.shape:
            return out
        return _Even.apply(x, lambda y: func(y, *rest, **kwargs), lambda y: POOLS[func](y, **sizes), self)
