"""Rows of scores x tokens as a heat map, the final scores in a row of their own at the bottom."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.plots.canvas import (
    FAINT,
    GREY,
    INK,
    colour_bar,
    font,
    new_figure,
    panel,
    text_width,
    through,
    write,
)
from vitrail.plots.captions import sample_target
from vitrail.plots.colours import GREEN, RED, WHITE, symmetric
from vitrail.plots.pieces import pieces, real_tokens
from vitrail.plots.sentence import SIGNED_TICKS, UNSIGNED_TICKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE, HEADING = 8.0, 10.0
ROW, MARGIN = 0.2, 0.15
WIDEST = 10.0
CELLS = (0.16, 0.4)
"""The narrowest and the widest column, in inches."""


def token_heatmap(
    attribution: Attribution, rows: Float[Tensor, "r n"], names: Sequence[str], index: int, *, signed: bool
) -> "Figure":
    """A figure of these rows above the attribution's scores, each divided by its largest magnitude.

    Args:
        names: one for each row, and one for the scores.
        signed: whether the rows reach below zero.
    """
    shown, words = real_tokens(attribution, index), [piece.text for piece in pieces(attribution, index)]
    values = relative_rows(attribution, rows, index)[:, shown]
    cell = min(max(WIDEST / len(shown), CELLS[0]), CELLS[1])
    left = MARGIN + max(text_width(name, SIZE) for name in names) + 0.08
    below = max(text_width(word, SIZE) for word in words) + 0.1
    heading = f"{attribution.label} · {sample_target(attribution, index)}"
    width = max(left + cell * len(shown), MARGIN + text_width(heading, HEADING, "bold"), left + 1.6) + MARGIN
    figure = new_figure(width, MARGIN + 0.3 + ROW * len(names) + below + 0.45)
    write(figure, heading, MARGIN, MARGIN, fontproperties=font(HEADING, "bold"))
    cmap = (through(RED, WHITE, GREEN) if signed else through(WHITE, GREEN)).with_extremes(bad=FAINT)
    axes = panel(figure, left, MARGIN + 0.3, cell * len(shown), ROW * len(names))
    axes.imshow(values, cmap=cmap, vmin=-1 if signed else 0, vmax=1, aspect="auto", interpolation="nearest")
    _label(axes, names, words)
    bar = panel(figure, left, MARGIN + 0.3 + ROW * len(names) + below + 0.1, 1.5, 0.09)
    colour_bar(bar, cmap, ticks=SIGNED_TICKS if signed else UNSIGNED_TICKS)
    return figure


def relative_rows(attribution: Attribution, rows: Float[Tensor, "r n"], index: int) -> np.ma.MaskedArray:
    """The rows and the scores, each divided by its largest magnitude; the readout's own entries are masked."""
    table = torch.cat([rows, attribution.scores[index, None]]).detach().double().cpu()
    hidden = torch.zeros_like(table, dtype=torch.bool)
    if attribution.readout is not None and attribution.readout[index] >= 0:
        hidden[:, int(attribution.readout[index])] = True
    relative = torch.stack([symmetric(row) for row in table.masked_fill(hidden, 0.0)])
    return np.ma.MaskedArray(relative.numpy(), mask=hidden.numpy())


def _label(axes: "Axes", names: Sequence[str], words: Sequence[str]) -> None:
    """Write the names and the words beside the cells, and set the last row apart."""
    axes.set_yticks(range(len(names)), labels=list(names))
    axes.set_xticks(range(len(words)), labels=list(words), rotation=90, parse_math=False)
    axes.tick_params(length=0, pad=3, labelcolor=INK)
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set_fontproperties(font(SIZE))
    axes.axhline(len(names) - 1.5, color=INK, linewidth=1.2)
    axes.spines[:].set(visible=True, color=GREY, linewidth=0.5)
