"""A rewritten picture beside the original: what changed, and what the model said on the way."""

from typing import TYPE_CHECKING

import numpy as np

from vitrail.plots.canvas import GREY, new_figure, panel, write
from vitrail.tools.rewriting import NOTICE, Rewriting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDE, MARGIN, GAP, TOP = 2.0, 0.15, 0.15, 0.75
AXIS = 0.32
SMALL, HEADING = 7.5, 10.0
BLUE, RED = "#2b6cb0", "#b8112a"
"""Of the source and of the target."""


def rewriting_sheet(rewriting: Rewriting) -> "Figure":
    """A figure of the original, the new picture, their amplified difference and the probabilities on the way."""
    figure = new_figure(2 * MARGIN + 4 * SIDE + 3 * GAP + AXIS, TOP + SIDE + 0.45)
    source, target = rewriting.names
    write(figure, f"{source} → {target}", MARGIN, MARGIN, fontsize=HEADING, weight="bold")
    before, after = rewriting.probabilities.tolist()
    likeness = f"PSNR {rewriting.psnr:.1f} dB, SSIM {rewriting.ssim:.4f}"
    shown = (
        ("original", f"{source} {before[0]:.1%}, {target} {before[1]:.1%}", rewriting.original),
        ("rewritten", f"{source} {after[0]:.1%}, {target} {after[1]:.1%}", rewriting.picture),
        (f"difference × {rewriting.amplification}", likeness, rewriting.difference),
    )
    for number, (first, second, picture) in enumerate(shown):
        left = MARGIN + number * (SIDE + GAP)
        write(figure, f"{first}\n{second}", left, TOP - 0.08, fontsize=SMALL, va="bottom")
        panel(figure, left, TOP, SIDE, SIDE).imshow(np.asarray(picture), aspect="equal")
    left = MARGIN + 3 * (SIDE + GAP) + AXIS
    write(figure, "probability at each step\n ", left, TOP - 0.08, fontsize=SMALL, va="bottom")
    write(figure, source, left, TOP - 0.08, fontsize=SMALL, va="bottom", color=BLUE)
    write(figure, target, left + SIDE, TOP - 0.08, fontsize=SMALL, va="bottom", color=RED, ha="right")
    _trace(panel(figure, left, TOP, SIDE, SIDE), rewriting)
    width = figure.get_size_inches()[0]
    write(figure, NOTICE, width / 2, TOP + SIDE + 0.22, fontsize=SMALL, color=GREY, ha="center")
    return figure


def _trace(axes: "Axes", rewriting: Rewriting) -> None:
    values = rewriting.trace.cpu().numpy()
    for column, colour in enumerate((BLUE, RED)):
        axes.plot(values[:, column], color=colour, linewidth=1.2)
    axes.axhline(rewriting.settings["probability"], color=GREY, linewidth=0.6, linestyle=":")
    axes.set(ylim=(-0.02, 1.02), xlim=(0, max(1, len(values) - 1)))
    axes.set_yticks([0, 0.5, 1])
    axes.set_xticks([0, max(1, len(values) - 1)])
    axes.tick_params(labelsize=6.5, colors=GREY, length=2)
    axes.spines[["left", "bottom"]].set(visible=True, color=GREY, linewidth=0.6)
