"""What the page accepts from a visitor: pictures by their content, within limits that are checked before decoding."""

import struct
import warnings
from dataclasses import dataclass
from io import BytesIO

from PIL import Image

from vitrail.errors import InputError
from vitrail.models.loading.images import BROKEN, to_rgb, upright
from vitrail.models.loading.loaded import is_blank

MEGABYTE, MEGAPIXEL = 2**20, 10**6
KINDS: dict[str, tuple[tuple[int, bytes], ...]] = {
    "PNG": ((0, b"\x89PNG\r\n\x1a\n"),),
    "JPEG": ((0, b"\xff\xd8\xff"),),
    "WEBP": ((0, b"RIFF"), (8, b"WEBP")),
    "GIF": ((0, b"GIF8"),),
    "BMP": ((0, b"BM"),),
}
"""The formats that are decoded, and the bytes by which each is known: (where, what)."""


@dataclass(frozen=True)
class Limits:
    """The largest inputs that are accepted.

    Args:
        upload: bytes of a file.
        pixels: width times height of a picture.
        letters: characters of a text.
        methods: explanations shown at once.
    """

    upload: int = 10 * MEGABYTE
    pixels: int = 40 * MEGAPIXEL
    letters: int = 1000
    methods: int = 8


def read_picture(data: bytes, limits: Limits) -> Image.Image:
    """The picture in these bytes as upright RGB, of an animation the first frame; the file's name plays no part."""
    if len(data) > limits.upload:
        raise InputError(
            f"the file has {len(data) / MEGABYTE:.1f} MB, but at most {limits.upload / MEGABYTE:.0f} MB are accepted. "
            "Make it smaller."
        )
    kind = _kind(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(BytesIO(data), formats=(kind,)) as image:
                _check_size(image.size, limits)  # only the header has been read so far
                image.load()
                return to_rgb(upright(image))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError("the picture is too large to open safely. Make it smaller.") from error
    except InputError:
        raise
    except (*BROKEN, struct.error) as error:
        raise InputError("the picture cannot be read: its file is damaged or cut short. Try another.") from error


def _kind(data: bytes) -> str:
    for kind, marks in KINDS.items():
        if all(data[place : place + len(mark)] == mark for place, mark in marks):
            return kind
    raise InputError(f"this is no picture the page can read: it takes {', '.join(KINDS)}, whatever the file's name.")


def _check_size(size: tuple[int, int], limits: Limits) -> None:
    width, height = size
    if width * height > limits.pixels:
        raise InputError(
            f"the picture has {width} x {height} pixels, but at most {limits.pixels / MEGAPIXEL:.0f} million are "
            "accepted. Make it smaller."
        )


def read_text(text: str, limits: Limits) -> str:
    """The text without spaces around it, if it is one and not too long."""
    plain = text.strip()
    if is_blank(plain):
        raise InputError("there is no text yet: write a sentence.")
    if len(plain) > limits.letters:
        raise InputError(f"the text has {len(plain)} characters, but at most {limits.letters} are accepted.")
    if any("\ud800" <= letter <= "\udfff" for letter in plain):
        raise InputError("the text holds half a character (a lone surrogate). Paste it again.")
    return plain
