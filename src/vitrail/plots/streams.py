"""All streams of one attribution as one figure: maps over pictures, shaded texts and sounds, one below the other."""

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

from vitrail.attribution import Attribution
from vitrail.plots.canvas import INK, check_index, font, new_figure, panel, rendered, sample_target, write
from vitrail.plots.pictures import overlay
from vitrail.plots.tokens import SentenceRow, join_runs, pieces, sentence_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE, TALL = 7.0, 1.6
"""Inches of a sound."""
MARGIN, HEADING = 0.2, 9.0


def streams_figure(attribution: Attribution, image: Any = None, *, index: int = 0) -> "Figure":  # noqa: ANN401
    """A figure of every stream of one sample, each under its name.

    Args:
        image: what to draw maps over; None draws the maps alone.
    """
    index = check_index(attribution, index)
    title = f"{stream_label(attribution)} · {sample_target(attribution, index)}"
    return streams_sheet([(title, attribution)], image, index=index)


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
    figure = new_figure(WIDE, TALL)
    write(figure, title, MARGIN, 0.1, fontproperties=font(HEADING, "bold"))
    axes = panel(figure, MARGIN, 2 * MARGIN, WIDE - 2 * MARGIN, TALL - 4 * MARGIN)
    wave = sound.wave[:: max(1, len(sound.wave) // 2000)].cpu()
    length, high = len(sound.wave) / sound.rate, float(wave.abs().max()) or 1.0
    colours = {"cmap": "RdBu_r" if signed else "Purples", "vmin": -1.0 if signed else 0.0, "vmax": 1.0}
    place = (0.0, sound.seconds, -high, high)
    axes.imshow((scores / most)[None].numpy(), extent=place, aspect="auto", interpolation="nearest", **colours)
    axes.plot([i * length / len(wave) for i in range(len(wave))], wave.numpy(), color=INK, linewidth=0.5)
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


def boxes_figure(
    panels: Sequence[tuple[str, Attribution, tuple[float, float, float, float]]],
    picture: Any,  # noqa: ANN401
    *,
    index: int = 0,
) -> "Figure":
    """Maps side by side over one picture, each with a box.

    Args:
        panels: titles, maps, and the middle, width and height of each box as shares of the picture's.
    """
    from matplotlib.patches import Rectangle

    wide, high = picture.size
    side = 3.0 * high / wide
    figure = new_figure(3.0 * len(panels) + MARGIN * (len(panels) + 1), side + 4 * MARGIN)
    for place, (title, one, (x, y, width, height)) in enumerate(panels):
        left = MARGIN + place * (3.0 + MARGIN)
        write(figure, title, left, MARGIN / 2, fontproperties=font(HEADING - 1, "bold"))
        axes = panel(figure, left, 2.5 * MARGIN, 3.0, side)
        place_of = (0.0, float(wide), float(high), 0.0)
        axes.imshow(picture, extent=place_of)
        heat = one.heatmap((high, wide))[index].cpu()
        most = float(heat.abs().max()) or 1.0
        colours = "RdBu_r" if one.signed else "inferno"
        low, high_end = (-most, most) if one.signed else (None, None)
        axes.imshow(heat.numpy(), extent=place_of, alpha=0.55, cmap=colours, vmin=low, vmax=high_end)
        corner = ((x - width / 2) * wide, (y - height / 2) * high)
        axes.add_patch(Rectangle(corner, width * wide, height * high, fill=False, edgecolor="#00e5ff", linewidth=1.5))
        axes.set_xlim(0, wide)
        axes.set_ylim(high, 0)
        said = f"red: for, blue: against; the darkest has {most:.2g}" if one.signed else f"at most {most:.2g}"
        write(figure, said, left, side + 3 * MARGIN, fontproperties=font(HEADING - 2))
    return figure
