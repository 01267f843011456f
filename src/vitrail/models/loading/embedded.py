"""The models inside the package, ready for the command line."""

from typing import TYPE_CHECKING

from vitrail import zoo
from vitrail.models.loading.loaded import Loaded, Sample

if TYPE_CHECKING:
    from PIL.Image import Image

NAMES = ("photo", "sentiment")


def load_embedded(name: str) -> Loaded:
    """An embedded model with its preprocessing or tokenizer."""
    from vitrail.models.zoo.photo import SIZE

    found = zoo.load(name)
    text = name == "sentiment"
    return Loaded(
        model=found.model,
        name=name,
        kind="text" if text else "image",
        task="sequence" if text else "image",
        classes=len(found.class_names),
        class_names=found.class_names,
        preprocess=None if text else _photo,
        tokenizer=found.preprocess.tokenizer if text else None,  # pyright: ignore[reportFunctionMemberAccess]
        image_size=None if text else (SIZE, SIZE),
    )


def _photo(image: "Image", *, squash: bool) -> Sample:
    from vitrail.models.zoo.photo import crop, preprocess

    side = max(image.size)
    shown = crop(image.resize((side, side)) if squash else image)
    return Sample(preprocess(shown), shown)
