"""A power for every map, such that as many pixels lie above its mean as above Otsu's threshold.

Otsu, "A Threshold Selection Method from Gray-Level Histograms", IEEE Transactions SMC 1979. A power of values between
zero and one cannot change their order: maps become comparable where a threshold is the mean, and nothing else changes.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Maps = Float[Tensor, "b y x"]
BINS, STEPS, WIDEST = 256, 24, 6.0


def to_unit(maps: Maps) -> Maps:
    """Each map from zero to one; a constant one is zero."""
    low, high = maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True)
    return (maps - low) / (high - low).clamp(min=torch.finfo(maps.dtype).tiny)


def otsu(maps: Maps) -> Float[Tensor, " b"]:
    """The edge of a bin that parts values between zero and one into the two classes furthest apart."""
    bins = (maps.flatten(1) * BINS).long().clamp(max=BINS - 1)
    counts = torch.zeros(len(maps), BINS, dtype=maps.dtype, device=maps.device)
    counts.scatter_add_(1, bins, torch.ones_like(maps.flatten(1)))
    share = counts / counts.sum(dim=1, keepdim=True)
    centres = (torch.arange(BINS, device=maps.device, dtype=maps.dtype) + 0.5) / BINS
    below, moment = share.cumsum(dim=1)[:, :-1], (share * centres).cumsum(dim=1)
    spread = (moment[:, -1:] * below - moment[:, :-1]).square() / (below * (1 - below)).clamp(min=1e-12)
    return (spread.argmax(dim=1) + 1).to(maps.dtype) / BINS


def power_mean(maps: Maps, power: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """The value whose power is the mean of the powers; it grows with the power."""
    return maps.pow(power[:, None, None]).mean(dim=(1, 2)).pow(1 / power)


def calibrate(maps: Maps) -> Maps:
    """The maps from zero to one, each to the power at which its power mean is Otsu's threshold, by bisection."""
    maps = to_unit(maps)
    wanted = otsu(maps)
    low, high = torch.full_like(wanted, -WIDEST), torch.full_like(wanted, WIDEST)  # logarithms to base two
    for _ in range(STEPS):
        middle = (low + high) / 2
        short = power_mean(maps, middle.exp2()) < wanted
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return maps.pow(((low + high) / 2).exp2()[:, None, None])
