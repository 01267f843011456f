"""Which row each position of a tensor feeds, measured by coded gradients.

Every row is multiplied by a code, a power of two, before it is differentiated. A position that feeds one row alone has
its gradient multiplied by that row's code, exactly, in any floating dtype. A position that feeds several rows has not.
The codes of two gradients of the same seeds go in opposite directions: their quotient tells twice as many rows apart as
a quotient with a gradient that has no codes.
"""

import torch
from torch import Tensor

BASE, FIRST = 64, 197
"""A row's number is written in digits. The base of the lowest is between these two, that of all others is `BASE`, so
that codes lie between 2 ** -49 and 2 ** 49: gradients of float32 neither overflow nor vanish."""
NOWHERE, MIXED = -1, -2
"""Feeds no row; feeds several."""
STRIDE = 61
"""How far apart the seeds of two tensors begin in one sequence of random numbers."""
Rows = list[tuple[Tensor, Tensor]]
"""Tensors with a graph, each with the number of the row that each of its entries belongs to."""


def sources(rows: Rows, places: list[Tensor], *, channels: int) -> list[Tensor | None]:
    """For every position of every place, the number of the one row it feeds, or `NOWHERE`, or `MIXED`.

    None stands for a place that no row depends on.

    Args:
        places: where the gradient is taken.
        channels: the axis of a place that one position has along.
    """
    rows = [(x, number) for x, number in rows if x.requires_grad]
    if not rows:
        return [None] * len(places)
    if not all(place.requires_grad for place in places):
        found = iter(sources(rows, [place for place in places if place.requires_grad], channels=channels))
        return [next(found) if place.requires_grad else None for place in places]
    if not places:
        return []
    base, digits = _base(1 + max(int(number.max()) for _, number in rows))
    seeds = _seeds([x for x, _ in rows])

    def pulled(powers: list[Tensor]) -> list[Tensor | None]:
        coded = [seed * torch.exp2(power.double()).to(seed.dtype) for seed, power in zip(seeds, powers, strict=True)]
        return _pulled(rows, coded, places, channels)

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


def _pulled(rows: Rows, seeds: list[Tensor], places: list[Tensor], channels: int) -> list[Tensor | None]:
    found = torch.autograd.grad([x for x, _ in rows], places, seeds, retain_graph=True, allow_unused=True)
    return [None if g is None else g.movedim(channels, -1) for g in found]


def numbered(x: Tensor) -> Tensor:
    """The number of the token that every row of `[b, ..., t, d]` stands for."""
    batch, tokens = x.shape[0], x.shape[-2]
    return torch.arange(batch * tokens, device=x.device).view(batch, *[1] * (x.ndim - 3), tokens, 1)


def with_heads(x: Tensor, batch: int) -> Tensor | None:
    """An operand as `[b, h, t, d]` with its graph; None where samples and heads cannot be separated."""
    if x.ndim == 3 and x.shape[0] % batch == 0:
        x = x.view(batch, -1, *x.shape[1:])
    return x if x.ndim == 4 and x.shape[0] == batch else None
