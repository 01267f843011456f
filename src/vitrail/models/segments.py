"""Words and sentences of a text that is cut into tokens."""

import re
from collections.abc import Sequence

Span = tuple[int, int]
"""The first token of a unit, and the one after its last."""

SPACES = {"Ġ": " ", "▁": " ", "Ċ": "\n", "ĉ": "\t"}
"""How tokenizers write white space inside a token."""
SHORT = r"(?<!\b[A-Z])(?<!\bMr)(?<!\bMrs)(?<!\bDr)(?<!\bSt)(?<!\bvs)(?<!\be\.g)(?<!\bi\.e)(?<!\bNo)(?<!\bp)"
SENTENCE_END = re.compile(rf"(?:{SHORT}[.!?…]+[\"'”’)\]]*(?=\s|$)|[。！？]+|\n+)\s*")
WORD = re.compile(r"\s*\S+\s*?(?=\s|$)")


def pieces_of(tokens: Sequence[str]) -> tuple[str, ...]:
    """The tokens as pieces of text that together give it: marks of white space as white space."""
    marked = any(token.startswith(("Ġ", "▁")) for token in tokens)
    if not marked and any(token.startswith("##") for token in tokens):  # WordPiece leaves white space out
        return tuple(token[2:] if token.startswith("##") else f" {token}" for token in tokens)
    return tuple("".join(SPACES.get(letter, letter) for letter in token) for token in tokens)


def _units(pieces: Sequence[str], ends: Sequence[int]) -> list[Span]:
    """Units of whole tokens: each token belongs where its first letter that is no space stands.

    Args:
        ends: where units of the text end, in characters.
    """
    units: list[Span] = []
    place, unit, begun = 0, 0, 0
    for index, piece in enumerate(pieces):
        letter = place + (len(piece) - len(piece.lstrip()) if piece.strip() else 0)
        found = unit
        while found < len(ends) - 1 and letter >= ends[found]:
            found += 1
        if found != unit and index > begun:
            units.append((begun, index))
            begun = index
        unit, place = found, place + len(piece)
    return [*units, (begun, len(pieces))] if len(pieces) > begun else units


def words(pieces: Sequence[str]) -> list[Span]:
    """The words of a text, as spans of its tokens."""
    text = "".join(pieces)
    return _units(pieces, [found.end() for found in WORD.finditer(text)] or [len(text)])


def sentences(pieces: Sequence[str]) -> list[Span]:
    """The sentences of a text, as spans of its tokens; a line break ends one too."""
    text = "".join(pieces)
    ends = [found.end() for found in SENTENCE_END.finditer(text)]
    return _units(pieces, ends if ends and ends[-1] >= len(text.rstrip()) else [*ends, len(text)])
