"""Checks of plain text, and its words and sentences. Does not import torch.

The checks are shared by the command line, the tokenizers and the readers of files. Words and sentences are found in a
text that is cut into tokens.
"""

import re
import unicodedata
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from vitrail.errors import InputError, one_line


def is_blank(text: str) -> bool:
    """Return True if a text shows nothing: white space, control characters and zero-width ones only."""
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


class TokenNames(Mapping[int, str]):
    """The tokens of a language model by their ids, as text in quotes: `' capital'`."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401
        self.tokenizer = tokenizer

    def __getitem__(self, index: int) -> str:
        return repr(self.tokenizer.decode([index]))

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.tokenizer)


Span = tuple[int, int]
"""The first token of a unit, and the one after its last."""

SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z]+\d*\]")
CONTINUES = "##"
"""WordPiece marks the tokens that start no word; SentencePiece and byte-level BPE mark white space."""
SPACES = {"Ġ": " ", "▁": " ", "Ċ": "\n", "ĉ": "\t"}
"""How tokenizers write white space inside a token."""
SHORT = r"(?<!\b[A-Z])(?<!\bMr)(?<!\bMrs)(?<!\bDr)(?<!\bSt)(?<!\bvs)(?<!\be\.g)(?<!\bi\.e)(?<!\bNo)(?<!\bp)"
SENTENCE_END = re.compile(rf"(?:{SHORT}[.!?…]+[\"'”’)\]]*(?=\s|$)|[。！？]+|\n+)\s*")
WORD = re.compile(r"\s*\S+\s*?(?=\s|$)")


def pieces_of(tokens: Sequence[str]) -> tuple[str, ...]:
    """The tokens as pieces of text that together give it: marks of white space as white space, bytes as letters."""
    if is_wordpiece(tokens):  # which leaves white space out
        return tuple(token[2:] if token.startswith(CONTINUES) else f" {token}" for token in tokens)
    if not any(token.startswith("▁") for token in tokens) and is_byte_level(tokens):
        return _decoded(tokens)
    return tuple(_with_spaces(token) for token in tokens)


def is_wordpiece(tokens: Sequence[str]) -> bool:
    """Return True if tokens that start no word are marked; in other alphabets two hashes are text."""
    return any(token.startswith(CONTINUES) for token in tokens) and not any(t.startswith(("▁", "Ġ")) for t in tokens)


def _with_spaces(token: str) -> str:
    return "".join(SPACES.get(letter, letter) for letter in token)


@cache
def byte_letters() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable bytes stand for themselves, the others for letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(other)}


def is_byte_level(tokens: Sequence[str]) -> bool:
    """Return True if tokens are bytes in byte-level BPE's alphabet.

    It marks white space. A text without any, such as one in Chinese, is told by its bytes, which are UTF-8.
    """
    if any(token.startswith(("Ġ", "Ċ")) for token in tokens):
        return True
    known, letters = byte_letters(), "".join(tokens)
    if not all(letter in known for letter in letters):
        return False
    written = bytes(known[letter] for letter in letters)
    try:
        return not written.isascii() and bool(written.decode())
    except UnicodeDecodeError:
        return False


def _decoded(tokens: Sequence[str]) -> tuple[str, ...]:
    """The letters that each token completes; a token of other letters, such as a special one, is one of its own."""
    known, decoder = byte_letters(), getincrementaldecoder("utf-8")(errors="replace")
    pieces = []
    for token in tokens:
        if all(letter in known for letter in token):
            pieces.append(decoder.decode(bytes(known[letter] for letter in token)))
        else:
            pieces.append(_with_spaces(token))
    return tuple(pieces)


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


def word_groups(tokens: Sequence[str]) -> list[list[int]]:
    """The positions of the tokens of each word as it is drawn: white space before a word begins it.

    Special tokens are alone, and all where no token marks a word. Unlike in `words`, line breaks stay apart: they have
    scores of their own.
    """
    pieces = pieces_of(tokens)
    marked = any(piece[:1].isspace() for piece in pieces)
    groups: list[list[int]] = []
    alone = True
    for place, piece in enumerate(pieces):
        special = SPECIAL.fullmatch(tokens[place]) is not None
        if not marked or special or alone or piece[:1].isspace():
            groups.append([])
        groups[-1].append(place)
        alone = special
    return groups


def sentences(pieces: Sequence[str]) -> list[Span]:
    """The sentences of a text, as spans of its tokens; a line break ends one too."""
    text = "".join(pieces)
    ends = [found.end() for found in SENTENCE_END.finditer(text)]
    return _units(pieces, ends if ends and ends[-1] >= len(text.rstrip()) else [*ends, len(text)])
