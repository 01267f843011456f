"""`Dataset`: examples in a fixed order, read one by one when they are asked for."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar, overload

from vitrail.errors import InputError, OptionError
from vitrail.evaluate.data.examples import Example

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
        """The examples in order; after an InputError `next` goes on with the example behind the broken one."""
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
            raise OptionError(f"{count} examples cannot be spread; ask for at least 1.")
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
