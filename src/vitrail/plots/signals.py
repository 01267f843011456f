"""Pictures of inputs that are neither pictures nor texts.

A wave with its frames shaded, a spectrum under its map, a bar for each feature of a table, a film strip for a video.
Which part of the input a token shows is read from the token's label.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.errors import InputError
from vitrail.plots import canvas
from vitrail.plots.pictures import as_picture, with_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Span = tuple[int, int]
PART = re.compile(r"(?:[a-z]+ )?(\d+)(?:-(\d+))?")
MARGIN, HEADING, LABEL, BAR = 0.18, 9.0, 7.5, 0.55
WIDTH = 7.0
COLUMNS = 8
"""Frames in one line of a film strip."""
MOST_POINTS = 2000
"""Points of a wave that are drawn; of more, the lowest and the highest of each stretch are."""


@dataclass(frozen=True)
class Shaded:
    """The tokens of one sample: which part of the signal each of them shows, and its score between -1 and 1."""

    boxes: tuple[tuple[Span, ...], ...]
    scores: tuple[float, ...]
    largest: float
    signed: bool
    names: tuple[str, ...]


def is_signal(attribution: Attribution) -> bool:
    """Return True if the input was audio, a spectrum, a table or a video."""
    return attribution.provenance.get("signal") in DRAWN and attribution.tokens is not None


def signal_figure(
    attribution: Attribution,
    signal: Any = None,  # noqa: ANN401
    *,
    index: int = 0,
    title: str | None = None,
) -> "Figure":
    """A figure of one sample with what was looked at shaded.

    Args:
        signal: what the model was given, the whole batch or this sample; None takes it where the caller still holds
            it, else shades alone are drawn.
        title: in place of the method and its target.
    """
    index = canvas.check_index(attribution, index)
    heading = f"{attribution.label} · {attribution.title(index)}" if title is None else title
    kind = attribution.provenance["signal"]
    found = _shaded(attribution, index)
    return DRAWN[kind](found, _values(attribution, signal, index, kind), heading)


def _shaded(attribution: Attribution, index: int) -> Shaded:
    assert attribution.tokens is not None
    names = attribution.tokens[index]
    parsed = [[PART.fullmatch(part) for part in name.split(", ")] for name in names]
    if not all(all(found) for found in parsed):
        raise InputError("the tokens of this attribution do not say which part of the signal they show.")
    boxes = tuple(tuple((int(m[1]), int(m[2] or m[1])) for m in found if m is not None) for found in parsed)
    scores = attribution.shown[index].detach().double().cpu()
    return Shaded(boxes, tuple(canvas.symmetric(scores).tolist()), float(scores.abs().max()), attribution.signed, names)


AXES = {"wave": 1, "table": 1, "spectrum": 2, "video": 4}
"""How many axes one sample has."""


def _values(attribution: Attribution, given: Any, index: int, kind: str) -> Tensor | None:  # noqa: ANN401
    """The signal of one sample; None where it is gone."""
    if given is None and attribution.seen is not None:
        given = attribution.seen(index)
    if given is None:
        return None
    values, axes = torch.as_tensor(given).detach().float().cpu(), AXES[kind]
    values = values[index] if values.ndim == axes + 1 else values
    if values.ndim != axes:
        shape = tuple(values.shape)
        raise InputError(f"a {kind} has {axes} axes for one sample, and one more for a batch, but {shape} was given.")
    return values


def _canvas(height: float, heading: str, found: Shaded, cmap: "str | Colormap | None" = None) -> "Figure":
    """A figure with its heading, and a colour bar below this much room."""
    figure = canvas.new_figure(WIDTH, MARGIN + 0.3 + height + BAR)
    canvas.write(figure, heading, MARGIN, MARGIN, fontproperties=canvas.font(HEADING, "bold"))
    bar = canvas.panel(figure, MARGIN, MARGIN + 0.3 + height + 0.12, 2.4, 0.09)
    ticks = canvas.bar_ticks("0", found.largest, signed=found.signed)
    canvas.colour_bar(bar, cmap or canvas.token_colours(signed=found.signed), ticks=ticks)
    return figure


def wave(found: Shaded, values: Tensor | None, heading: str) -> "Figure":
    """A wave over its frames, each shaded by its score."""
    height = 1.3
    figure = _canvas(height + 0.2, heading, found)
    axes = canvas.panel(figure, MARGIN, MARGIN + 0.3, WIDTH - 2 * MARGIN, height)
    for token, ((first, last), *_) in enumerate(found.boxes):
        axes.axvspan(first, last + 1, color=canvas.shade(found.scores[token], signed=found.signed), linewidth=0)
    if values is not None:
        draw_wave(axes, values)
    length = 1 + max(box[0][1] for box in found.boxes)
    right = length if values is None else max(length, len(values))
    axes.set_xlim(0, right)
    axes.set_xticks([0, right], ["sample 0", f"{right}"], fontsize=LABEL, color=canvas.GREY)
    for label, side in zip(axes.get_xticklabels(), ("left", "right"), strict=True):
        label.set_horizontalalignment(side)
    return figure


def draw_wave(axes: "Axes", values: Tensor, *, rate: float | int = 1) -> None:
    """Draw a wave over its samples, or over seconds if so many samples make one."""
    places, heights = _outline(values.cpu().numpy())
    axes.plot(places / rate, heights, color=canvas.INK, linewidth=0.6)


def _outline(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points of a wave, few enough to draw; of each stretch the lowest and the highest."""
    if len(values) <= MOST_POINTS:
        return np.arange(len(values)) + 0.5, values
    parts = np.array_split(values, MOST_POINTS // 2)
    places = np.linspace(0, len(values), len(parts) * 2)
    return places, np.array([end for part in parts for end in (part.min(), part.max())])


def spectrum(found: Shaded, values: Tensor | None, heading: str) -> "Figure":
    """A spectrum, time from left to right, over the map of its patches or frames."""
    sizes = [1 + max(box[axis][1] for box in found.boxes) for axis in range(len(found.boxes[0]))]
    if values is not None and len(sizes) == 1:
        axis = next((axis for axis in (0, 1) if values.shape[axis] == sizes[0]), None)
        values = None if axis is None else values.movedim(axis, 0)
    shown = torch.zeros(sizes if len(sizes) == 2 else (sizes[0], 1))
    for box, score in zip(found.boxes, found.scores, strict=True):
        shown[tuple(slice(first, last + 1) for first, last in box)] = score
    turned = shown.shape[0] >= shown.shape[1]
    figure = _canvas((1 if values is None else 2) * 1.2 + 0.1, heading, found)
    images: list[tuple[Tensor, Any, Span | None]] = [] if values is None else [(values, "gray", None)]
    images.append((shown, canvas.token_colours(signed=found.signed), (-1 if found.signed else 0, 1)))
    for number, (image, colours, ends) in enumerate(images):
        axes = canvas.panel(figure, MARGIN, MARGIN + 0.3 + number * 1.25, WIDTH - 2 * MARGIN, 1.15)
        low, high = ends or (None, None)
        pixels = (image.T if turned else image).numpy()
        axes.imshow(pixels, aspect="auto", origin="lower", cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    return figure


def table(found: Shaded, values: Tensor | None, heading: str) -> "Figure":
    """A bar for each feature, with the value that it has."""
    names = [name.replace("place", "feature", 1) for name in found.names]
    if values is not None:
        spans = [box[0] for box in found.boxes]
        said = [f" = {values[first]:.3g}" if first == last else "" for first, last in spans]
        names = [f"{name}{value}" for name, value in zip(names, said, strict=True)]
    left = MARGIN + 0.1 + max(canvas.text_width(name, LABEL) for name in names)
    line = 0.2
    figure = _canvas(line * len(names), heading, found)
    axes = canvas.panel(figure, left, MARGIN + 0.3, WIDTH - MARGIN - left, line * len(names))
    # The length of a bar says how much, so that all have the strongest colour.
    colours = [canvas.shade(1.0 if score > 0 else -1.0, signed=found.signed) for score in found.scores]
    axes.barh(range(len(names)), found.scores, color=colours, height=0.7)
    axes.axvline(0.0, color=canvas.GREY, linewidth=0.6)
    axes.set_xlim(-1.02 if min(found.scores) < 0 else -0.02, 1.02)
    axes.set_ylim(len(names) - 0.5, -0.5)
    for number, name in enumerate(names):
        top = MARGIN + 0.3 + line * (number + 0.5)
        canvas.write(figure, name, left - 0.08, top, ha="right", va="center", fontproperties=canvas.font(LABEL))
    return figure


def video(found: Shaded, values: Tensor | None, heading: str) -> "Figure":
    """A film strip: one picture for each group of frames that tokens share, under its map."""
    groups = list(dict.fromkeys(box[0] for box in found.boxes))
    height, width = (1 + max(box[axis][1] for box in found.boxes) for axis in (1, 2))
    columns = min(len(groups), COLUMNS)
    side = min((WIDTH - 2 * MARGIN - 0.06 * (columns - 1)) / columns, 1.7)
    tall = side * height / width + 0.22
    cmap = canvas.SIGNED_MAP if found.signed else canvas.UNSIGNED_MAP
    figure = _canvas(tall * -(-len(groups) // columns), heading, found, cmap)
    for number, frames in enumerate(groups):
        shown = torch.zeros(height, width)
        for box, score in zip(found.boxes, found.scores, strict=True):
            if box[0] == frames:
                shown[box[1][0] : box[1][1] + 1, box[2][0] : box[2][1] + 1] = score
        line, column = divmod(number, columns)
        top, left = MARGIN + 0.3 + line * tall, MARGIN + column * (side + 0.06)
        axes = canvas.panel(figure, left, top, side, tall - 0.22)
        axes.imshow(_frame(shown, values, frames, signed=found.signed), interpolation="nearest")
        said = f"frame {frames[0]}" if frames[0] == frames[1] else f"frames {frames[0]}-{frames[1]}"
        canvas.write(figure, said, left, top + tall - 0.19, fontproperties=canvas.font(LABEL), color=canvas.GREY)
    return figure


def _frame(shown: Tensor, values: Tensor | None, frames: Span, *, signed: bool) -> np.ndarray:
    """The map over the first of the frames, or alone."""
    if values is None:
        return with_map(shown, np.full((*shown.shape, 3), 0.5), signed=signed)
    order = values if values.shape[1] == 3 else values.transpose(0, 1)
    return with_map(shown, as_picture(order[frames[0]]), signed=signed)


DRAWN: dict[str, Callable[[Shaded, Tensor | None, str], "Figure"]] = {
    "wave": wave,
    "spectrum": spectrum,
    "table": table,
    "video": video,
}
