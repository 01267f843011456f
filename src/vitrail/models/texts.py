"""Checks of plain text, and its words and sentences. Does not import torch.

The checks are shared by the command line, the tokenizers and the readers of files. Words and sentences are found in a
text that is cut into tokens.
"""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from vitrail.errors import InputError, one_line


def is_blank(text: str) -> bool:
    """Whether a text shows nothing: white space, control characters and zero-width ones only."""
    return all(letter.isspace() or unicodedata.category(letter) in ("Cc", "Cf") for letter in text)


def check_text(text: object, where: str = "the text") -> str:
    """The text without white space around it, or an error that says why it cannot be read.

    Args:
        where: what the text is, or where it comes from.
    """
    if not isinstance(text, str):
        raise InputError(f"{where} is no text but {type(text).__name__}.")
    if is_blank(text):
        raise InputError(f"{where} is empty: there is nothing to explain.")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(f"{where} holds half a character (a lone surrogate). Was it decoded as UTF-8?")
    return text.strip()


def read_text(path: Path, *, key: str | None = None) -> str:
    """Return the text of a file in UTF-8; some programs begin it with a mark, which is no part of it.

    Args:
        key: the example that the file belongs to, named in errors.
    """
    where = f"{key}: {path}" if key else str(path)
    try:
        return decode_text(path.read_bytes(), where)
    except FileNotFoundError as error:
        raise InputError(f"{key}: there is no file {path}." if key else f"there is no file {path}.") from error
    except OSError as error:
        raise InputError(f"{where} cannot be read as text: {error.strerror or one_line(error)}.") from error


def decode_text(data: bytes, where: str) -> str:
    """Return bytes in UTF-8 as a text whose lines end as in all texts of Python."""
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} is not text in UTF-8: byte {error.start} cannot be read. Save it as UTF-8."
        ) from error


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
