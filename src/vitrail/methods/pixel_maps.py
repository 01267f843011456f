"""Maps of pixels from maps of patches: averaged over shifts of the picture, filtered along its edges, calibrated.

He, Sun and Tang, "Guided Image Filtering", ECCV 2010. Paper -> code: I -> guide, p -> maps, r -> radius.
Otsu, "A Threshold Selection Method from Gray-Level Histograms", IEEE Transactions SMC 1979. The calibration is a power
for each map, such that as many pixels lie above its mean as above Otsu's threshold. A power of values between zero and
one does not change their order. It matters only where a metric compares values with their mean.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.methods.options import check_choice, check_count, to_unit

Maps = Float[Tensor, "b y x"]
Parts = Float[Tensor, "b p y x"]
Picture = Float[Tensor, "b c h w"]
BINS, STEPS, WIDEST = 256, 24, 6.0


def otsu(maps: Maps) -> Float[Tensor, " b"]:
    """Otsu's threshold: the bin edge that separates values from zero to one into two classes best."""
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


def box_mean(maps: Maps, radius: int) -> Maps:
    """The mean over a window of `2 radius + 1` pixels each way; at the border over its part inside the picture."""
    # Rows and columns one after the other: the windows are products, also where they are cut.
    across = F.avg_pool2d(maps, (1, 2 * radius + 1), 1, (0, radius), count_include_pad=False)
    return F.avg_pool2d(across, (2 * radius + 1, 1), 1, (radius, 0), count_include_pad=False)


def guided_filter(maps: Maps, guide: Maps, *, radius: int, eps: float) -> Maps:
    """Eqs. 5, 6 and 8: in every window the line of the guide that fits the map best; lines averaged over windows.

    Args:
        eps: how much the guide has to vary in a window for its edges to be followed, in squares of its values.
    """
    mean, seen = box_mean(guide, radius), box_mean(maps, radius)
    variance = box_mean(guide * guide, radius) - mean * mean
    slope = (box_mean(guide * maps, radius) - mean * seen) / (variance + eps)
    level = seen - slope * mean
    return box_mean(slope, radius) * guide + box_mean(level, radius)


def grey(images: Float[Tensor, "b c y x"]) -> Maps:
    """The mean over channels, from zero to one in every picture, however it was preprocessed."""
    return to_unit(images.mean(dim=1))


DIAGONALS = ((-1, -1), (-1, 1), (1, -1), (1, 1))
CALIBRATIONS: dict[str, Callable[[Maps], Maps]] = {"otsu": calibrate, "none": to_unit}


@dataclass(frozen=True)
class Finish:
    """The steps that finish a map of pixels: moves of the picture, edges to follow, calibration of the values."""

    moves: tuple[tuple[int, int], ...]
    radius: int
    eps: float
    calibration: Callable[[Maps], Maps]

    @staticmethod
    def of(*, shift: int, radius: int, eps: float, calibration: str) -> "Finish":
        """Read from a method's options."""
        check_count("radius", radius)
        if shift < 0 or eps <= 0:
            raise OptionError(f"shift={shift} and eps={eps}, but shift must be at least 0, eps above 0.")
        check_count("shift", shift, least=0)
        moves = tuple((shift * y, shift * x) for y, x in DIAGONALS) if shift else ((0, 0),)
        return Finish(moves, radius, eps, check_choice("calibration", calibration, CALIBRATIONS))


def moved(x: Picture, down: int, right: int) -> Picture:
    """A picture moved by whole pixels; its border is repeated where nothing is known."""
    height, width = x.shape[2:]
    rows = (torch.arange(height, device=x.device) - down).clamp(0, height - 1)
    columns = (torch.arange(width, device=x.device) - right).clamp(0, width - 1)
    return x[:, :, rows[:, None], columns]


def at_pixels(
    picture: Picture, parts: Float[Tensor, "m b p y x"], finish: Finish
) -> tuple[Parts, Float[Tensor, "b h w"]]:
    """The parts at the patches and the map of pixels, both averaged over moved pictures.

    Args:
        parts: those of the picture moved in each of the ways of `finish`, on the grid of patches.
    """
    total = []
    for (down, right), found in zip(finish.moves, parts, strict=True):
        fine = F.interpolate(found, size=picture.shape[2:], mode="bilinear", align_corners=False)
        total.append(moved(fine, -down, -right))
    maps = torch.stack(total).mean(dim=0)
    guide = grey(picture.detach()).to(maps.dtype)
    fine = finish.calibration(guided_filter(maps.sum(dim=1), guide, radius=finish.radius, eps=finish.eps))
    return F.adaptive_avg_pool2d(maps, (parts.shape[3], parts.shape[4])), fine
