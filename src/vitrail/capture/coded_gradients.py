"""Which row each position of a tensor feeds, measured by coded gradients.

Every row is multiplied by a code, a power of two, before it is differentiated. A position that feeds one row alone has
its gradient multiplied by that row's code, exactly, in any floating dtype. A position that feeds several rows has not.
"""

import math

import torch
from torch import Tensor

BASE = 64
"""Codes are powers of two below 2 ** BASE; a row's number is written in digits of this base."""
SHIFT = 2.0**-20
"""Codes start here, so that gradients neither overflow nor vanish."""
NOWHERE, MIXED = -1, -2
"""Feeds no row; feeds several."""
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
    count = 1 + max(int(number.max()) for _, number in rows)
    generator = torch.Generator().manual_seed(0)
    seeds = [torch.randn(x.shape, generator=generator).to(x) * SHIFT for x, _ in rows]
    plain = _pulled(rows, seeds, places, channels)
    found = [None if g is None else torch.zeros(g.shape[:-1], dtype=torch.long, device=g.device) for g in plain]
    for digit in range(max(1, math.ceil(math.log(count, BASE) - 1e-9))):
        codes = [torch.exp2((number // BASE**digit % BASE).double()).to(x.dtype) for x, number in rows]
        coded = _pulled(rows, [seed * code for seed, code in zip(seeds, codes, strict=True)], places, channels)
        found = [_read(digit, so_far, *pair) for so_far, *pair in zip(found, plain, coded, strict=True)]
    return found


def _read(digit: int, so_far: Tensor | None, plain: Tensor | None, coded: Tensor | None) -> Tensor | None:
    """The numbers found so far, and one digit more, read off a gradient and the same gradient with codes."""
    if so_far is None or plain is None or coded is None:
        return None
    largest = plain.abs().argmax(dim=-1, keepdim=True)
    ratio = (coded.gather(-1, largest) / plain.gather(-1, largest)).double()
    power = torch.log2(ratio.clamp(min=2.0**-BASE)).round().nan_to_num(0, 0, 0)
    # Times a power of two is exact in the dtype itself; what overflows is not taken for exact.
    expected = plain * torch.exp2(power).to(plain.dtype)
    off, power = (coded - expected).abs().amax(dim=-1), power[..., 0]
    exact = off <= _slack(plain) * expected.abs().amax(dim=-1)
    found = torch.where(exact & (so_far != MIXED), so_far + power.clamp(0, BASE - 1).long() * BASE**digit, MIXED)
    return torch.where((plain != 0).any(dim=-1), found, NOWHERE)


def _slack(x: Tensor) -> float:
    """How far from exact a gradient may be: not at all, but where a GPU adds up in an order of its own."""
    if x.device.type == "cpu":
        return 0.0
    return 2e-2 if x.dtype is torch.bfloat16 else 1e-4


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
