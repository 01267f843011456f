"""A sentence with shaded tokens for the terminal."""

from typing import TYPE_CHECKING

from vitrail.attribution import Attribution
from vitrail.errors import MissingExtraError
from vitrail.plots.colours import ink, shade
from vitrail.plots.pieces import Piece, pieces

if TYPE_CHECKING:
    from rich.text import Text


def terminal(attribution: Attribution, *, index: int = 0, merge: bool = False) -> "Text":
    """The sentence of one sample as rich text, green for the target and red against it.

    Args:
        merge: join word pieces into words, see `merge_pieces`.
    """
    try:
        from rich.text import Text
    except ImportError as error:
        raise MissingExtraError("shaded text in the terminal needs rich: pip install 'vitrail[cli]'") from error
    text = Text()
    for number, piece in enumerate(pieces(attribution, index, merge=merge)):
        text.append("" if number == 0 or piece.glued else " ")
        text.append(piece.text, style=_style(piece))
    return text


def _style(piece: Piece) -> str:
    """No background for a score of zero, which would be a white box on a dark terminal."""
    if piece.score == 0:
        return "dim" if piece.left_out else ""
    colour = shade(piece.score)
    return f"{ink(colour)} on {colour}"
