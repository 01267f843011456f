"""What every head says by itself, beside what they say together (GradToken, Fig. 10)."""

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from vitrail.attribution import Attribution
from vitrail.errors import OptionError
from vitrail.plots.captions import check_index, sample_target
from vitrail.plots.colours import symmetric
from vitrail.plots.heatmap import token_heatmap
from vitrail.plots.overlay import map_size, maps_of, sample_map
from vitrail.plots.panels import Panel, panel_figure
from vitrail.plots.picture import as_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 6
"""Heads in a line."""


def head_grid(attribution: Attribution, image: Any = None, *, index: int = 0) -> "Figure":  # noqa: ANN401
    """A figure with one signed map per head, all on one scale, and the map they make together.

    Args:
        image: see `as_picture`. A text is drawn as heads x tokens instead.
    """
    if attribution.heads is None:
        raise OptionError(
            f"{attribution.label} keeps no map per head. Use a method that does, such as gradtoken: "
            "vitrail.explain(model, inputs, 'gradtoken')."
        )
    index = check_index(attribution, index)
    names = [f"head {h}" for h in range(attribution.heads.shape[1])]
    heading = f"{attribution.label}\n{sample_target(attribution, index)}"
    if attribution.kind == "text":
        return token_heatmap(attribution, attribution.heads[index], [*names, "together"], index, signed=True)
    picture = None if image is None else as_picture(image, index)
    maps = symmetric(maps_of(attribution, attribution.heads[index], map_size(attribution, picture)))
    together = Panel("together", sample_map(attribution, index, picture), signed=attribution.signed)
    heads = [Panel(name, values, signed=True) for name, values in zip(names, maps, strict=True)]
    start = [together] if picture is None else [Panel("input"), together]
    return panel_figure(_lines(start, heads), picture, heading=heading)


def _lines(start: list[Panel], heads: list[Panel]) -> list[list[Panel | None]]:
    """All in one line if they fit; else the first column for input and result, and heads beside them."""
    if len(start) + len(heads) <= COLUMNS:
        return [[*start, *heads]]
    count = max(len(start), -(-len(heads) // COLUMNS))
    length = -(-len(heads) // count)
    lines = [heads[i : i + length] for i in range(0, len(heads), length)]
    return [[first, *line] for first, line in zip_longest(start, lines, fillvalue=None) if line is not None]
