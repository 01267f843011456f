"""Maps as a page shows them: shaded tokens, or pictures so small that fifty images stay under five megabytes."""

from functools import cache
from typing import TYPE_CHECKING, Any

from vitrail.attribution import Attribution
from vitrail.plots.overlay import sample_map
from vitrail.plots.picture import as_picture
from vitrail.plots.pieces import pieces
from vitrail.plots.thumbnails import smallest, with_map

if TYPE_CHECKING:
    from PIL.Image import Image

ROOM = 60_000
"""Bytes for all pictures of an input; a third more once they are written as text, so that fifty need four megabytes."""
STEPS = ((224, 80), (224, 65), (192, 60), (160, 60), (128, 55), (96, 50), (64, 40))
"""Longer side and quality, the first that fits."""


@cache
def _form() -> str:
    """WebP, which every browser shows and which is smaller; JPEG where Pillow was built without it."""
    from PIL import features

    return "WEBP" if features.check("webp") else "JPEG"


def drawn_picture(picture: "Image", share: int) -> bytes:
    """What the model saw.

    Args:
        share: so many pictures have to get on with the room of an input.
    """
    return smallest(as_picture(picture), STEPS, most=ROOM // share, form=_form())


def drawn(made: Attribution, picture: "Image | None", share: int) -> dict[str, Any]:
    """The fields of a map: a picture, or the words of a text."""
    if made.kind == "text":
        return {"pieces": tuple(pieces(made, merge=True))}
    assert picture is not None
    seen = as_picture(picture)
    shown = with_map(sample_map(made, 0, seen), seen, signed=made.signed)
    return {"picture": smallest(shown, STEPS, most=ROOM // share, form=_form())}
