"""Figures of attributions.

One attribution as one figure; every head beside their sum (GradToken, Fig. 10); every layer, as layers x tokens for
text (AttCAT, Fig. 4) or as a map per layer for images (VTranM, Fig. 1); several methods side by side, with targets as
rows and methods as columns, or sentences one below the other; all streams of one attribution, one below the other.
"""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.errors import OptionError, suggest
from vitrail.plots import canvas
from vitrail.plots.pictures import (
    Panel,
    map_size,
    maps_of,
    overlay,
    panel_figure,
    placed,
    sample_map,
    view_of,
)
from vitrail.plots.signals import draw_wave, is_signal, signal_figure
from vitrail.plots.tokens import SentenceRow, join_runs, pieces, sentence, sentence_figure, token_heatmap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = {
    "image": set(inspect.signature(overlay).parameters) - {"attribution", "image", "index"},
    "text": set(inspect.signature(sentence).parameters) - {"attribution", "index"},
    "signal": set(inspect.signature(signal_figure).parameters) - {"attribution", "signal", "index"},
}


def plot_attribution(attribution: Attribution, image: Any = None, *, index: int = 0, **style: Any) -> "Figure":  # noqa: ANN401
    """A figure of one sample: the map over the image, or the sentence with its tokens shaded; all streams if several.

    Audio is a wave with shaded frames, a table has bars, a video is a film strip.

    Args:
        image: what to draw the map over: a picture, a wave, a video; a sentence needs none.
        index: which sample of the batch.
        **style: the keywords of `overlay` for images, of `sentence` for text, of `signal_figure` for audio, tables and
            video; of several streams, they draw the main one alone.
    """
    if attribution.streams and not style:
        index = canvas.check_index(attribution, index)
        title = f"{stream_label(attribution)} · {attribution.title(index)}"
        return streams_sheet([(title, attribution)], image, index=index)
    kind = "signal" if is_signal(attribution) else attribution.kind
    wrong = sorted(set(style) - STYLES[kind])
    if wrong:
        raise OptionError(f"a picture of {kind} has no style {wrong[0]!r}. {suggest(wrong[0], STYLES[kind])}")
    if kind == "text":
        return sentence(attribution, index=index, **style)
    draw = signal_figure if kind == "signal" else overlay
    return draw(attribution, image, index=index, **style)


COLUMNS = 6
"""Heads in a line."""
LONGEST = 7
"""More panels than this in a single row are spread over several lines."""


