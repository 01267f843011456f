"""What the table knows of a data set, and how its options are checked."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vitrail.errors import InputError, OptionError, suggest
from vitrail.evaluate.data.dataset import Dataset


@dataclass(frozen=True)
class Entry:
    """One line of the table.

    Args:
        read: takes a path (or a `datasets` object where `needs` says so) and options as keywords.
        kind: `image`, `text` or `question`.
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
