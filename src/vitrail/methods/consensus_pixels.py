"""From patches to pixels: the explanation of the picture moved a little, moved back, and brought to its edges."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.methods.calibration import calibrate, to_unit
from vitrail.methods.guided_filter import grey, guided_filter
from vitrail.methods.options import check_choice, check_count

Maps = Float[Tensor, "b h w"]
Parts = Float[Tensor, "b p y x"]
Differ = Float[Tensor, " b"] | None
Picture = Float[Tensor, "b c h w"]
DIAGONALS = ((-1, -1), (-1, 1), (1, -1), (1, 1))
CALIBRATIONS: dict[str, Callable[[Maps], Maps]] = {"otsu": calibrate, "none": to_unit}


@dataclass(frozen=True)
class Finish:
    """How a map of pixels is made: where the picture is moved, how edges are followed, what becomes of the values."""

    moves: tuple[tuple[int, int], ...]
    radius: int
    eps: float
    calibration: Callable[[Maps], Maps]

    @staticmethod
    def of(*, shift: int, radius: int, eps: float, calibration: str) -> "Finish":
        """Read from a method's options."""
        check_count("radius", radius)
        if shift < 0 or eps <= 0:
            raise OptionError(f"shift={shift} and eps={eps}, but shift cannot be below zero and eps has to be above.")
        moves = tuple((shift * y, shift * x) for y, x in DIAGONALS) if shift else ((0, 0),)
        return Finish(moves, radius, eps, check_choice("calibration", calibration, CALIBRATIONS))


def moved(x: Picture, down: int, right: int) -> Picture:
    """A picture moved by whole pixels; its border is repeated where nothing is known."""
    height, width = x.shape[2:]
    rows = (torch.arange(height, device=x.device) - down).clamp(0, height - 1)
    columns = (torch.arange(width, device=x.device) - right).clamp(0, width - 1)
    return x[:, :, rows[:, None], columns]


def to_pixels(
    picture: Picture, explain: Callable[[Picture], tuple[Parts, Differ]], finish: Finish
) -> tuple[Parts, Differ, Maps]:
    """The parts at the patches, their disagreement, and the map of pixels, all averaged over moved pictures.

    Args:
        explain: gives the parts of a picture on the grid of patches, and how little they agree.
    """
    total, apart, grid = [], [], (1, 1)
    for down, right in finish.moves:
        parts, differ = explain(moved(picture, down, right))
        grid = parts.shape[2], parts.shape[3]
        smooth = F.interpolate(parts, size=picture.shape[2:], mode="bilinear", align_corners=False)
        total.append(moved(smooth, -down, -right))
        apart += [] if differ is None else [differ]
    maps = torch.stack(total).mean(dim=0)
    guide = grey(picture.detach()).to(maps.dtype)
    fine = finish.calibration(guided_filter(maps.sum(dim=1), guide, radius=finish.radius, eps=finish.eps))
    return F.adaptive_avg_pool2d(maps, grid), torch.stack(apart).mean(dim=0) if apart else None, fine
