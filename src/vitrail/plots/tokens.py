"""Shaded tokens: sentences as figures, as HTML and on the terminal, and heat maps of scores x tokens.

Tokens become readable pieces first: which are shown, what they say, which belong to one word. Colours as in AttCAT's
Fig. 5: red for the target, blue against it, darker for more. A heat map has the final scores in its last row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING
from unicodedata import category

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.errors import InputError, MissingExtraError, OptionError
from vitrail.models.texts import SPECIAL, is_wordpiece, pieces_of, word_groups
from vitrail.plots import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.text import Text

VISIBLE = {"\n": "↵", "\t": "⇥"}


@dataclass(frozen=True)
class Piece:
    """A token or word as it is drawn.

    Args:
        raw: the tokens as the tokenizer wrote them.
        value: the score.
        score: the score divided by the largest magnitude of the sentence.
        glued: whether it continues the word before it, so that no space stands between.
        left_out: whether the prediction is read here, so that its own score is not shown.
        signed: whether the score says for or against the target.
        ends: the colours of the largest scores.
    """

    text: str
    raw: str
    value: float
    score: float
    glued: bool = False
    left_out: bool = False
    signed: bool = True
    ends: canvas.Ends = canvas.ENDS

    @property
    def note(self) -> str:
        """The score in words."""
        if self.left_out:
            return "the prediction is read here; its own score is left out"
        return f"{self.value:+.4g}"


def pieces(attribution: Attribution, index: int = 0, *, merge: bool = False) -> list[Piece]:
    """The sentence of one sample without padding, scores divided by the largest magnitude."""
    if attribution.kind != "text":
        raise OptionError(f"{attribution.method} was run on an image, which has no sentence. Use .plot(image).")
    index = canvas.check_index(attribution, index)
    shown = real_tokens(attribution, index)
    tokens = [token_names(attribution, index)[i] for i in shown]
    values = attribution.shown[index, shown].detach().double().cpu()
    groups = word_groups(tokens) if merge else [[i] for i in range(len(tokens))]
    scores = _join(groups, values.tolist(), signed=attribution.signed)
    parts, readout = pieces_of(tokens), -1 if attribution.readout is None else int(attribution.readout[index])
    wordpiece = is_wordpiece(tokens)
    words = {group[0] for group in (groups if merge else word_groups(tokens))}
    relative = canvas.symmetric(torch.tensor(scores, dtype=torch.float64)).tolist()
    return [
        Piece(
            text=_printable(tokens[group[0]]) if wordpiece and not merge else _word([parts[i] for i in group]),
            raw="".join(tokens[i] for i in group),
            value=value,
            score=score,
            glued=group[0] not in words and not wordpiece,
            left_out=[shown[i] for i in group] == [readout],
            signed=attribution.signed,
        )
        for group, value, score in zip(groups, scores, relative, strict=True)
    ]


RUN = 4
"""How many equal special tokens in a row are drawn as one."""


def join_runs(found: Sequence[Piece]) -> list[Piece]:
    """The pieces; equal special tokens in a row, such as the places of a picture, are one with the largest score."""
    made: list[Piece] = []
    for raw, group in groupby(found, key=lambda piece: piece.raw):
        same = list(group)
        if len(same) < RUN or not SPECIAL.fullmatch(raw):
            made += same
            continue
        most = max(same, key=lambda piece: abs(piece.value))
        text, raw = (f"{one} ×{len(same)}" for one in (same[0].text, raw))
        made.append(replace(most, text=text, raw=raw, glued=same[0].glued, left_out=False))
    return made


def merge_pieces(
    tokens: Sequence[str], scores: Sequence[float] | Tensor, *, signed: bool
) -> tuple[list[str], list[float]]:
    """The words that word pieces make up, and one score for each.

    Signed scores are impacts and add up, so a word has the sum of its pieces. Unsigned ones say how much was looked
    at; a sum would favour rare words, which have more pieces, so a word has the largest. A word ends where the
    tokenizer saw a space: SentencePiece and byte-level BPE keep the full stop with its word, WordPiece does not.
    Special tokens stay alone.
    """
    values = scores.tolist() if isinstance(scores, Tensor) else list(scores)
    if len(values) != len(tokens):
        raise InputError(f"{len(tokens)} tokens came with {len(values)} scores. Give one score for each token.")
    groups, parts = word_groups(tokens), pieces_of(tokens)
    return [_word([parts[i] for i in group]) for group in groups], _join(groups, values, signed=signed)


def _join(groups: list[list[int]], values: list[float], *, signed: bool) -> list[float]:
    join = sum if signed else max
    return [float(join([values[i] for i in group])) for group in groups]


def token_names(attribution: Attribution, index: int) -> tuple[str, ...]:
    """The tokens as the tokenizer wrote them, or their positions where the model was given embeddings."""
    if attribution.tokens is None:
        return tuple(str(i) for i in range(attribution.scores.shape[1]))
    return attribution.tokens[index]


def real_tokens(attribution: Attribution, index: int) -> list[int]:
    """The positions that are not padding."""
    if attribution.valid is None:
        return list(range(attribution.scores.shape[1]))
    return attribution.valid[index].nonzero().flatten().tolist()


def _word(parts: Sequence[str]) -> str:
    """The text of a word; a token that holds the beginning of a letter only shows as one that is not known."""
    text = "".join(parts)
    return _printable(text.removeprefix(" ")) if text else "�"


def _printable(text: str) -> str:
    """The text with control characters replaced (they would steer a terminal) and spaces alone made visible."""
    shown = "".join(VISIBLE.get(c, "�" if category(c) in {"Cc", "Cs"} else c) for c in text)
    return shown if shown.strip() else "␣"


SIZE, LABEL, HEADING = 11.0, 9.0, 10.0
WIDTH, MARGIN, LINE, BOX, PAD, SPACE = 8.0, 0.15, 0.27, 0.215, 0.035, 0.05
BASELINE, ABOVE, BETWEEN, BAR = 0.74, 0.28, 0.12, 0.36
LABEL_LETTERS = 24
LABEL_LINE = LABEL * 1.25 / canvas.POINTS


@dataclass(frozen=True)
class Placed:
    """A piece and where it stands in its line, in inches."""

    piece: Piece
    left: float
    width: float


@dataclass(frozen=True)
class SentenceRow:
    """One sentence and the label in front of it."""

    label: str
    pieces: Sequence[Piece]

    @cached_property
    def label_lines(self) -> list[str]:
        """The label as it is wrapped."""
        return canvas.wrap(self.label, LABEL_LETTERS).split("\n") if self.label else []

    @cached_property
    def lines(self) -> list[list[Placed]]:
        """The sentence as it is wrapped."""
        return flow(self.pieces, WIDTH)

    @property
    def height(self) -> float:
        """The inches it takes."""
        return max(len(self.lines) * LINE, len(self.label_lines) * LABEL_LINE) + 0.06


def sentence(
    attribution: Attribution,
    *,
    index: int = 0,
    merge: bool = False,
    title: str | None = None,
    colorbar: bool = True,
) -> "Figure":
    """A figure of one sentence with its tokens shaded, without padding and without the readout's own score.

    Args:
        merge: join word pieces into words, see `merge_pieces`.
        title: in place of the method and its target; empty for none.
        colorbar: whether a bar below says what the colours mean.
    """
    index = canvas.check_index(attribution, index)
    heading = f"{attribution.label} · {attribution.title(index)}" if title is None else title
    row = SentenceRow("", join_runs(pieces(attribution, index, merge=merge)))
    return sentence_figure([(heading, [row])], colorbar=colorbar)


def sentence_figure(groups: Sequence[tuple[str, Sequence[SentenceRow]]], *, colorbar: bool = True) -> "Figure":
    """A figure of sentences in groups, every group below its heading, and a colour bar for each scale."""
    every = [row for _, rows in groups for row in rows]
    indent = max((canvas.text_width(line, LABEL) for row in every for line in row.label_lines), default=0.0)
    left = MARGIN + (indent + 0.15 if indent else 0)
    headings = [canvas.text_width(heading, HEADING, "bold") - left for heading, _ in groups]
    width = max([item.left + item.width for row in every for line in row.lines for item in line] + headings + [3.4])
    heights = [ABOVE * bool(heading) + sum(row.height for row in rows) + BETWEEN for heading, rows in groups]
    figure = canvas.new_figure(left + width + MARGIN, MARGIN + sum(heights) + (BAR if colorbar else 0.0))
    top = MARGIN
    for (heading, rows), height in zip(groups, heights, strict=True):
        canvas.write(figure, heading, MARGIN, top, fontproperties=canvas.font(HEADING, "bold"))
        place = top + ABOVE * bool(heading)
        for row in rows:
            _draw_row(figure, row, place, left, width)
            place += row.height
        top += height
    scales = {piece.signed: piece.ends for row in every for piece in row.pieces} if colorbar else {}
    largest = max((abs(piece.value) for row in every for piece in row.pieces if not piece.left_out), default=0.0)
    for number, (signed, ends) in enumerate(sorted(scales.items(), key=lambda pair: pair[0], reverse=True)):
        axes = canvas.panel(figure, left + 1.8 * number, top, 1.5, 0.09)
        ticks = canvas.bar_ticks("none", largest if len(every) == 1 else None, signed=signed)
        canvas.colour_bar(axes, canvas.token_colours(ends, signed=signed), ticks=ticks)
    return figure


def _draw_row(figure: "Figure", row: SentenceRow, top: float, left: float, width: float) -> None:
    look = {"fontproperties": canvas.font(LABEL), "color": canvas.GREY, "va": "baseline"}
    for number, line in enumerate(row.label_lines):
        canvas.write(figure, line, MARGIN, top + BOX * BASELINE + number * LABEL_LINE, **look)
    draw_lines(canvas.panel(figure, left, top, width, row.height), row.lines)


def flow(sentence: Sequence[Piece], room: float) -> list[list[Placed]]:
    """The pieces in lines that fit the room; a piece longer than a line is cut."""
    lines: list[list[Placed]] = [[]]
    for piece in (part for whole in sentence for part in _cut(whole, room)):
        width = canvas.text_width(piece.text, SIZE) + 2 * PAD
        left = lines[-1][-1].left + lines[-1][-1].width + (0.012 if piece.glued else SPACE) if lines[-1] else 0.0
        if lines[-1] and left + width > room:
            lines.append([])
            left = 0.0
        lines[-1].append(Placed(piece, left, width))
    return lines


def _cut(piece: Piece, room: float) -> list[Piece]:
    width = canvas.text_width(piece.text, SIZE) + 2 * PAD
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
            piece, top = item.piece, number * LINE
            ground = canvas.shade(piece.score, signed=piece.signed, ends=piece.ends)
            look = {"boxstyle": "round,pad=0,rounding_size=0.03", "facecolor": ground, "linewidth": 0}
            axes.add_patch(FancyBboxPatch((item.left, top), item.width, BOX, **look))
            colour = canvas.GREY if piece.left_out else canvas.ink(ground) if piece.score else canvas.INK
            place = (item.left + item.width / 2, top + BOX * BASELINE)
            look = {"ha": "center", "va": "baseline", "fontproperties": canvas.font(SIZE), "parse_math": False}
            axes.text(*place, piece.text, color=colour, **look)


HEATMAP_SIZE, ROW = 8.0, 0.2
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
    left = MARGIN + max(canvas.text_width(name, HEATMAP_SIZE) for name in names) + 0.08
    below = max(canvas.text_width(word, HEATMAP_SIZE) for word in words) + 0.1
    heading = f"{attribution.label} · {attribution.title(index)}"
    width = max(left + cell * len(shown), MARGIN + canvas.text_width(heading, HEADING, "bold"), left + 1.6) + MARGIN
    figure = canvas.new_figure(width, MARGIN + 0.3 + ROW * len(names) + below + 0.45)
    canvas.write(figure, heading, MARGIN, MARGIN, fontproperties=canvas.font(HEADING, "bold"))
    cmap = canvas.token_colours(canvas.Ends(unsigned=canvas.FOR), signed=signed).with_extremes(bad=canvas.FAINT)
    axes = canvas.panel(figure, left, MARGIN + 0.3, cell * len(shown), ROW * len(names))
    axes.imshow(values, cmap=cmap, vmin=-1 if signed else 0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(names)), labels=list(names))
    axes.set_xticks(range(len(words)), labels=words, rotation=90, parse_math=False)
    axes.tick_params(length=0, pad=3, labelcolor=canvas.INK)
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set_fontproperties(canvas.font(HEATMAP_SIZE))
    axes.axhline(len(names) - 1.5, color=canvas.INK, linewidth=1.2)  # sets the last row apart
    axes.spines[:].set(visible=True, color=canvas.GREY, linewidth=0.5)
    bar = canvas.panel(figure, left, MARGIN + 0.3 + ROW * len(names) + below + 0.1, 1.5, 0.09)
    canvas.colour_bar(bar, cmap, ticks=canvas.bar_ticks("none", signed=signed))
    return figure


def relative_rows(attribution: Attribution, rows: Float[Tensor, "r n"], index: int) -> np.ma.MaskedArray:
    """The rows and the scores, each divided by its largest magnitude; the readout's own entries are masked."""
    table = torch.cat([rows, attribution.scores[index, None]]).detach().double().cpu()
    hidden = torch.zeros_like(table, dtype=torch.bool)
    if attribution.readout is not None and attribution.readout[index] >= 0:
        hidden[:, int(attribution.readout[index])] = True
    relative = torch.stack([canvas.symmetric(row) for row in table.masked_fill(hidden, 0.0)])
    return np.ma.MaskedArray(relative.numpy(), mask=hidden.numpy())


def terminal(attribution: Attribution, *, index: int = 0, merge: bool = False) -> "Text":
    """The sentence of one sample as rich text, red for the target, blue against it, violet where there is no sign.

    Args:
        merge: join word pieces into words, see `merge_pieces`.
    """
    try:
        from rich.text import Text
    except ImportError as error:
        raise MissingExtraError("shaded text in the terminal needs rich: pip install 'vitrail[cli]'") from error
    text = Text()
    for number, piece in enumerate(join_runs(pieces(attribution, index, merge=merge))):
        text.append("" if number == 0 or piece.glued else " ")
        colour = canvas.shade(piece.score, signed=piece.signed)
        # No background for a score of zero, which would be a white box on a dark terminal.
        plain = "dim" if piece.left_out else ""
        text.append(piece.text, style=f"{canvas.ink(colour)} on {colour}" if piece.score else plain)
    return text
