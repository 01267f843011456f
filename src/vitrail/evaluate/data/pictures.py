"""Pictures and masks of data sets: from files, archives, arrays and outlines."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import InputError, MissingExtraError, one_line
from vitrail.evaluate.data.examples import IGNORE, Mask
from vitrail.evaluate.data.files import Member

if TYPE_CHECKING:
    from PIL.Image import Image


ONE_CHANNEL = {"1", "L", "P"}


Source = Path | Member
ORIENTATION = 0x0112
"""The EXIF entry that says how a picture is turned."""


@dataclass(frozen=True)
class PictureFile:
    """A picture in a file or in an archive: call it to decode the picture.

    Args:
        upright: turn it as its EXIF data say. Pictures of published sets are not turned: their masks, boxes and
            numbers belong to the pixels as stored.
    """

    key: str
    source: Source
    upright: bool = False

    def __call__(self) -> "Image":
        """The picture as RGB."""
        with _reading(self.key, self.source) as file:
            from vitrail.models.loading.images import read_header, to_rgb, upright

            image = read_header(file)
            return to_rgb(upright(image) if self.upright else image)

    @property
    def is_turned(self) -> bool:
        """Return True if the picture is turned when it is read; False where it cannot be read."""
        if not self.upright:
            return False
        try:
            with _reading(self.key, self.source) as file:
                from vitrail.models.loading.images import read_header

                return read_header(file).getexif().get(ORIENTATION, 1) != 1
        except InputError:
            return False

    def stored(self) -> bytes:
        """The bytes of the file, which are quicker to read than the picture is to decode."""
        try:
            return self.source.read_bytes()
        except OSError as error:
            raise InputError(f"{self.key}: {self.source} cannot be read: {one_line(error)}") from error


def open_mask(key: str, source: Source, picture: Source, meanings: Mapping[int, int]) -> Mask:
    """A mask stored as a picture: palette entries or grey levels, one per pixel of its picture, by their meanings."""
    with _reading(key, source) as file:
        from vitrail.models.loading.images import read_header

        image = read_header(file)
        image.load()
    if image.mode not in ONE_CHANNEL:
        raise InputError(f"{key}: {source} is no mask: it has mode {image.mode}, not one channel of numbers.")
    if image.size != (size := size_of(key, picture)):
        raise InputError(f"{key}: the mask {source} has size {image.size}, its picture {picture} has {size}.")
    return translate(key, np.asarray(image).astype(np.int64), meanings)


def size_of(key: str, source: Source) -> tuple[int, int]:
    """Width and height, without decoding the picture."""
    with _reading(key, source) as file:
        from vitrail.models.loading.images import read_header

        return read_header(file).size


def from_array(pixels: np.ndarray) -> "Image":
    """A picture from 8-bit numbers `[y, x, 3]`."""
    require_pillow()
    from PIL import Image

    return Image.fromarray(pixels)


def require_pillow() -> None:
    """Raise an error that says what to install where Pillow is absent."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("pictures are read with Pillow: pip install 'vitrail[data]'") from error


@contextmanager
def _reading(key: str, source: Source) -> Iterator[BytesIO]:
    """Give the bytes of a picture, and name the picture in the error where they cannot be read."""
    require_pillow()
    from vitrail.models.loading.images import reading

    if isinstance(source, Path) and not source.exists():
        raise InputError(f"{key}: there is no image at {source}.")
    with reading(f"{key}: {source}"):
        yield BytesIO(source.read_bytes())


def translate(key: str, values: np.ndarray, meanings: Mapping[int, int]) -> Mask:
    """A mask whose numbers are replaced by what they mean; a number without a meaning is an error."""
    found = np.unique(values).tolist()
    unknown = [value for value in found if value not in meanings]
    if unknown:
        raise InputError(f"{key}: the mask holds {unknown}, but only {sorted(meanings)} mean something.")
    mask = np.zeros(values.shape, dtype=np.int64)
    for value in found:
        mask[values == value] = meanings[value]
    return torch.from_numpy(mask)


def resize_mask(mask: Mask, size: tuple[int, int]) -> Int[Tensor, "height width"]:
    """The mask at another height and width: each new pixel takes the value under its centre, as Pillow's nearest."""
    rows, columns = (
        ((torch.arange(new, dtype=torch.float64) + 0.5) * old / new).long()
        for new, old in zip(size, mask.shape, strict=True)
    )
    return mask[rows][:, columns]


Polygon = Float[np.ndarray, "p 2"]
Inside = Bool[np.ndarray, "y x"]
Size = tuple[int, int]


@dataclass(frozen=True)
class Shape:
    """One object, or a crowd of them.

    Args:
        polygons: corners in pixels, x before y; the parts of one object.
        runs: instead of polygons, how many pixels outside and inside follow one another, column by column.
        crowd: several objects of one class that were not separated.
    """

    label: int
    polygons: tuple[Polygon, ...] = ()
    runs: tuple[int, ...] = ()
    crowd: bool = False


def fill(polygon: Polygon, size: Size) -> Inside:
    """The pixels whose centre lies in a polygon, by the even-odd rule.

    Along a row, every edge that crosses it switches between outside and inside from the first centre after it on.
    """
    height, width = size
    switches = np.zeros((height, width + 1), dtype=np.uint8)  # only their parity counts
    centres = np.arange(height) + 0.5
    (x0, y0), (x1, y1) = polygon.T[:, :, None], np.roll(polygon, -1, axis=0).T[:, :, None]
    edges, rows = np.nonzero((y0 <= centres) != (y1 <= centres))
    along, down = (x1 - x0)[edges, 0], (y1 - y0)[edges, 0]
    crossings = x0[edges, 0] + (centres[rows] - y0[edges, 0]) * along / down
    np.add.at(switches, (rows, np.ceil(crossings - 0.5).clip(0, width).astype(np.int64)), 1)
    return (switches.cumsum(axis=1, dtype=np.uint8)[:, :width] & 1).astype(bool)


def unroll(runs: Sequence[int], size: Size) -> Inside:
    """The pixels of a run-length code, which begins outside; an error where it does not fill the picture."""
    height, width = size
    flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return flat.reshape(width, height).T


def paint(shapes: Sequence[Shape], size: Size) -> Mask:
    """The class of each pixel; of objects that overlap the smaller is on top, crowds alone are ignored."""
    mask = np.zeros(size, dtype=np.int64)
    for shape in (shape for shape in shapes if shape.crowd):
        mask[_inside(shape, size)] = IGNORE
    covers = [(shape.label, _inside(shape, size)) for shape in shapes if not shape.crowd]
    for label, inside in sorted(covers, key=lambda cover: -int(cover[1].sum())):
        mask[inside] = label
    return torch.from_numpy(mask)


def _inside(shape: Shape, size: Size) -> Inside:
    if shape.runs:
        return unroll(shape.runs, size)
    inside = np.zeros(size, dtype=bool)
    for polygon in shape.polygons:
        inside |= fill(polygon, size)
    return inside
