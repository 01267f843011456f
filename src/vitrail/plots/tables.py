"""Scores as tables: the strongest tokens or patches of a sample, and data frames of pandas."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vitrail.attribution import Attribution
from vitrail.errors import MissingExtraError, OptionError, is_whole
from vitrail.models.texts import is_wordpiece, pieces_of
from vitrail.plots.canvas import check_index
from vitrail.plots.tokens import real_tokens, token_names

if TYPE_CHECKING:
    from pandas import DataFrame


class RankedToken(NamedTuple):
    """A token or patch with its score.

    Args:
        text: the token as text, or where the patch lies: `row 3, column 5`.
        score: as pictures show it.
        position: its column in `scores`.
    """

    text: str
    score: float
    position: int


def rank(attribution: Attribution, k: int, index: int) -> list[RankedToken]:
    """Return the tokens or patches of a sample with the largest magnitudes, the largest first."""
    if not is_whole(k) or k < 1:
        raise OptionError(f"top({k!r}): k says how many are returned, a whole number from 1 on.")
    index = check_index(attribution, index)
    positions = _shown_positions(attribution, index)
    values = attribution.shown[index].detach().double().cpu()
    order = values[positions].abs().argsort(descending=True, stable=True)[:k].tolist()
    texts = _texts(attribution, index)
    return [
        RankedToken(texts[position], float(values[position]), position)
        for position in map(positions.__getitem__, order)
    ]


def _shown_positions(attribution: Attribution, index: int) -> list[int]:
    """Return the positions of a sample without padding and without the token that the prediction is read from."""
    readout = -1
    if attribution.kind == "text" and attribution.readout is not None:
        readout = int(attribution.readout[index])
    return [position for position in real_tokens(attribution, index) if position != readout]


def _texts(attribution: Attribution, index: int) -> list[str]:
    """Return each token as text, or the row and column of each patch."""
    if attribution.tokens is None and attribution.grid is not None:
        places = (divmod(position, attribution.grid[1]) for position in range(attribution.scores.shape[1]))
        return [f"row {row}, column {column}" for row, column in places]
    return token_texts(token_names(attribution, index))


def token_texts(tokens: Sequence[str]) -> list[str]:
    """Return tokens as the text they stand for: `Ġcapital` is " capital". A token with half a letter stays as it is."""
    if is_wordpiece(tokens):
        return list(tokens)
    return [text or token for text, token in zip(pieces_of(tokens), tokens, strict=True)]


def data_frame(attributions: Sequence[Attribution], methods: Sequence[str] = ()) -> "DataFrame":
    """Return a table with a row for each sample and token or patch.

    Args:
        methods: the label of each attribution, for a column of that name.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise MissingExtraError("tables are made with pandas: pip install pandas") from error
    rows: list[dict[str, Any]] = []
    for number, attribution in enumerate(attributions):
        label = {"method": methods[number]} if methods else {}
        for name, stream in (attribution.streams or {"": attribution}).items():
            named = {**label, "stream": name} if name else label
            for index in range(len(stream)):
                rows += [{**named, **row} for row in _score_rows(stream, index)]
    return DataFrame(rows)


def _score_rows(attribution: Attribution, index: int) -> list[dict[str, Any]]:
    """Return a row for each token or patch of a sample."""
    target, texts = attribution.title(index, probable=False), _texts(attribution, index)
    shown = attribution.shown[index].detach().cpu()
    own = attribution.scores[index].detach().cpu() - shown
    rows = []
    for position in real_tokens(attribution, index):
        row: dict[str, Any] = {"sample": index, "target": target, "position": position}
        if attribution.tokens is None and attribution.grid is not None:
            row["row"], row["column"] = divmod(position, attribution.grid[1])
        else:
            row["token"] = texts[position]
        rows.append({**row, "score": float(shown[position]), "own": float(own[position])})
    return rows
