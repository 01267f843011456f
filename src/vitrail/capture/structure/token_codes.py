"""The row that each position of a tensor feeds, measured by coded gradients, in passes whose gradients cost little."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.overrides import TorchFunctionMode

from vitrail.capture.seams import AttentionCall
from vitrail.capture.torch_private import current_transform

Pair = tuple[Tensor, Tensor]
"""What the numbers of a row of the output are summed with, and what the sum is handed to the row of the input by."""


class _RowMap(torch.autograd.Function):
    """A projection whose gradient is a map of rank one, row by row, where it is to be cheap; else its own."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        project: Callable[[Tensor], Tensor],
        back: tuple[Tensor, Pair],
        cheap: Callable[[], bool],
    ) -> Tensor:
        """Return the output of the projection."""
        ctx.back, ctx.cheap = back, cheap
        return project(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        """The sum over each row, handed to all numbers of that row; or the gradient of the projection."""
        matrix, (summed, handed) = ctx.back
        given = grads[0].to(matrix.dtype)  # autocast gives other dtypes
        return (given @ summed)[..., None] * handed if ctx.cheap() else given @ matrix, None, None, None


class _Projection(NamedTuple):
    """The places of a projection's arguments, and the axis of its weight that is the width of the result."""

    rows: int
    weight: int
    bias: int
    axis: int


MATMUL = _Projection(0, 1, 2, 1)
PROJECTIONS: dict[Callable[..., Any], _Projection] = {
    F.linear: _Projection(0, 1, 2, 0),
    torch.addmm: _Projection(1, 2, 0, 1),
    torch.matmul: MATMUL,
    Tensor.matmul: MATMUL,
    Tensor.__matmul__: MATMUL,
}


class CheapProjections(TorchFunctionMode):
    """Replace the gradient of projections by stored weights, of those that ran at some times.

    Args:
        clock: tells the time at which a projection runs; None where its gradient is to be its own in any case.
    """

    def __init__(self, clock: Callable[[], int | None]) -> None:
        super().__init__()
        self.clock = clock
        self.cheap: set[int] = set()
        """The times of projections whose gradient is cheap now."""
        self.pairs: dict[tuple[object, ...], Pair] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:  # noqa: ANN401
        """Run the function; a projection with the cheap gradient."""
        kwargs, place = kwargs or {}, PROJECTIONS.get(func)
        if place is None or kwargs or current_transform() is not None or not _is_plain(args, place):
            return func(*args, **kwargs)
        time = self.clock()
        if time is None:
            return func(*args, **kwargs)
        x, before, after = args[place.rows], args[: place.rows], args[place.rows + 1 :]
        weight = args[place.weight]
        pair = self._pair(x, weight.shape[place.axis])
        back = weight if place.axis == 0 else weight.t(), pair

        def project(given: Tensor) -> Tensor:
            return func(*before, given, *after)

        cheap = self.cheap  # not `self`, whose clock may lead to the graph: the two would hold each other for ever
        return _RowMap.apply(x, project, back, lambda: time in cheap)

    def _pair(self, x: Tensor, wide: int) -> Pair:
        key = (x.shape[-1], wide, x.dtype, x.device)
        if key not in self.pairs:
            generator = torch.Generator().manual_seed(0)
            summed, handed = (torch.randn(size, generator=generator).to(x) for size in (wide, x.shape[-1]))
            self.pairs[key] = summed / wide**0.5, handed
        return self.pairs[key]


def _is_plain(args: tuple, place: _Projection) -> bool:
    """Return True if rows are projected by a matrix and a bias that are stored, and not computed from the input."""
    if len(args) <= max(place.rows, place.weight):
        return False
    x, weight = args[place.rows], args[place.weight]
    bias = args[place.bias] if len(args) > place.bias else None
    if type(x) is not Tensor or not x.requires_grad or x.ndim < 2:
        return False
    return _is_stored(weight) and weight.ndim == 2 and weight.dtype is x.dtype and (bias is None or _is_stored(bias))


def _is_stored(x: object) -> bool:
    return type(x) is nn.Parameter


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
        """Return the gradient at each place of the input."""
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

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:  # noqa: ANN401
        """Run the function; a maximum over places with the even gradient."""
        kwargs = kwargs or {}
        known = (func in MAXIMA or func in POOLS) and bool(args) and type(args[0]) is Tensor
        if not known or not args[0].requires_grad or current_transform() is not None:
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


BASE, FIRST = 64, 197
"""A row's number is written in digits. The base of the lowest is between these two, that of all others is `BASE`, so
that codes lie between 2 ** -49 and 2 ** 49: gradients of float32 neither overflow nor vanish."""
NOWHERE, MIXED = -1, -2
"""Feeds no row; feeds several."""
STRIDE = 61
"""How far apart the seeds of two tensors begin in one sequence of random numbers."""


@dataclass(frozen=True, eq=False)
class State:
    """A tensor as it stood in the graph at one moment of a pass, whatever the model writes into it later."""

    tensor: Tensor
    edge: GradientEdge | None  # None where it has no gradient

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor."""
        return self.tensor.shape

    @property
    def ndim(self) -> int:
        """The number of axes of the tensor."""
        return self.tensor.ndim

    @property
    def requires_grad(self) -> bool:
        """Return True if it had a gradient."""
        return self.edge is not None

    @property
    def node(self) -> Any:  # noqa: ANN401
        """The node of the tensor in the graph."""
        return None if self.edge is None else self.edge.node


def in_graph(x: Tensor | State) -> Any:  # noqa: ANN401
    """Return what autograd knows a tensor by."""
    if isinstance(x, Tensor):
        return x
    assert x.edge is not None
    return x.edge


def tensor_of(x: Tensor | State) -> Tensor:
    """Return a tensor, or that of a state."""
    return x if isinstance(x, Tensor) else x.tensor


CodePairs = Sequence[tuple[Tensor | State, Tensor]]
"""Tensors with a graph, each with the number of the row that each of its entries belongs to."""


def sources(rows: CodePairs, places: Sequence[Tensor | State], *, channels: int | None) -> list[Tensor | None]:
    """For every position of every place, the number of the one row it feeds, or `NOWHERE`, or `MIXED`.

    None stands for a place that no row depends on.

    Args:
        places: where the gradient is taken.
        channels: the axis of a place that one position has along; None where every number is a position.
    """
    rows = [(x, number.to(tensor_of(x).device)) for x, number in rows if x.requires_grad]
    if not rows:
        return [None] * len(places)
    if not all(place.requires_grad for place in places):
        found = iter(sources(rows, [place for place in places if place.requires_grad], channels=channels))
        return [next(found) if place.requires_grad else None for place in places]
    if not places:
        return []
    base, digits = _base(1 + max(int(number.max()) for _, number in rows))
    seeds = _seeds([tensor_of(x) for x, _ in rows])
    ends, starts = [in_graph(x) for x, _ in rows], list(map(in_graph, places))

    def pulled(powers: list[Tensor]) -> list[Tensor | None]:
        coded = [seed * torch.exp2(power.double()).to(seed.dtype) for seed, power in zip(seeds, powers, strict=True)]
        found = torch.autograd.grad(ends, starts, coded, retain_graph=True, allow_unused=True)
        return [None if g is None else g[..., None] if channels is None else g.movedim(channels, -1) for g in found]

    lowest = [number % base - base // 2 for _, number in rows]
    first, second = pulled([-(power // 2) for power in lowest]), pulled([power - power // 2 for power in lowest])
    found = [_read(*pair, base=base) for pair in zip(first, second, strict=True)]
    for digit in range(1, digits):
        unit = base * BASE ** (digit - 1)
        more = pulled([number // unit % BASE - BASE // 2 for _, number in rows])
        found = [
            None if so_far is None else _next(so_far, *pair, base=base, unit=unit)
            for so_far, *pair in zip(found, first, more, strict=True)
        ]
    return found


def fed_singly(rows: CodePairs, place: Tensor | State, *, channels: int) -> Tensor | None:
    """`sources` of one place; None where none of its positions feeds a row, or one feeds several."""
    (found,) = sources(rows, [place], channels=channels)
    unclear = found is None or bool((found == MIXED).any()) or not bool((found >= 0).any())
    return None if unclear else found


def _base(count: int) -> tuple[int, int]:
    """The base of the lowest digit, and how many digits number this many rows: as few as possible."""
    digits = next(digits for digits in range(1, 64) if FIRST * BASE ** (digits - 1) >= count)
    return max(BASE, -(-count // BASE ** (digits - 1))), digits


def _seeds(tensors: list[Tensor]) -> list[Tensor]:
    """Random numbers for each tensor, no two the same: slices of one sequence, which costs less than drawing them."""
    longest = max(x.numel() for x in tensors)
    drawn = torch.randn(longest + STRIDE * len(tensors), generator=torch.Generator().manual_seed(0))
    kinds = {(x.dtype, x.device): drawn.to(x.device, x.dtype) for x in tensors}
    return [kinds[x.dtype, x.device][STRIDE * index :][: x.numel()].view(x.shape) for index, x in enumerate(tensors)]


def _read(first: Tensor | None, second: Tensor | None, *, base: int) -> Tensor | None:
    """The lowest digit of the numbers of the rows that positions feed, read off two gradients with opposite codes."""
    if first is None or second is None:
        return None
    power, exact = _quotient(first, second)
    digit = power + base // 2
    found = torch.where(exact & (digit >= 0) & (digit < base), digit, MIXED)
    return torch.where((first != 0).any(dim=-1) | (second != 0).any(dim=-1), found, NOWHERE)


def _next(so_far: Tensor, first: Tensor | None, coded: Tensor | None, *, base: int, unit: int) -> Tensor | None:
    """The numbers found so far with one digit more, which counts for so many rows."""
    if first is None or coded is None:
        return None
    power, exact = _quotient(first, coded)
    digit = power + BASE // 2 - (so_far % base - base // 2) // 2  # the first gradient has codes of its own
    known = exact & (digit >= 0) & (digit < BASE)
    return torch.where(so_far < 0, so_far, torch.where(known, so_far + digit * unit, MIXED))


def _quotient(first: Tensor, coded: Tensor) -> tuple[Tensor, Tensor]:
    """By how many powers of two one gradient is the other, and whether it is exactly that in all channels."""
    below, above = first.abs().amax(dim=-1), coded.abs().amax(dim=-1)
    power = torch.log2(above.double() / below.double()).round().nan_to_num(0, 0, 0)
    # Half of the powers on each side: 2 ** power may be beyond float32. What overflows is not taken for exact.
    half = (power / 2).floor()
    first = first * torch.exp2(half).to(first.dtype)[..., None]
    coded = coded * torch.exp2(half - power).to(first.dtype)[..., None]
    if first.device.type == "cpu":
        return power.long(), (coded == first).all(dim=-1) & above.isfinite()
    # A GPU may add up in an order of its own.
    slack = 2e-2 if first.dtype is torch.bfloat16 else 1e-4
    return power.long(), (coded - first).abs().amax(dim=-1) <= slack * first.abs().amax(dim=-1)


def numbers_of_tokens(shape: torch.Size, *, batch_first: bool = True) -> Tensor:
    """Return the number of the token that every row of `[b, ..., t, d]` or of `[t, b, d]` stands for."""
    if not batch_first:
        return torch.arange(shape[0] * shape[1]).view(shape[1], shape[0]).T[..., None]
    batch, tokens = shape[0], shape[-2]
    return torch.arange(batch * tokens).view(batch, *[1] * (len(shape) - 3), tokens, 1)


def with_heads(x: Tensor, batch: int) -> Tensor | None:
    """An operand as `[b, h, t, d]` with its graph; None where samples and heads cannot be separated."""
    if x.ndim == 3 and x.shape[0] % batch == 0:
        x = x.view(batch, -1, *x.shape[1:])
    return x if x.ndim == 4 and x.shape[0] == batch else None


def call_result(call: AttentionCall) -> Tensor | None:
    """Return the tensor that the model goes on with: the map of hand-written attention, else the output."""
    return call.weights if call.weights is not None else call.output
