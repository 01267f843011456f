"""The data of a report: the inputs, the model's answer to each, and every method's map."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
from jaxtyping import Float

from vitrail.evaluate.metrics import area
from vitrail.plots.tokens import Piece

Curve = tuple[float, ...]
"""The probability of the explained class while 0, 10, ..., 100 % are removed, the highest scores first."""


@dataclass(frozen=True)
class Map:
    """What one method shows of one input.

    Args:
        picture: of an image, the bytes of a file.
        pieces: of a text.
        curve: None where none was asked for.
    """

    label: str
    signed: bool
    picture: bytes = field(repr=False, default=b"")
    pieces: tuple[Piece, ...] = field(repr=False, default=())
    curve: Curve | None = None

    @property
    def area(self) -> float | None:
        """Under the curve, from 0 to 1; less is better."""
        return None if self.curve is None else area_under(self.curve)

    @property
    def strongest(self) -> list[Piece]:
        """The three pieces of a text with the largest scores, as words instead of colours."""
        return sorted((p for p in self.pieces if not p.left_out), key=lambda piece: -abs(piece.score))[:3]


@dataclass(frozen=True, eq=False)
class Row:
    """One target of an input, explained by every method.

    Args:
        target: in the names of the model's classes.
        probability: of the target's class.
        failed: methods that could not explain it, and why.
        agreement: rank correlation of every two maps.
        random: the curve of random orders, their mean.
        no_curve: why there is none, though it was asked for.
    """

    target: str
    probability: float | None
    maps: tuple[Map, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    agreement: Float[np.ndarray, "m m"] | None = None
    random: Curve | None = None
    no_curve: str = ""

    @property
    def mean_agreement(self) -> float | None:
        """The mean over all pairs of methods."""
        return None if self.agreement is None else float(self.agreement[np.triu_indices(len(self.maps), 1)].mean())


@dataclass(frozen=True, eq=False)
class Entry:
    """One input with the model's answer.

    Args:
        text: the sentence, for models of text.
        picture: what the model saw, for models of images.
    """

    name: str
    answer: str
    probability: float
    rows: tuple[Row, ...]
    text: str = ""
    picture: bytes = field(repr=False, default=b"")


@dataclass(frozen=True, eq=False)
class Report:
    """Inputs and their explanations.

    Args:
        source: the name of the folder or file.
        kind: `"image"` or `"text"`.
        about: where the results come from, in words: model, hash, versions, preset, options.
        methods: label -> preset and options, in words.
        broken: inputs that could not be explained, and why.
    """

    source: str
    kind: str
    made: datetime
    about: Mapping[str, str]
    methods: Mapping[str, str]
    entries: tuple[Entry, ...]
    broken: Mapping[str, str]

    @property
    def curves(self) -> bool:
        """Whether any map has a curve."""
        return any(shown.curve is not None for row in self.rows() for shown in row.maps)

    def rows(self) -> Iterator[Row]:
        """Every target of every input."""
        return (row for entry in self.entries for row in entry.rows)

    def to_html(self) -> str:
        """The page."""
        from vitrail.plots.report.page import to_page

        return to_page(self)

    def save(self, path: str | Path) -> Path:
        """Write the page; it needs no other file."""
        from vitrail.storage import write_bytes

        return write_bytes(Path(path), self.to_html().encode())


def area_under(curve: Curve) -> float:
    """The area under a curve, from 0 to 1."""
    return float(area(np.array(curve), rule="unit")) / 100
