"""What a data set gives: one picture, one text or one question, with what people said about it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

IGNORE = -1
"""The mask value of pixels that count neither for nor against an explanation."""

Mask = Int[Tensor, "y x"]


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels of the stored picture, its far edges not inside, and the class of what it holds."""

    x0: float
    y0: float
    x1: float
    y1: float
    label: int | None = None


@dataclass(frozen=True)
class ImageExample:
    """One picture; nothing is decoded before `image` or `mask` is asked for, and nothing decoded is kept.

    Args:
        key: the same for the same example in every run, and unique in its set.
        label: the class number, None where the set has none.
        open_image: gives the picture as RGB; raises an InputError with the key where the file is damaged.
        open_mask: gives the mask, where the set has masks.
    """

    key: str
    open_image: "Callable[[], Image]" = field(repr=False, compare=False)
    label: int | None = None
    boxes: tuple[Box, ...] = ()
    open_mask: Callable[[], Mask] | None = field(default=None, repr=False, compare=False)

    @property
    def image(self) -> "Image":
        """The picture as RGB, in the orientation in which it is stored: masks and boxes are in its pixels."""
        return self.open_image()

    @property
    def mask(self) -> Mask | None:
        """What each pixel shows: 0 background, above it the object or its class, `IGNORE` what does not count."""
        return self.open_mask() if self.open_mask else None

    @property
    def mask_labels(self) -> tuple[int, ...]:
        """The values above background that the mask holds."""
        mask = self.mask
        return () if mask is None else tuple(value for value in mask.unique().tolist() if value > 0)


@dataclass(frozen=True)
class Span:
    """Neighbouring words, counted from 0; `end` is one past the last."""

    start: int
    end: int


@dataclass(frozen=True)
class TextExample:
    """One text, or a pair of texts.

    Args:
        key: the same for the same example in every run, and unique in its set.
        second: the second text of a pair.
        label: the class number, None where it is not published.
        rationale: the words of `text` that people named as the reason for the label.
    """

    key: str
    text: str
    second: str | None = None
    label: int | None = None
    rationale: tuple[Span, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or both texts of a pair, as a tokenizer takes them."""
        return (self.text,) if self.second is None else (self.text, self.second)

    @property
    def words(self) -> tuple[str, ...]:
        """The words that a rationale counts: what stands between white space."""
        return tuple(self.text.split())

    @property
    def rationale_mask(self) -> Bool[Tensor, " t"]:
        """True for each word of the rationale."""
        mask = torch.zeros(len(self.words), dtype=torch.bool)
        for span in self.rationale:
            mask[span.start : span.end] = True
        return mask


@dataclass(frozen=True)
class Answer:
    """An answer as it stands in the context, and the number of its first character there."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """One past its last character."""
        return self.start + len(self.text)


@dataclass(frozen=True)
class QuestionExample:
    """A question about a context, with an answer by each person who was asked; none if it cannot be answered."""

    key: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()

    @property
    def answerable(self) -> bool:
        """Whether the context holds an answer."""
        return bool(self.answers)


Example = ImageExample | TextExample | QuestionExample
