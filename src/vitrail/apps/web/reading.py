"""Read pictures and texts that visitors hand in. The format is known from the content and checked before decoding."""

import struct
import warnings
from base64 import b64encode
from io import BytesIO

from PIL import Image, ImageOps

from vitrail.apps.web.limits import MEGABYTE, MEGAPIXEL, Limits
from vitrail.errors import InputError
from vitrail.models.loading.images import BROKEN, to_rgb, upright
from vitrail.models.texts import is_blank

KINDS: dict[str, tuple[tuple[int, bytes], ...]] = {
    "PNG": ((0, b"\x89PNG\r\n\x1a\n"),),
    "JPEG": ((0, b"\xff\xd8\xff"),),
    "WEBP": ((0, b"RIFF"), (8, b"WEBP")),
    "GIF": ((0, b"GIF8"),),
    "BMP": ((0, b"BM"),),
}
"""The formats that are decoded, and the bytes by which each is known: (where, what)."""
QUALITY, THUMBNAIL = 92, 96
DEEP = 4
"""Pictures of more than eight bits take that much more memory, so fewer pixels of them are accepted."""


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
                _check_size(image, limits)  # only the header has been read so far
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
    raise InputError(f"this is not a picture the server can read: it takes {', '.join(KINDS)}, by content.")


def _check_size(image: Image.Image, limits: Limits) -> None:
    width, height = image.size
    most = limits.pixels // (DEEP if image.mode.startswith(("I", "F")) else 1)
    if width * height > most:
        raise InputError(
            f"the picture has {width} x {height} pixels, but at most {most / MEGAPIXEL:g} million are accepted for "
            "its kind. Make it smaller."
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


def data_url(picture: Image.Image, *, form: str = "JPEG") -> str:
    """The picture as an address that holds all of it."""
    sink = BytesIO()
    picture.save(sink, form, quality=QUALITY, subsampling=0)
    return f"data:image/{form.lower()};base64,{b64encode(sink.getvalue()).decode()}"


def thumbnail(picture: Image.Image) -> str:
    """The middle of the picture, small."""
    return data_url(ImageOps.fit(picture, (THUMBNAIL, THUMBNAIL)))
