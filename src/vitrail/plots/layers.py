"""What every layer says: layers x tokens for text (AttCAT, Fig. 4), a map per layer for images (VTranM, Fig. 1)."""

from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.errors import OptionError
from vitrail.plots.captions import check_index, sample_target
from vitrail.plots.colours import stretched, symmetric
from vitrail.plots.heatmap import token_heatmap
from vitrail.plots.overlay import map_size, maps_of
from vitrail.plots.panels import Panel, panel_figure
from vitrail.plots.picture import as_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 6


def layer_heatmap(attribution: Attribution, *, index: int = 0) -> "Figure":
    """A figure of layers x tokens, every row divided by its largest magnitude, with the final scores below."""
    layers, index = _layers(attribution), check_index(attribution, index)
    if attribution.kind != "text":
        raise OptionError(
            "a heat map of layers x tokens is for text. For an image, use layer_maps(attribution, image)."
        )
    summed = bool((layers.sum(dim=1) - attribution.scores).abs().max() <= 1e-4 * attribution.scores.abs().max())
    names = [*_names(attribution, layers), "Sum" if summed else "Scores"]
    return token_heatmap(attribution, layers[index], names, index, signed=attribution.signed)


def layer_maps(attribution: Attribution, image: Any = None, *, index: int = 0) -> "Figure":  # noqa: ANN401
    """A figure with one small map per layer, each on its own scale.

    Args:
        image: see `as_picture`.
    """
    layers, index = _layers(attribution), check_index(attribution, index)
    if attribution.kind != "image":
        raise OptionError("small maps of layers are for images. For a text, use layer_heatmap(attribution).")
    picture = None if image is None else as_picture(image, index)
    maps = maps_of(attribution, layers[index], map_size(attribution, picture))
    scale = symmetric if attribution.signed else stretched
    panels: list[Panel | None] = [] if picture is None else [Panel("input")]
    names = _names(attribution, layers)
    panels += [Panel(name, scale(one), signed=attribution.signed) for name, one in zip(names, maps, strict=True)]
    what = "part by part" if "parts" in attribution.provenance else "layer by layer"
    heading = f"{attribution.label}, {what}\n{sample_target(attribution, index)}"
    lines = -(-len(panels) // (COLUMNS + 1))
    length = -(-len(panels) // lines)
    return panel_figure([panels[i : i + length] for i in range(0, len(panels), length)], picture, heading=heading)


def _names(attribution: Attribution, layers: Float[Tensor, "b l n"]) -> list[str]:
    """What each map is: a layer, or a part that the method names."""
    return list(attribution.provenance.get("parts") or (f"L{number}" for number in range(layers.shape[1])))


def _layers(attribution: Attribution) -> Float[Tensor, "b l n"]:
    if attribution.layers is None:
        raise OptionError(
            f"{attribution.label} keeps no scores per layer. Use a method that does, such as attcat, cat or tokentm."
        )
    return attribution.layers
