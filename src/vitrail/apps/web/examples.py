"""The examples that come with the package; all visitors share their results."""

from functools import cache
from hashlib import sha256
from importlib.resources import as_file, files
from io import BytesIO
from pathlib import Path

from vitrail.apps.web.sessions import Input

PICTURES = {"golf_ball": "golf ball", "temple": "temple"}
SENTENCES = (
    "nothing here is original, yet i loved every minute",
    "the plot is not bad, but the endless dialogue is unbearably dull",
    "despite a clumsy start, this turns out to be a small miracle",
)
TEXTS = {f"sentence-{number + 1}": sentence for number, sentence in enumerate(SENTENCES)}
SIDE = 160


def picture_path(name: str) -> Path:
    """Where the picture of an example lies."""
    with as_file(files("vitrail.apps").joinpath("demo", "pictures", f"{name}.jpg")) as path:
        return path


def _picture(name: str) -> Input:
    path = picture_path(name)
    return Input("image", "", sha256(path.read_bytes()).hexdigest(), path=path)


def _text(sentence: str) -> Input:
    return Input("text", "", sha256(sentence.encode()).hexdigest(), text=sentence)


EXAMPLES: dict[str, Input] = {
    **{name: _picture(name) for name in PICTURES},
    **{name: _text(sentence) for name, sentence in TEXTS.items()},
}


@cache
def thumbnail(name: str) -> bytes:
    """The picture of an example, small, as JPEG."""
    from PIL import Image, ImageOps

    sink = BytesIO()
    with Image.open(picture_path(name)) as picture:
        ImageOps.fit(picture, (SIDE, SIDE)).save(sink, "JPEG", quality=85)
    return sink.getvalue()
