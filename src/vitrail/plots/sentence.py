"""Sentences with shaded tokens, as in AttCAT's Fig. 5: green for the target, red against it, darker for more."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from vitrail.attribution import Attribution
from vitrail.plots.canvas import GREY, INK, POINTS, colour_bar, font, new_figure, panel, text_width, through, write
from vitrail.plots.captions import check_index, sample_target, wrap
from vitrail.plots.colours import GREEN, RED, WHITE, ink, shade
from vitrail.plots.pieces import Piece, pieces

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE, LABEL, HEADING = 11.0, 9.0, 10.0
WIDTH, MARGIN, LINE, BOX, PAD, SPACE = 8.0, 0.15, 0.27, 0.215, 0.035, 0.05
BASELINE, BETWEEN, BAR = 0.74, 0.12, 0.36
LABEL_LETTERS = 24
LABEL_LINE = LABEL * 1.25 / POINTS
SIGNED_TICKS = ((-1.0, "against"), (0.0, "0"), (1.0, "for"))
UNSIGNED_TICKS = ((0.0, "none"), (1.0, "most"))


@dataclass(frozen=True)
class Placed:
    """A piece and where it stands in its line, in inches."""

    piece: Piece
    left: float
    width: float


@dataclass(frozen=True)
class Row:
    """One sentence and the label in front of it."""

    label: str
    pieces: Sequence[Piece]

    @cached_property
    def label_lines(self) -> list[str]:
        """The label as it is wrapped."""
        return wrap(self.label, LABEL_LETTERS).split("\n") if self.label else []

    @cached_property
    def lines(self) -> list[list[Placed]]:
        """The sentence as it is wrapped."""
        return flow(self.pieces, WIDTH)

    @property
    def height(self) -> float:
        """The inches it takes."""
        return max(len(self.lines) * LINE, len(self.label_lines) * LABEL_LINE) + 0.06


Group = tuple[str, Sequence[Row]]


def sentence(attribution: Attribution, *, index: int = 0, merge: bool = False, title: str | None = None) -> "Figure":
    """A figure of one sentence with its tokens shaded, without padding and without the readout's own score.

    Args:
        merge: join word pieces into words, see `merge_pieces`.
        title: in place of the method and its target.
    """
    index = check_index(attribution, index)
    heading = f"{attribution.label} · {sample_target(attribution, index)}" if title is None else title
    return sentence_figure([(heading, [Row("", pieces(attribution, index, merge=merge))])], signed=attribution.signed)


def sentence_figure(groups: Sequence[Group], *, signed: bool) -> "Figure":
    """A figure of sentences in groups, every group below its heading, and a colour bar."""
    every = [row for _, rows in groups for row in rows]
    indent = max((text_width(line, LABEL) for row in every for line in row.label_lines), default=0.0)
    left = MARGIN + (indent + 0.15 if indent else 0)
    headings = [text_width(heading, HEADING, "bold") - left for heading, _ in groups]
    width = max([item.left + item.width for row in every for line in row.lines for item in line] + headings + [2.0])
    height = sum(_height(group) + BETWEEN for group in groups)
    figure = new_figure(left + width + MARGIN, MARGIN + height + BAR)
    top = MARGIN
    for group in groups:
        _draw_group(figure, group, top, left, width)
        top += _height(group) + BETWEEN
    cmap = through(RED, WHITE, GREEN) if signed else through(WHITE, GREEN)
    colour_bar(panel(figure, left, top, 1.5, 0.09), cmap, ticks=SIGNED_TICKS if signed else UNSIGNED_TICKS)
    return figure


def _height(group: Group) -> float:
    heading, rows = group
    return (0.28 if heading else 0.0) + sum(row.height for row in rows)


def _draw_group(figure: "Figure", group: Group, top: float, left: float, width: float) -> None:
    heading, rows = group
    write(figure, heading, MARGIN, top, fontproperties=font(HEADING, "bold"))
    top += _height((heading, []))
    for row in rows:
        for number, line in enumerate(row.label_lines):
            height = top + BOX * BASELINE + number * LABEL_LINE
            write(figure, line, MARGIN, height, fontproperties=font(LABEL), color=GREY, va="baseline")
        draw_lines(panel(figure, left, top, width, row.height), row.lines)
        top += row.height


def flow(sentence: Sequence[Piece], room: float) -> list[list[Placed]]:
    """The pieces in lines that fit the room; a piece longer than a line is cut."""
    lines: list[list[Placed]] = [[]]
    for piece in (part for whole in sentence for part in _cut(whole, room)):
        width = text_width(piece.text, SIZE) + 2 * PAD
        left = lines[-1][-1].left + lines[-1][-1].width + (0.012 if piece.glued else SPACE) if lines[-1] else 0.0
        if lines[-1] and left + width > room:
            lines.append([])
            left = 0.0
        lines[-1].append(Placed(piece, left, width))
    return lines


def _cut(piece: Piece, room: float) -> list[Piece]:
    width = text_width(piece.text, SIZE) + 2 * PAD
    if width <= room:
        return [piece]
    letters = max(1, int(len(piece.text) * (room - 2 * PAD) / width * 0.9))
    parts = [piece.text[i : i + letters] for i in range(0, len(piece.text), letters)]
    return [replace(piece, text=part, glued=piece.glued or i > 0) for i, part in enumerate(parts)]


def draw_lines(axes: "Axes", lines: Sequence[Sequence[Placed]]) -> None:
    """Draw every piece as a box of its shade, at one inch per unit."""
    from matplotlib.patches import FancyBboxPatch

    width, height = axes.get_position().size * axes.get_figure().get_size_inches()  # pyright: ignore
    axes.set(xlim=(0, width), ylim=(height, 0))
    for number, line in enumerate(lines):
        for item in line:
            colour, top = shade(item.piece.score), number * LINE
            box = FancyBboxPatch(
                (item.left, top),
                item.width,
                BOX,
                boxstyle="round,pad=0,rounding_size=0.03",
                facecolor=colour,
                linewidth=0,
            )
            axes.add_patch(box)
            axes.text(
                item.left + item.width / 2,
                top + BOX * BASELINE,
                item.piece.text,
                ha="center",
                va="baseline",
                color=GREY if item.piece.left_out else ink(colour) if item.piece.score else INK,
                fontproperties=font(SIZE),
                parse_math=False,
            )
