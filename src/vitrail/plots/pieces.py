"""The tokens of a text as readable pieces: which are shown, what they say, which belong to one word."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from unicodedata import category

import torch
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.errors import InputError, OptionError
from vitrail.plots.captions import check_index
from vitrail.plots.colours import symmetric

SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z]+\d*\]")
STARTS = ("▁", "Ġ")  # SentencePiece and byte-level BPE mark the piece that starts a word
CONTINUES = "##"  # WordPiece marks the pieces that do not
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
    """

    text: str
    raw: str
    value: float
    score: float
    glued: bool = False
    left_out: bool = False


def pieces(attribution: Attribution, index: int = 0, *, merge: bool = False) -> list[Piece]:
    """The sentence of one sample without padding, scores divided by the largest magnitude."""
    if attribution.kind != "text":
        raise OptionError(f"{attribution.method} was run on an image, which has no sentence. Use .plot(image).")
    index = check_index(attribution, index)
    shown = real_tokens(attribution, index)
    tokens = [token_names(attribution, index)[i] for i in shown]
    values = attribution.shown[index, shown].detach().double().cpu()
    groups = word_groups(tokens) if merge else [[i] for i in range(len(tokens))]
    scores = _join(groups, values.tolist(), signed=attribution.signed)
    mark, readout = _mark(tokens), -1 if attribution.readout is None else int(attribution.readout[index])
    relative = symmetric(torch.tensor(scores, dtype=torch.float64)).tolist()
    return [
        Piece(
            text=_readable([tokens[i] for i in group], mark)
            if merge or mark in STARTS
            else _printable(tokens[group[0]]),
            raw="".join(tokens[i] for i in group),
            value=value,
            score=score,
            glued=mark in STARTS and not _starts(tokens, group[0], mark),
            left_out=[shown[i] for i in group] == [readout],
        )
        for group, value, score in zip(groups, scores, relative, strict=True)
    ]


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
    groups, mark = word_groups(tokens), _mark(tokens)
    return [_readable([tokens[i] for i in group], mark) for group in groups], _join(groups, values, signed=signed)


def _join(groups: list[list[int]], values: list[float], *, signed: bool) -> list[float]:
    join = sum if signed else max
    return [float(join([values[i] for i in group])) for group in groups]


def word_groups(tokens: Sequence[str]) -> list[list[int]]:
    """The positions of the pieces of each word."""
    mark, groups = _mark(tokens), []
    for i in range(len(tokens)):
        if _starts(tokens, i, mark):
            groups.append([])
        groups[-1].append(i)
    return groups


def _mark(tokens: Sequence[str]) -> str:
    """The sign with which this tokenizer marks words, empty where none is to be seen."""
    for mark in STARTS:
        if any(token.startswith(mark) for token in tokens):
            return mark
    return CONTINUES if any(token.startswith(CONTINUES) for token in tokens) else ""


def _starts(tokens: Sequence[str], i: int, mark: str) -> bool:
    if i == 0 or not mark or SPECIAL.fullmatch(tokens[i]) or SPECIAL.fullmatch(tokens[i - 1]):
        return True
    return not tokens[i].startswith(CONTINUES) if mark == CONTINUES else tokens[i].startswith((mark, "Ċ"))


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


def _readable(parts: Sequence[str], mark: str) -> str:
    """What the pieces of a word say, without the tokenizer's marks."""
    if mark == CONTINUES:
        return _printable("".join(part.removeprefix(CONTINUES) for part in parts))
    text = "".join(parts)
    if mark == "Ġ" and all(letter in _bytes() for letter in text):
        text = bytes(_bytes()[letter] for letter in text).decode(errors="replace").removeprefix(" ")
    return _printable(text.removeprefix(mark) if mark else text)


@cache
def _bytes() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable bytes stand for themselves, the others for letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(other)}


def _printable(text: str) -> str:
    """The text with control characters replaced (they would steer a terminal) and spaces alone made visible."""
    shown = "".join(VISIBLE.get(c, "�" if category(c) in {"Cc", "Cs"} else c) for c in text)
    return shown if shown.strip() else "␣"
