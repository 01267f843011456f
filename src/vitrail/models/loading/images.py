"""Pictures from files, and the part of a picture that a model sees."""

import math
import os
import re
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError, MissingExtraError, one_line
from vitrail.models.loading.loaded import Sample

try:
    from PIL import Image, ImageOps
except ImportError as error:
    raise MissingExtraError("pictures are read with Pillow: pip install 'vitrail[plots]'") from error

Size = tuple[int, int]
File = BinaryIO | BytesIO | BufferedReader
BROKEN = (OSError, ValueError, SyntaxError, EOFError, struct.error, MemoryError)
"""What Pillow raises on files that are damaged or are no images."""
INTERPOLATIONS = {name: Image.Resampling[name.upper()] for name in ("nearest", "bilinear", "bicubic", "lanczos")}
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "MPO", "ICO", "JPEG2000", "TGA", "AVIF")
"""What is opened. Pillow knows more, and runs an outside program for some of them (gs for PostScript)."""
ADDRESS = re.compile(r" <_io\.\w+ object at 0x[0-9a-f]+>")
MOST_PIXELS = 100_000_000
"""A picture larger than this is no photograph. Its size is read before anything is decoded."""


def open_image(source: Path | File) -> Image.Image:
    """Return the picture in a file as upright RGB, whatever its mode; transparent parts become white."""
    if not isinstance(source, Path):
        with reading():
            return to_rgb(upright(read_header(source)))
    if not os.path.isfile(source):  # which is False for a name that is too long
        if os.path.exists(source):
            raise InputError(f"{source} is not a file.")
        raise InputError(f"there is no image at {source}.")
    with reading(source), source.open("rb") as file:
        return to_rgb(upright(read_header(file)))


@contextmanager
def reading(what: object = None) -> Iterator[None]:
    """Turn what Pillow raises on a picture into an InputError.

    Args:
        what: its name in errors, if it has one.
    """
    name = "the picture" if what is None else what
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except InputError as error:
        if what is None:
            raise
        raise InputError(f"{name}: {error}") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{name} is too large to open: at most {MOST_PIXELS:,} pixels are read.") from error
    except Image.UnidentifiedImageError as error:
        raise InputError(
            f"{name} cannot be read as an image: it is none of {', '.join(FORMATS)}, or its file is damaged."
        ) from error
    except BROKEN as error:
        words = ADDRESS.sub("", one_line(error))  # results of the bench would differ by it
        damaged = "" if getattr(error, "errno", None) else " Its file is damaged or cut short."
        raise InputError(f"{name} cannot be read as an image: {words}.{damaged}") from error


def read_header(file: File, formats: Sequence[str] = ()) -> Image.Image:
    """Open a picture, which is decoded when it is first used, and refuse one that is too large.

    Args:
        formats: which are tried; by default all that are read.
    """
    image = Image.open(file, formats=list(formats) or readable_formats())
    check_size(image.size)
    return image


