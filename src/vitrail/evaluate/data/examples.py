"""An example is one picture, text, question or context with its annotations; a `Dataset` reads examples one by one.

The `key` of an example is the same in every run, and unique in its data set.
`DatasetEntry` is a line of the table of data sets: its reader, its kind and the options of the reader.
"""

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vitrail.errors import InputError, OptionError, suggest

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
        """The class of each pixel: 0 background, above it the object or its class, `IGNORE` what does not count."""
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
class GoldAnswer:
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
    answers: tuple[GoldAnswer, ...] = ()

    @property
    def answerable(self) -> bool:
        """Return True if the context holds an answer."""
        return bool(self.answers)


@dataclass(frozen=True)
class ContextExample:
    """Sentences and a question about them that a language model answers in its own words.

    Args:
        gold: the places of the sentences that hold the answer; empty where they are not known.
        value: the words in them that the answer repeats.
    """

    key: str
    sentences: tuple[str, ...]
    question: str
    gold: tuple[int, ...] = ()
    value: str = ""


Example = ImageExample | TextExample | QuestionExample | ContextExample


E = TypeVar("E", bound=Example)


@dataclass(frozen=True)
class Dataset(Generic[E]):
    """The examples of one set; only their places are held in memory.

    What is wrong with the whole set is raised when it is opened. What is wrong with one example is raised when that
    example is read, as an InputError with its key, and leaves the others readable.

    Args:
        source: where it was read from.
        order: the numbers of the examples in the source.
        key_of: from such a number to the example's key.
        read: from such a number to the example.
        classes: names of the labels.
        mask_classes: names of the mask values.
    """

    name: str
    source: str
    order: Sequence[int] = field(repr=False)
    key_of: Callable[[int], str] = field(repr=False)
    read: Callable[[int], E] = field(repr=False)
    classes: Mapping[int, str] = field(default_factory=dict, repr=False)
    mask_classes: Mapping[int, str] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, which: int) -> E: ...
    @overload
    def __getitem__(self, which: slice) -> "Dataset[E]": ...
    def __getitem__(self, which: int | slice) -> "E | Dataset[E]":
        """One example, or a part of the set: `[::2]` the even ones, `[1::2]` the odd ones."""
        if isinstance(which, slice):
            return replace(self, order=self.order[which])
        return self.read(self.order[which])

    def __iter__(self) -> Iterator[E]:
        """The examples in order; after an InputError `next` goes on with the example after the broken one."""
        return map(self.__getitem__, range(len(self)))

    @property
    def keys(self) -> list[str]:
        """The keys in order, without reading an example."""
        return [self.key_of(number) for number in self.order]

    def take(self, *, limit: int | None = None, offset: int = 0, every: int = 1) -> "Dataset[E]":
        """Every n-th example from an offset on, at most `limit` of them."""
        if offset < 0 or every < 1 or (limit is not None and limit < 1):
            raise OptionError(
                f"offset={offset}, every={every}, limit={limit}: needs offset >= 0, every and limit >= 1."
            )
        if offset >= len(self):
            raise OptionError(f"offset={offset} is past the end: {self.name} has {len(self)} examples here.")
        return self[offset::every][:limit]

    def spread(self, count: int) -> "Dataset[E]":
        """So many examples at even distances, since files often hold one class after the other; all if it has fewer."""
        if count < 1:
            raise OptionError(f"{count} examples were asked for; ask for at least 1.")
        if count >= len(self):
            return self
        return replace(self, order=tuple(self.order[i * len(self) // count] for i in range(count)))


def require_unique(keys: Iterable[Hashable], where: object) -> None:
    """Raise if a key appears twice, since results are stored under it."""
    seen: set[Hashable] = set()
    for key in keys:
        if key in seen:
            raise InputError(f"{where} names {key} twice; every example needs its own key.")
        seen.add(key)


@dataclass(frozen=True)
class DatasetEntry:
    """One line of the table.

    Args:
        read: takes a path (or a `datasets` object where `needs` says so) and options as keywords.
        kind: `image`, `text`, `question`, or `answer` for contexts that a language model answers from.
        gives: what an example carries beside its input.
        needs: what has to lie at the path.
        paper: where it was published.
        classes: the names of the labels, or of the mask values, where they are always the same.
    """

    name: str
    read: Callable[..., Dataset[Any]]
    kind: str
    gives: tuple[str, ...]
    needs: str
    paper: str
    classes: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its default."""
        parameters = inspect.signature(self.read).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def open(self, source: Any, **options: Any) -> Dataset[Any]:  # noqa: ANN401
        """The data set at a path, with at least one example."""
        for name in options:
            if name not in self.options:
                raise OptionError(f"{self.name} has no option {name!r}. {suggest(name, self.options)}")
        dataset = self.read(source, **options)
        if not len(dataset):
            raise InputError(f"{dataset.source} holds no examples of {self.name}.")
        return dataset
