"""Pictures of data sets, from files, archives and arrays."""

import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrail.errors import InputError, MissingExtraError
from vitrail.evaluate.data.files import Member, one_line

if TYPE_CHECKING:
    from PIL.Image import Image

ONE_CHANNEL = {"1", "L", "P"}


Source = Path | Member


@dataclass(frozen=True)
class PictureFile:
    """A picture in a file or in an archive: call it to decode the picture."""

    key: str
    source: Source

    def __call__(self) -> "Image":
        """The picture as RGB."""
        return open_picture(self.key, self.source)

    def stored(self) -> bytes:
        """The bytes of the file, which are quicker to read than the picture is to decode."""
        try:
            return self.source.read_bytes()
        except OSError as error:
            raise InputError(f"{self.key}: {self.source} cannot be read: {one_line(error)}") from error


def open_picture(key: str, source: Source) -> "Image":
    """The picture as RGB.

    A turn that EXIF asks for is not made: masks, boxes and published numbers belong to the pixels as stored.
    """
    image = _decode(key, source, load=True)
    from vitrail.models.loading.images import to_rgb

    try:
        return to_rgb(image)
    except InputError as error:
        raise InputError(f"{key}: {source}: {error}") from error


def open_values(key: str, source: Source, picture: Source) -> np.ndarray:
    """The numbers of a mask stored as a picture: palette entries or grey levels, one per pixel of its picture."""
    image = _decode(key, source, load=True)
    if image.mode not in ONE_CHANNEL:
        raise InputError(f"{key}: {source} is no mask: it has mode {image.mode}, not one channel of numbers.")
    if image.size != (size := size_of(key, picture)):
        raise InputError(f"{key}: the mask {source} has size {image.size}, its picture {picture} has {size}.")
    return np.asarray(image).astype(np.int64)


def size_of(key: str, source: Source) -> tuple[int, int]:
    """Width and height, without decoding the picture."""
    return _decode(key, source, load=False).size


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


def _decode(key: str, source: Source, *, load: bool) -> "Image":
    require_pillow()
    from PIL import Image

    from vitrail.models.loading.images import BROKEN, check_size, readable_formats

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(BytesIO(source.read_bytes()), formats=readable_formats())
            check_size(image.size)
            if load:
                image.load()
            return image
    except InputError as error:
        raise InputError(f"{key}: {source}: {error}") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{key}: {source} is too large to open safely.") from error
    except FileNotFoundError as error:
        raise InputError(f"{key}: there is no image at {source}.") from error
    except BROKEN as error:
        raise InputError(f"{key}: {source} cannot be read as an image: {one_line(error)}") from error
