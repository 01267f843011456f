"""One attribution as one figure, drawn as its kind asks for."""

import inspect
from typing import TYPE_CHECKING, Any

from vitrail.attribution import Attribution
from vitrail.errors import OptionError, suggest
from vitrail.plots.overlay import overlay
from vitrail.plots.sentence import sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = {
    "image": set(inspect.signature(overlay).parameters) - {"attribution", "image", "index"},
    "text": set(inspect.signature(sentence).parameters) - {"attribution", "index"},
}


def plot_attribution(
    attribution: Attribution,
    image: Any = None,  # noqa: ANN401
    *,
    index: int = 0,
    **style: Any,  # noqa: ANN401
) -> "Figure":
    """A figure of one sample: the map over the image, or the sentence with its tokens shaded.

    Args:
        image: what to draw the map over; a sentence needs none.
        index: which sample of the batch.
        **style: the keywords of `overlay` for images, of `sentence` for text.
    """
    wrong = sorted(set(style) - STYLES[attribution.kind])
    if wrong:
        raise OptionError(
            f"a picture of {attribution.kind} has no style {wrong[0]!r}. {suggest(wrong[0], STYLES[attribution.kind])}"
        )
    if attribution.kind == "text":
        return sentence(attribution, index=index, **style)
    return overlay(attribution, image, index=index, **style)
