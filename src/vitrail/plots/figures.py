"""Figures of attributions.

One attribution as one figure; every head beside their sum (GradToken, Fig. 10); every layer, as layers x tokens for
text (AttCAT, Fig. 4) or as a map per layer for images (VTranM, Fig. 1); and several methods side by side, with targets
as rows and methods as columns, or sentences one below the other.
"""

import inspect
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.errors import OptionError, suggest
from vitrail.plots.canvas import check_index, common_target, stretched, symmetric
from vitrail.plots.pictures import (
    Panel,
    Picture,
    as_picture,
    map_size,
    maps_of,
    overlay,
    panel_figure,
    picture_of,
    sample_map,
)
from vitrail.plots.signals import is_signal, signal_figure
from vitrail.plots.streams import streams_figure
from vitrail.plots.tokens import SentenceRow, join_runs, pieces, sentence, sentence_figure, token_heatmap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = {
    "image": set(inspect.signature(overlay).parameters) - {"attribution", "image", "index"},
    "text": set(inspect.signature(sentence).parameters) - {"attribution", "index"},
    "signal": set(inspect.signature(signal_figure).parameters) - {"attribution", "signal", "index"},
}


def plot_attribution(
    attribution: Attribution,
    image: Any = None,  # noqa: ANN401
    *,
    index: int = 0,
    **style: Any,  # noqa: ANN401
) -> "Figure":
    """A figure of one sample: the map over the image, or the sentence with its tokens shaded; all streams if several.

    Audio is a wave with shaded frames, a table has bars, a video is a film strip.

    Args:
        image: what to draw the map over: a picture, a wave, a video; a sentence needs none.
        index: which sample of the batch.
        **style: the keywords of `overlay` for images, of `sentence` for text, of `signal_figure` for audio, tables and
            video; of several streams, they draw the main one alone.
    """
    if attribution.streams and not style:
        return streams_figure(attribution, image, index=index)
    kind = "signal" if is_signal(attribution) else attribution.kind
    wrong = sorted(set(style) - STYLES[kind])
    if wrong:
        raise OptionError(f"a picture of {kind} has no style {wrong[0]!r}. {suggest(wrong[0], STYLES[kind])}")
    if kind == "signal":
        return signal_figure(attribution, image, index=index, **style)
    if attribution.kind == "text":
        return sentence(attribution, index=index, **style)
    return overlay(attribution, image, index=index, **style)


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
    heading = f"{attribution.label}\n{attribution.title(index)}"
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
    heading = f"{attribution.label}, {what}\n{attribution.title(index)}"
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


LONGEST = 7
"""More panels than this in a single row are spread over several lines."""


def comparison_sheet(
    rows: Sequence[Sequence[Attribution]],
    image: Any = None,  # noqa: ANN401
    *,
    index: int = 0,
    row_titles: Sequence[str] | None = None,
) -> "Figure":
    """A figure of all attributions: for images a sheet that starts with the input, for text one line per method.

    Args:
        rows: one row per target or per image, one attribution per method.
        image: see `as_picture`; a list has one image for each row.
        row_titles: in place of the targets.
    """
    kinds = {attribution.kind for row in rows for attribution in row}
    if len(kinds) != 1 or not all(len(row) for row in rows):
        found = f"a mix of {' and '.join(sorted(kinds))}" if kinds else "none, or an empty row"
        raise OptionError(f"a sheet needs rows of attributions that are all images or all texts, but got {found}.")
    index = check_index(rows[0][0], index)
    titles = [_title(row, index) for row in rows] if row_titles is None else list(row_titles)
    if len(titles) != len(rows):
        raise OptionError(f"{len(titles)} row titles were given for {len(rows)} rows. Give one for each.")
    return DRAW[kinds.pop()](rows, image, index, titles)


def _title(row: Sequence[Attribution], index: int) -> str:
    """What a row explains, by the names of its classes where they are known."""
    named = {attribution.title(index) for attribution in row if "classes" in attribution.provenance}
    return named.pop() if len(named) == 1 else common_target(row, index)


def _image_sheet(rows: Sequence[Sequence[Attribution]], image: Any, index: int, titles: list[str]) -> "Figure":  # noqa: ANN401
    images = image if isinstance(image, list) else [image] * len(rows)
    if len(images) != len(rows):
        raise OptionError(f"{len(images)} images were given for {len(rows)} rows. Give one, or one for each.")
    pictures = [picture_of(row[0], one, index) for row, one in zip(rows, images, strict=True)]
    grid = [_panels(row, picture, index) for row, picture in zip(rows, pictures, strict=True)]
    if len(grid) == 1:
        return panel_figure(_spread(grid[0]), pictures[0], heading=titles[0])
    return panel_figure(grid, pictures[0], row_titles=titles)


def _panels(row: Sequence[Attribution], picture: Picture | None, index: int) -> list[Panel | None]:
    start: list[Panel | None] = [] if picture is None else [Panel("input", picture=picture)]
    maps = (Panel(a.label, sample_map(a, index, picture), signed=a.signed, picture=picture) for a in row)
    return [*start, *maps]


def _spread(panels: list[Panel | None]) -> list[list[Panel | None]]:
    """The panels of a single row in lines of almost equal length."""
    lines = -(-len(panels) // LONGEST)
    length = -(-len(panels) // lines)
    return [panels[i : i + length] for i in range(0, len(panels), length)]


def _text_sheet(rows: Sequence[Sequence[Attribution]], image: Any, index: int, titles: list[str]) -> "Figure":  # noqa: ANN401
    groups = [
        (title, [SentenceRow(a.label, join_runs(pieces(a, index))) for a in row])
        for title, row in zip(titles, rows, strict=True)
    ]
    return sentence_figure(groups)


DRAW = {"image": _image_sheet, "text": _text_sheet}
