"""The examples that come with the package, and the first explanations, made before the first visitor comes."""

from base64 import b64encode
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from io import BytesIO

from vitrail.apps.demo import PICTURES, SENTENCES
from vitrail.apps.web.rooms import Given


def _picture(name: str) -> Given:
    return Given("image", files("vitrail.apps.demo").joinpath("pictures", name).read_bytes())


EXAMPLES: dict[str, dict[str, Callable[[], Given]]] = {
    "image": {name: partial(_picture, name) for name in PICTURES},
    "text": {sentence: partial(Given, "text", sentence) for sentence in SENTENCES},
}
SIDE = 88
"""Pixels of a thumbnail."""
FIRST = {kind: next(iter(examples)) for kind, examples in EXAMPLES.items()}


def first_given() -> dict[str, Given]:
    """What a new visitor finds on the page."""
    return {kind: EXAMPLES[kind][name]() for kind, name in FIRST.items()}


def thumbnails() -> str:
    """A style sheet that shows each picture on its button, so that no file needs to be served."""
    return "".join(
        f"#example-{name.split('.')[0]}::before {{ background-image: url({_small(EXAMPLES['image'][name]())}) }}\n"
        for name in EXAMPLES["image"]
    )


def _small(given: Given) -> str:
    from PIL import Image, ImageOps

    assert isinstance(given.data, bytes)
    sink = BytesIO()
    with Image.open(BytesIO(given.data)) as picture:
        ImageOps.fit(picture, (SIDE, SIDE)).save(sink, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{b64encode(sink.getvalue()).decode()}"
