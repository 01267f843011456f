"""The examples that come with the package, and the first explanations, made before the first visitor comes."""

from collections.abc import Callable
from functools import partial
from importlib.resources import files

from vitrail.app.rooms import Given
from vitrail.demo import PICTURES, SENTENCES


def _picture(name: str) -> Given:
    return Given("image", files("vitrail.demo").joinpath("pictures", name).read_bytes())


EXAMPLES: dict[str, dict[str, Callable[[], Given]]] = {
    "image": {name: partial(_picture, name) for name in PICTURES},
    "text": {sentence: partial(Given, "text", sentence) for sentence in SENTENCES},
}
FIRST = {kind: next(iter(examples)) for kind, examples in EXAMPLES.items()}


def first_given() -> dict[str, Given]:
    """What a new visitor finds on the page."""
    return {kind: EXAMPLES[kind][name]() for kind, name in FIRST.items()}
