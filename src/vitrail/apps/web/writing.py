"""Texts as the page shows them: shaded tokens, rows of layers or heads over tokens. Every word is escaped."""

from collections.abc import Sequence
from html import escape

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.plots.colours import ink, shade
from vitrail.plots.heatmap import relative_rows
from vitrail.plots.pieces import Piece, pieces, real_tokens

LEGENDS = {
    True: '<div class="legend"><span>speaks against it</span><span class="bar signed"></span>'
    "<span>speaks for it</span></div>",
    False: '<div class="legend"><span>ignored</span><span class="bar unsigned"></span>'
    "<span>looked at most</span></div>",
}


def sentence(attribution: Attribution, *, gone: Bool[np.ndarray, " t"] | None = None) -> str:
    """The sentence with its tokens shaded; tokens that are gone are struck out."""
    found = pieces(attribution)
    cut = set() if gone is None else {i for i, place in enumerate(real_tokens(attribution, 0)) if gone[place]}
    spans = (("" if i == 0 or piece.glued else " ") + _token(piece, cut=i in cut) for i, piece in enumerate(found))
    return f'<p class="sentence">{"".join(spans)}</p>'


def _token(piece: Piece, *, cut: bool) -> str:
    colour = shade(piece.score)
    look = "" if piece.left_out else f"background:{colour};color:{ink(colour)}"
    note = "the answer is read here" if piece.left_out else f"{piece.value:+.3g}"
    name = "del" if cut else "span"
    return f'<{name} class="token" style="{look}" title="{escape(note)}">{escape(piece.text)}</{name}>'


def heat_map(attribution: Attribution, rows: Float[Tensor, "r n"], names: Sequence[str], marked: int = -1) -> str:
    """Rows of scores over the tokens, each divided by its largest magnitude, the method's own scores below.

    Args:
        marked: the row that is pointed at.
    """
    shown = real_tokens(attribution, 0)
    values = relative_rows(attribution, rows, 0)[:, shown]
    words = [piece.text for piece in pieces(attribution)]
    head = "".join(f'<th scope="col"><span>{escape(word)}</span></th>' for word in words)
    body = "".join(
        f'<tr{" class=marked" if number == marked else ""}><th scope="row">{escape(name)}</th>'
        f"{''.join(_cell(value) for value in row)}</tr>"
        for number, (name, row) in enumerate(zip([*names, "all"], values, strict=True))
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="rows over tokens"><table class="heat">'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: object) -> str:
    if value is np.ma.masked:
        return '<td class="none" title="the answer is read here"></td>'
    number = float(str(value))
    return f'<td style="background:{shade(number)}" title="{number:+.2f}"></td>'