def readable_formats() -> list[str]:
    """Those of `FORMATS` that this installation of Pillow can read."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def check_size(size: tuple[int, int]) -> None:
    """Refuse a picture that is empty or too large, by its width and height."""
    if min(size) < 1:
        raise InputError(f"the picture is empty: its size is {size[0]} x {size[1]} pixels.")
    if size[0] * size[1] > MOST_PIXELS:
        raise InputError(
            f"the picture has {size[0]} x {size[1]} pixels, but at most {MOST_PIXELS:,} are read. Make it smaller."
        )


def upright(image: Image.Image) -> Image.Image:
    """The picture in the orientation of its EXIF data; its `format` is kept."""
    turned = ImageOps.exif_transpose(image)
    turned.format = image.format
    return turned


def to_rgb(image: Image.Image) -> Image.Image:
    """The picture with three channels of eight bits."""
    if image.mode.startswith("I") or image.mode == "F":
        return _from_deep(image)
    if "A" in image.getbands() or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


SIXTEEN_BITS = ("PNG", "PPM")
"""Formats whose deepest pictures have 16 bits, which some versions of Pillow hand over as 32-bit numbers."""


def _from_deep(image: Image.Image) -> Image.Image:
    """More than eight bits: Pillow would clip them, so they are scaled by the range that their kind has.

    Sixteen bits run from 0 to 65535 and real numbers from 0 to 1. Integers of 32 bits have no such range: whether 255,
    4095 or 65535 is white is known only to whoever wrote them.
    """
    values = np.asarray(image, dtype=np.float64)
    low, high = float(values.min()), float(values.max())  # NaN if any value is
    if image.mode == "F":
        top, kind = 1.0, "real numbers"
    elif image.mode.startswith("I;16") or image.format in SIXTEEN_BITS:
        top, kind = 65535.0, "16-bit numbers"
    else:
        raise InputError(
            f"the picture holds 32-bit integers from {low:g} to {high:g}, and nothing says which of them is white. "
            "Save it with 8 or 16 bits, scaled so that white is the highest value."
        )
    if not 0 <= low <= high <= top:
        raise InputError(
            f"the picture holds {kind} from {low:g} to {high:g}, but only those from 0 (black) to {top:g} (white) have "
            "a meaning. Scale it, or save it with 8 bits."
        )
    return Image.fromarray((values / top * 255).round().astype(np.uint8)).convert("RGB")


def cover(image: Image.Image, scale: Size, filter: Image.Resampling) -> Image.Image:
    """Resized with its proportions kept, so that it just covers the size.

    Of a picture that is much longer than high, only the middle is kept before: its ends would be cut off anyway, and
    resizing them takes memory that grows with the ratio of the sides.
    """
    image = within_ratio(image, scale)
    (height, width), (wide, high) = scale, image.size
    if wide * height <= high * width:
        return image.resize((width, max(height, int(width * high / wide))), filter)
    return image.resize((max(width, int(height * wide / high)), height), filter)


LONGEST_RATIO = 16


def within_ratio(image: Image.Image, scale: Size = (1, 1)) -> Image.Image:
    """The middle of a picture whose proportions differ from the size by more than `LONGEST_RATIO`; else the picture."""
    (height, width), (wide, high) = scale, image.size
    most_wide = max(1, high * width * LONGEST_RATIO // height)
    most_high = max(1, wide * height * LONGEST_RATIO // width)
    if wide <= most_wide and high <= most_high:
        return image
    kept_wide, kept_high = min(wide, most_wide), min(high, most_high)
    left, top = (wide - kept_wide) // 2, (high - kept_high) // 2
    return image.crop((left, top, left + kept_wide, top + kept_high))


def stretch(image: Image.Image, scale: Size, filter: Image.Resampling) -> Image.Image:
    """Resized to exactly the size."""
    return image.resize((scale[1], scale[0]), filter)


def fit(image: Image.Image, scale: Size, filter: Image.Resampling) -> Image.Image:
    """Resized with its proportions kept, so that it just fits into the size."""
    factor = min(scale[0] / image.size[1], scale[1] / image.size[0])
    return image.resize((max(1, round(image.size[0] * factor)), max(1, round(image.size[1] * factor))), filter)


CROP_MODES: dict[str, Callable[[Image.Image, Size, Image.Resampling], Image.Image]] = {
    "center": cover,
    "squash": stretch,
    "border": fit,
}
"""timm's names for what happens before the central part is cut out."""


@dataclass(frozen=True)
class View:
    """The preprocessing of timm: resize, cut out the centre, normalise."""

    size: Size
    crop_pct: float
    crop_mode: str
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, image: Image.Image, *, squash: bool = False) -> Sample:
        """Return the model's view of an RGB picture, as its input and as a picture."""
        filter = INTERPOLATIONS.get(self.interpolation, Image.Resampling.BICUBIC)
        if squash:
            seen = stretch(image, self.size, filter)
        else:
            height, width = (math.floor(side / self.crop_pct) for side in self.size)
            shown = CROP_MODES[self.crop_mode](image, (height, width), filter)
            # The central part; what lies outside the picture has the mean colour.
            seen = Image.new("RGB", (self.size[1], self.size[0]), tuple(round(255 * m) for m in self.mean))
            seen.paste(shown, (-_margin(shown.width, self.size[1]), -_margin(shown.height, self.size[0])))
        values = torch.from_numpy(np.array(seen)).permute(2, 0, 1).to(torch.float32) / 255
        mean, std = (torch.tensor(x, dtype=torch.float32)[:, None, None] for x in (self.mean, self.std))
        return Sample(((values - mean) / std)[None], seen)


def _margin(whole: int, part: int) -> int:
    """Return the margin cut off before the centre, below zero where a border is added; halves go as in torchvision."""
    return round((whole - part) / 2) if whole >= part else -((part - whole) // 2)


def picture_of(pixels: Tensor, processor: Any) -> Image.Image:  # noqa: ANN401
    """The pixels the model gets as a picture, its normalisation undone."""
    values = pixels[0].to(torch.float64)
    if getattr(processor, "do_normalize", False):
        scales = (processor.image_mean, processor.image_std)
        mean, std = (torch.tensor(x, dtype=values.dtype)[:, None, None] for x in scales)
        values = values * std + mean
    if getattr(processor, "do_rescale", False):
        values = values / processor.rescale_factor
    return Image.fromarray(values.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy())
