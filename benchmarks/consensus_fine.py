"""Maps of pixels that `consensus.py` tries: the picture moved a little, a guided filter, a calibration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from consensus_variants import LENGTHS, RECIPES, USUAL, WHOLE, H, L, Recipe, Scalar, mixed
from torch import Tensor

from vitrail.methods.pixel_maps import DIAGONALS, calibrate, guided_filter, moved, to_unit

Move = tuple[int, int]
MOVES: dict[str, tuple[Move, ...]] = {
    "still": ((0, 0),),
    "2 x 4 px": ((-4, -4), (4, 4)),
    "4 x 4 px": tuple((4 * y, 4 * x) for y, x in DIAGONALS),
    "5 x 4 px": ((0, 0), *((4 * y, 4 * x) for y, x in DIAGONALS)),
    "4 x 8 px": tuple((8 * y, 8 * x) for y, x in DIAGONALS),
}
CALIBRATIONS: dict[str, Callable[[Tensor], Tensor]] = {"otsu": calibrate, "none": to_unit}
FIRST: dict[str, Recipe] = {
    "consensus": USUAL,
    "√h + n(a) + √l": LENGTHS,
    "and att_grads": RECIPES["and att_grads"],
    "ranks": RECIPES["ranks"],
}
SECOND: dict[str, Recipe] = {
    name: RECIPES[name]
    for name in (
        "2: √h + 0.5 n(a) + √l",
        "2: √h + 0.5 n(a) + √l + √absolute",
        "2: √h + 0.5 n(a) + √l + ½√att_grads",
        "2: √h + 0.5 √a + √l + √absolute",
        "2: √g + 0.5 √a + √l + √absolute",
    )
} | {
    "2: √h + n(a) + √l + √absolute": mixed(H, WHOLE, L, Scalar("absolute_gradient")),
    "2: √h + n(a) + √l + ½√absolute": mixed(H, WHOLE, L, Scalar("absolute_gradient", weight=0.5)),
}
"""Bases of the second round, at the first round's best settings."""
BASES = FIRST | SECOND


@dataclass(frozen=True)
class Fine:
    """How a map of pixels is made; no filter where the radius is zero."""

    base: str
    moves: str = "4 x 4 px"
    radius: int = 16
    eps: float = 1e-3
    calibration: str = "otsu"

    @property
    def name(self) -> str:
        """All of it, in words."""
        filtered = f"radius {self.radius}, eps {self.eps:g}" if self.radius else "no filter"
        return f"fine: {self.base}, {self.moves}, {filtered}, {self.calibration}"

    def finish(self, smooth: Tensor, guide: Tensor) -> Tensor:
        """The map of pixels from the average over moved pictures."""
        maps = guided_filter(smooth, guide, radius=self.radius, eps=self.eps) if self.radius else smooth
        return CALIBRATIONS[self.calibration](maps)


def averaged(base: Recipe, moves: tuple[Move, ...], found: Mapping[Move, Mapping[str, Tensor]], size: Move) -> Tensor:
    """The base's map of every moved picture, at the picture's size, moved back and averaged."""
    total = []
    for down, right in moves:
        smooth = F.interpolate(base(found[down, right])[:, None], size=size, mode="bilinear", align_corners=False)
        total.append(moved(smooth, -down, -right)[:, 0])
    return torch.stack(total).mean(dim=0)


LOCALISED: list[Fine] = list(
    dict.fromkeys(
        fine
        for base in FIRST
        for fine in (
            *(Fine(base, moves) for moves in MOVES),
            *(Fine(base, moves, radius=0) for moves in ("still", "4 x 4 px")),
            *(Fine(base, radius=radius, eps=eps) for radius in (8, 16, 24, 32) for eps in (1e-4, 1e-3, 1e-2)),
            Fine(base, calibration="none"),
            Fine(base, "still", calibration="none"),
        )
    )
)
LOCALISED += [Fine(base) for base in SECOND]
"""Measured against masks."""
PERTURBED: list[Fine] = [
    *(Fine(base) for base in FIRST),
    Fine("consensus", "still"),
    Fine("consensus", "2 x 4 px"),
    Fine("consensus", radius=8),
    Fine("consensus", radius=0),
]
PERTURBED += [Fine(base) for base in SECOND]
"""Those whose perturbation is measured too."""
