"""Stitch pictures together, and crop the map of the whole to the part of the original.

Cui, Fan and Chen, arXiv:2605.11392, Sec. 4.4, leave the geometry open. Here every edge between two pictures lies
between two patches, so that no patch shows both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.errors import InputError, OptionError, suggest
from vitrail.models import picture_path

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]
Images = Float[Tensor, "_ c _ _"]


@dataclass(frozen=True)
class Arrangement:
    """Rows and columns of cells, and the cell of the original; the others are the guides'."""

    rows: int
    columns: int
    own: tuple[int, int]

    @property
    def free(self) -> int:
        """The number of guides that find room."""
        return self.rows * self.columns - 1


LAYOUTS: dict[str, dict[str, Arrangement]] = {
    "beside": {"left": Arrangement(1, 2, (0, 0)), "right": Arrangement(1, 2, (0, 1))},
    "stacked": {"top": Arrangement(2, 1, (0, 0)), "bottom": Arrangement(2, 1, (1, 0))},
    "mosaic": {
        f"{row}_{column}": Arrangement(2, 2, (y, x))
        for y, row in enumerate(("top", "bottom"))
        for x, column in enumerate(("left", "right"))
    },
}
"""By layout and the side on which the original stands, the first side being the usual one."""


def find_arrangement(layout: str, side: str | None = None) -> Arrangement:
    """The arrangement of this name; the original stands left and top where no side is named."""
    if layout not in LAYOUTS:
        raise OptionError(f"there is no layout {layout!r}. {suggest(layout, LAYOUTS)}")
    sides = LAYOUTS[layout]
    if side is not None and side not in sides:
        raise OptionError(f"the layout {layout} has no side {side!r} for the original. {suggest(side, sides)}")
    return sides[side or next(iter(sides))]


@dataclass(frozen=True)
class Canvas:
    """A stitched picture: its size in pixels and patches, and the patch at which each row and column of cells ends."""

    arrangement: Arrangement
    size: Size
    grid: Size
    down: tuple[int, ...]
    across: tuple[int, ...]

    def pixels(self, row: int, column: int) -> tuple[slice, slice]:
        """The pixels of a cell; those that no patch sees belong to the last."""
        side = min(self.size[0] // self.grid[0], self.size[1] // self.grid[1])
        axes = zip((self.down, self.across), self.size, strict=True)
        down, across = ([*(side * end for end in ends[:-1]), size] for ends, size in axes)
        return _slice(down, row), _slice(across, column)

    @property
    def own(self) -> tuple[slice, slice]:
        """The patches of the original, as rows and columns of the grid."""
        row, column = self.arrangement.own
        return _slice(self.down, row), _slice(self.across, column)


def _slice(ends: Sequence[int], number: int) -> slice:
    return slice(ends[number - 1] if number else 0, ends[number])


def resized(arrangement: Arrangement, size: Size, grid: Size) -> Canvas:
    """A canvas of the model's own size, whose cells are equal; of an odd patch the original gets one more."""
    down = _shares(grid[0], arrangement.rows, arrangement.own[0])
    across = _shares(grid[1], arrangement.columns, arrangement.own[1])
    return Canvas(arrangement, size, grid, down, across)


def _shares(patches: int, parts: int, own: int) -> tuple[int, ...]:
    if patches < parts:
        raise OptionError(f"a model of {patches} patches a side has no room for {parts} pictures: use size='native'.")
    each, more = divmod(patches, parts)
    return tuple(accumulate(each + (more if number == own else 0) for number in range(parts)))


def native(arrangement: Arrangement, size: Size, grid: Size) -> Canvas:
    """A larger canvas, in which every cell has the size of the original: as many whole patches as the model saw."""
    side = min(size[0] // grid[0], size[1] // grid[1])
    whole = (grid[0] * arrangement.rows, grid[1] * arrangement.columns)
    down = tuple(grid[0] * (number + 1) for number in range(arrangement.rows))
    across = tuple(grid[1] * (number + 1) for number in range(arrangement.columns))
    return Canvas(arrangement, (whole[0] * side, whole[1] * side), whole, down, across)


SIZES = {"resize": resized, "native": native}


def plan_canvas(layout: str, side: str | None, size: str, seen: tuple[Size, Size]) -> Canvas:
    """The canvas for pictures of which the model sees so many pixels and patches."""
    if size not in SIZES:
        raise OptionError(f"there is no size {size!r}. {suggest(size, SIZES)}")
    return SIZES[size](find_arrangement(layout, side), *seen)


def fitted(images: Images, size: Size) -> Images:
    """The pictures at exactly this size; their proportions may change."""
    if tuple(images.shape[2:]) == size:
        return images
    # The smoothing kernel knows no half precision.
    wide = images.to(torch.promote_types(images.dtype, torch.float32))
    return F.interpolate(wide, size=size, mode="bilinear", align_corners=False, antialias=True).to(images.dtype)


def stitch(images: Images, guides: Sequence[Images], canvas: Canvas) -> Images:
    """The originals and the guides in their cells; with fewer guides than cells they are used again.

    Args:
        guides: batches as large as that of the originals, or of one picture for all.
    """
    whole = images.new_zeros(len(images), images.shape[1], *canvas.size)
    others = cycle(guides)
    for row in range(canvas.arrangement.rows):
        for column in range(canvas.arrangement.columns):
            piece = images if (row, column) == canvas.arrangement.own else next(others)
            if len(piece) not in (1, len(images)):
                raise InputError(f"{len(piece)} guides were given for {len(images)} images: give one, or one for each.")
            down, across = canvas.pixels(row, column)
            room = (down.stop - down.start, across.stop - across.start)
            whole[:, :, down, across] = fitted(piece.to(images), room)
    return whole


def crop(attribution: Attribution, canvas: Canvas, size: Size) -> Attribution:
    """The original's part of what was found on the stitched picture.

    Args:
        size: height and width of the original, over which the map is drawn.
    """
    down, across = canvas.own
    maps = {name: getattr(attribution, name) for name in ("scores", "own", "layers", "heads")}
    parts = {
        name: values.unflatten(-1, canvas.grid)[..., down, across].flatten(-2)
        for name, values in maps.items()
        if values is not None
    }
    if attribution.pixels is not None:
        parts["pixels"] = attribution.pixels[(slice(None), *canvas.pixels(*canvas.arrangement.own))]
    return replace(attribution, grid=(down.stop - down.start, across.stop - across.start), size=size, **parts)


def open_shipped(name: str) -> "Image":
    """A guide picture of the package."""
    from PIL import Image

    with Image.open(picture_path(name)) as picture:
        return picture.convert("RGB")
