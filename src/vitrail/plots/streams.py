"""All streams of one attribution as one figure: maps over pictures and shaded texts, one below the other."""

from io import BytesIO
from typing import TYPE_CHECKING, Any

from vitrail.attribution import Attribution
from vitrail.plots.canvas import check_index, new_figure, panel, rendered, sample_target
from vitrail.plots.pictures import overlay
from vitrail.plots.tokens import SentenceRow, pieces, sentence_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def streams_figure(attribution: Attribution, image: Any = None, *, index: int = 0) -> "Figure":  # noqa: ANN401
    """A figure of every stream of one sample, each under its name.

    Args:
        image: what to draw maps over; None draws the maps alone.
    """
    from matplotlib.image import imread

    index = check_index(attribution, index)
    parts = [_figure(name, one, image, index) for name, one in attribution.streams.items()]
    if len(parts) == 1:
        return parts[0]
    arrays = [imread(BytesIO(rendered(part))) for part in parts]
    sizes = [part.get_size_inches() for part in parts]
    whole = new_figure(max(float(width) for width, _ in sizes), sum(float(height) for _, height in sizes))
    top = 0.0
    for array, (width, height) in zip(arrays, sizes, strict=True):
        axes = panel(whole, 0.0, top, float(width), float(height))
        axes.imshow(array, aspect="auto")
        axes.set_axis_off()
        top += float(height)
    return whole


def _figure(name: str, one: Attribution, image: Any, index: int) -> "Figure":  # noqa: ANN401
    heading = f"{name}: {one.label} · {sample_target(one, index)}"
    if one.kind == "image":
        return overlay(one, image, index=index, title=heading)
    return sentence_figure([(heading, [SentenceRow("", pieces(one, index))])])
