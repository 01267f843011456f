"""A map over its image.

Unsigned maps lie over the image. Signed maps lie below it, as in Cui et al., Sec. 4.2: red for the target, white for
nothing, blue against it, and the image above with transparency.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.plots.captions import check_index, sample_target
from vitrail.plots.colours import stretched, symmetric
from vitrail.plots.panels import Panel, panel_figure
from vitrail.plots.picture import Picture, as_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PATCH = 16
SIDE = 3.6


def overlay(
    attribution: Attribution,
    image: Any = None,  # noqa: ANN401
    *,
    index: int = 0,
    alpha: float | None = None,
    cmap: str | None = None,
    title: str | None = None,
) -> "Figure":
    """A figure with the map of one sample over the image, and a colour bar.

    Args:
        image: see `as_picture`; None draws the map alone. It should show what the model saw: the map is stretched
            over all of it.
        alpha: how opaque the upper layer is: the map where it is unsigned, the image where the map is signed.
        cmap: one of matplotlib's colour maps.
        title: in place of the method and its target.
    """
    index = check_index(attribution, index)
    picture = None if image is None else as_picture(image, index)
    shown = Panel("", sample_map(attribution, index, picture), signed=attribution.signed, alpha=alpha, cmap=cmap)
    heading = f"{attribution.label}\n{sample_target(attribution, index)}" if title is None else title
    return panel_figure([[shown]], picture, heading=heading, side=SIDE)


def map_size(attribution: Attribution, picture: Picture | None) -> tuple[int, int]:
    """Height and width of the map: those of the picture, else of what the model saw."""
    if picture is not None:
        return picture.shape[0], picture.shape[1]
    rows, columns = attribution.grid or (1, 1)
    return attribution.size or (rows * PATCH, columns * PATCH)


def sample_map(attribution: Attribution, index: int, picture: Picture | None) -> Float[Tensor, "h w"]:
    """The map of one sample at the picture's size, within [-1, 1] where it is signed and [0, 1] where not."""
    shown = replace(attribution, scores=attribution.shown)
    values = shown.heatmap(map_size(attribution, picture))[index].detach().double().cpu()
    return symmetric(values) if attribution.signed else stretched(values)


def maps_of(attribution: Attribution, rows: Float[Tensor, "r n"], size: tuple[int, int]) -> Float[Tensor, "r h w"]:
    """Rows of scores, one per patch, as maps of this size."""
    plain = replace(
        attribution, scores=rows.detach().double().cpu(), pixels=None, layers=None, heads=None, own=None, readout=None
    )
    return plain.heatmap(size)
