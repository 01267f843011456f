"""Pictures from files, and the part of a picture that a model sees."""

import math
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from vitrail.errors import InputError
from vitrail.models.loading.loaded import Sample

Size = tuple[int, int]
BROKEN = (OSError, ValueError, SyntaxError, EOFError, struct.error, MemoryError)
"""What Pillow raises on files that are damaged or are no images."""
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def open_image(path: Path) -> Image.Image:
    """The picture in a file as upright RGB, whatever its mode; transparent parts become white."""
    if not path.is_file():
        raise InputError(f"there is no image at {path}." if not path.exists() else f"{path} is not a file.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Pillow only warns below twice its limit; a picture that large is no photograph.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                image.load()
                return to_rgb(upright(image))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"{path} is too large to open safely: Pillow's limit is {Image.MAX_IMAGE_PIXELS}.") from error
    except BROKEN as error:
        raise InputError(f"{path} cannot be read as an image: {error}") from error


def images_in(folder: Path) -> list[Path]:
    """The images right inside a folder, by name; other files and hidden ones are passed over."""
    known = Image.registered_extensions()
    found = sorted(
        p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in known and not p.name.startswith(".")
    )
    if not found:
        raise InputError(f"there are no images in {folder}.")
    return found


def upright(image: Image.Image) -> Image.Image:
    """The picture turned as its EXIF data asks for; it still knows which format it was read from."""
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
    """Resized with its proportions kept, so that it just covers the size."""
    (height, width), (wide, high) = scale, image.size
    if wide * height <= high * width:
        return image.resize((width, max(height, int(width * high / wide))), filter)
    return image.resize((max(width, int(height * wide / high)), height), filter)


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
    """How timm shows a picture to a model: resize, cut out the centre, normalise."""

    size: Size
    crop_pct: float
    crop_mode: str
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, image: Image.Image, *, squash: bool = False) -> Sample:
        """What the model sees of an RGB picture, as its input and as a picture."""
        filter = INTERPOLATIONS.get(self.interpolation, Image.Resampling.BICUBIC)
        if squash:
            seen = stretch(image, self.size, filter)
        else:
            scale = (math.floor(self.size[0] / self.crop_pct), math.floor(self.size[1] / self.crop_pct))
            seen = self._centre(CROP_MODES[self.crop_mode](image, scale, filter))
        return Sample(self._normalise(seen), seen)

    def _centre(self, image: Image.Image) -> Image.Image:
        """The central part; what lies outside the picture has the mean colour."""
        (height, width), (wide, high) = self.size, image.size
        left, top = _margin(wide, width), _margin(high, height)
        canvas = Image.new("RGB", (width, height), tuple(round(255 * m) for m in self.mean))
        canvas.paste(image, (-left, -top))
        return canvas

    def _normalise(self, image: Image.Image) -> Tensor:
        values = torch.from_numpy(np.array(image)).permute(2, 0, 1).to(torch.float32) / 255
        mean, std = (torch.tensor(x, dtype=torch.float32)[:, None, None] for x in (self.mean, self.std))
        return ((values - mean) / std)[None]


def _margin(whole: int, part: int) -> int:
    """How much is cut off before the centre, below zero where a border is added; halves go as in torchvision."""
    return round((whole - part) / 2) if whole >= part else -((part - whole) // 2)