def _spread(panels: Sequence[Panel | None], lines: int) -> list[list[Panel | None]]:
    """The panels in so many lines of almost equal length."""
    length = -(-len(panels) // lines)
    return [list(panels[i : i + length]) for i in range(0, len(panels), length)]


def head_grid(attribution: Attribution, image: Any = None, *, index: int = 0) -> "Figure":  # noqa: ANN401
    """A figure with one signed map per head, all on one scale, and the map they make together.

    Args:
        image: see `overlay`. A text is drawn as heads x tokens instead.
    """
    if attribution.heads is None:
        raise OptionError(
            f"{attribution.label} keeps no map per head. Use a method that does, such as gradtoken: "
            "vitrail.explain(model, inputs, 'gradtoken')."
        )
    index = canvas.check_index(attribution, index)
    names = [f"head {h}" for h in range(attribution.heads.shape[1])]
    heading = f"{attribution.label}\n{attribution.title(index)}"
    if attribution.kind == "text":
        return token_heatmap(attribution, attribution.heads[index], [*names, "together"], index, signed=True)
    view = view_of(attribution, image, index)
    picture, region = view.picture, view.region
    maps = canvas.symmetric(maps_of(attribution, attribution.heads[index], map_size(attribution, picture, region)))
    maps = placed(maps, picture, region)
    together = Panel("together", sample_map(attribution, index, picture, region), signed=attribution.signed)
    heads = [Panel(name, values, signed=True) for name, values in zip(names, maps, strict=True)]
    start = [together] if picture is None else [Panel("input"), together]
    if len(start) + len(heads) <= COLUMNS:
        return panel_figure([[*start, *heads]], picture, heading=heading)
    lines = _spread(heads, max(len(start), -(-len(heads) // COLUMNS)))
    beside = [[first, *line] for first, line in zip_longest(start, lines) if line is not None]
    return panel_figure(beside, picture, heading=heading)


def layer_heatmap(attribution: Attribution, *, index: int = 0) -> "Figure":
    """A figure of layers x tokens, every row divided by its largest magnitude, with the final scores below."""
    layers, index = _layers(attribution), canvas.check_index(attribution, index)
    if attribution.kind != "text":
        raise OptionError(
            "a heat map of layers x tokens is for text. For an image, use layer_maps(attribution, image)."
        )
    summed = bool((layers.sum(dim=1) - attribution.scores).abs().max() <= 1e-4 * attribution.scores.abs().max())
    names = [*_names(attribution, layers), "Sum" if summed else "Scores"]
    return token_heatmap(attribution, layers[index], names, index, signed=attribution.signed)


def layer_maps(attribution: Attribution, image: Any = None, *, index: int = 0) -> "Figure":  # noqa: ANN401
    """A figure with one small map per layer, each on its own scale, over an image (see `overlay`)."""
    layers, index = _layers(attribution), canvas.check_index(attribution, index)
    if attribution.kind != "image":
        raise OptionError("small maps of layers are for images. For a text, use layer_heatmap(attribution).")
    view = view_of(attribution, image, index)
    picture, region = view.picture, view.region
    maps = maps_of(attribution, layers[index], map_size(attribution, picture, region))
    panels, signed = [] if picture is None else [Panel("input")], attribution.signed
    for name, values in zip(_names(attribution, layers), maps, strict=True):
        panels.append(Panel(name, placed(canvas.scaled(values, signed=signed), picture, region), signed=signed))
    what = "part by part" if "parts" in attribution.provenance else "layer by layer"
    heading = f"{attribution.label}, {what}\n{attribution.title(index)}"
    return panel_figure(_spread(panels, -(-len(panels) // LONGEST)), picture, heading=heading)


def _names(attribution: Attribution, layers: Float[Tensor, "b l n"]) -> list[str]:
    """Return the name of each map: a layer, or a part that the method names."""
    return list(attribution.provenance.get("parts") or (f"L{number}" for number in range(layers.shape[1])))


def _layers(attribution: Attribution) -> Float[Tensor, "b l n"]:
    if attribution.layers is None:
        raise OptionError(
            f"{attribution.label} keeps no scores per layer. Use a method that does, such as attcat, cat or tokentm."
        )
    return attribution.layers


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
        image: see `overlay`; a list has one image for each row.
        row_titles: in place of the targets.
    """
    kinds = {attribution.kind for row in rows for attribution in row}
    if len(kinds) != 1 or not all(len(row) for row in rows):
        found = f"a mix of {' and '.join(sorted(kinds))}" if kinds else "none, or an empty row"
        raise OptionError(f"a sheet needs rows of attributions that are all images or all texts, but got {found}.")
    index = canvas.check_index(rows[0][0], index)
    titles = list(row_titles or ())
    for row in rows if row_titles is None else ():  # what a row explains, by the names of its classes if they are known
        named = {attribution.title(index) for attribution in row if "classes" in attribution.provenance}
        titles.append(named.pop() if len(named) == 1 else canvas.common_target(row, index))
    if len(titles) != len(rows):
        raise OptionError(f"{len(titles)} row titles were given for {len(rows)} rows. Give one for each.")
    if kinds == {"image"}:
        return _image_sheet(rows, image, index, titles)
    lines = [[SentenceRow(a.label, join_runs(pieces(a, index))) for a in row] for row in rows]
    return sentence_figure(list(zip(titles, lines, strict=True)))


def _image_sheet(rows: Sequence[Sequence[Attribution]], image: Any, index: int, titles: list[str]) -> "Figure":  # noqa: ANN401
    images = image if isinstance(image, list) else [image] * len(rows)
    if len(images) != len(rows):
        raise OptionError(f"{len(images)} images were given for {len(rows)} rows. Give one, or one for each.")
    grid = []
    for row, one in zip(rows, images, strict=True):
        views = [view_of(attribution, one, index) for attribution in row]
        line = [] if views[0].picture is None else [Panel("input", picture=views[0].picture)]
        for attribution, view in zip(row, views, strict=True):
            values = sample_map(attribution, index, view.picture, view.region)
            line.append(Panel(attribution.label, values, signed=attribution.signed, picture=view.picture))
        grid.append(line)
    picture = grid[0][0].picture
    if len(grid) == 1:
        lines = _spread(grid[0], -(-len(grid[0]) // LONGEST))
        return panel_figure(lines, picture, heading=titles[0])
    return panel_figure(grid, picture, row_titles=titles)


WIDE, TALL = 7.0, 1.6
"""Inches of a sound."""
MARGIN, HEADING = 0.2, 9.0


def stream_label(attribution: Attribution) -> str:
    """The method for a title of all streams: without the level, of which each stream has its own."""
    if not attribution.streams:
        return attribution.label
    options = {name: value for name, value in attribution.options.items() if name != "level"}
    return replace(attribution, options=options).label


def streams_sheet(
    named: Sequence[tuple[str, Attribution]],
    image: Any = None,  # noqa: ANN401
    *,
    sound: Any = None,  # noqa: ANN401
    index: int = 0,
) -> "Figure":
    """Every stream of several attributions of one sample, one below the other.

    Args:
        named: attributions under their titles.
        sound: the sound that streams of audio are drawn over, with `wave`, `rate` and `seconds`.
    """
    from matplotlib.image import imread

    parts = [
        _figure(f"{name}: {title}", one, image, sound, index)
        for title, attribution in named
        for name, one in (attribution.streams or {attribution.kind: attribution}).items()
    ]
    if len(parts) == 1:
        return parts[0]
    arrays = [imread(BytesIO(canvas.rendered(part))) for part in parts]
    sizes = [part.get_size_inches() for part in parts]
    whole = canvas.new_figure(max(float(width) for width, _ in sizes), sum(float(height) for _, height in sizes))
    top = 0.0
    for array, (width, height) in zip(arrays, sizes, strict=True):
        axes = canvas.panel(whole, 0.0, top, float(width), float(height))
        axes.imshow(array, aspect="auto")
        axes.set_axis_off()
        top += float(height)
    return whole


def _figure(heading: str, one: Attribution, image: Any, sound: Any, index: int) -> "Figure":  # noqa: ANN401
    if one.kind == "image":
        return overlay(one, image, index=index, title=heading)
    if one.tokens is None and sound is not None:
        return sound_figure(one, sound, heading, index=index)
    return sentence_figure([(heading, [SentenceRow("", join_runs(pieces(one, index)))])])


def sound_figure(attribution: Attribution, sound: Any, title: str, *, index: int = 0) -> "Figure":  # noqa: ANN401
    """A sound over time, shaded by the scores of its frames.

    Args:
        sound: has `wave`, its samples `[n]`; `rate`, how many make a second; `seconds`, which all frames cover.
    """
    from matplotlib.ticker import MaxNLocator

    scores = attribution.shown[index].double().cpu()
    most = float(scores.abs().max()) or 1.0
    signed = bool((scores < 0).any())
    figure = canvas.new_figure(WIDE, TALL)
    canvas.write(figure, title, MARGIN, 0.1, fontproperties=canvas.font(HEADING, "bold"))
    axes = canvas.panel(figure, MARGIN, 2 * MARGIN, WIDE - 2 * MARGIN, TALL - 4 * MARGIN)
    length, high = len(sound.wave) / sound.rate, float(sound.wave.abs().max()) or 1.0
    colours = {"cmap": "RdBu_r" if signed else "Purples", "vmin": -1.0 if signed else 0.0, "vmax": 1.0}
    place = (0.0, sound.seconds, -high, high)
    axes.imshow((scores / most)[None].numpy(), extent=place, aspect="auto", interpolation="nearest", **colours)
    draw_wave(axes, sound.wave, rate=sound.rate)
    axes.set_xlim(0.0, min(length, sound.seconds))
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.tick_params(labelsize=7)
    colours_say = "red: for, blue: against; " if signed else ""
    axes.set_xlabel(f"seconds; {colours_say}the darkest has {most:.2g}", fontsize=7, labelpad=1)
    return figure


def named_tokens(attribution: Attribution, tokenizer: Any) -> Attribution:  # noqa: ANN401
    """The attribution whose token ids are words of a tokenizer, in all its streams."""
    streams = {name: named_tokens(one, tokenizer) for name, one in attribution.streams.items()}
    tokens = attribution.tokens
    if tokens is not None and all(text.isdecimal() for row in tokens for text in row):
        tokens = tuple(tuple(tokenizer.convert_ids_to_tokens([int(text) for text in row])) for row in tokens)
    return replace(attribution, tokens=tokens, streams=streams)
