"""A metric of the bench as one object, `Measure`: how it is measured, its columns, its curves and its description.

`Measure.run` turns a batch and the maps of one method (`Shown`) into plain numbers for each example. A metric may also
need the maps of other classes (`Further`) or of the model with randomised weights. The numbers are stored:
counts, or one point of a curve for each level. The metric itself is computed later, from the stored numbers. `Column`
computes one number of a table from them, `CurvePanel` one curve of a figure. A column is a function of means over
examples, so a bootstrap needs only weighted means of the features, also where pixels are pooled over a data set.

To add a metric, write its `Measure` in a file of its own or beside the others of its kind (`on_pictures`, `on_texts`,
`on_both`), and add one line to `MEASURE_PLACES` in `vitrail.evaluate`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitrail.evaluate.bench.protocols import Protocol

Values = list[dict[str, Any]]
"""For each example the plain numbers that are stored of it."""
Classes = tuple[int, ...]
Further = Callable[..., tuple[Classes, ...]]
"""From a batch and the explained class of each example to the other classes that a metric wants explained of it."""


@dataclass(frozen=True, eq=False)
class Shown:
    """The results of one method on a batch.

    Args:
        scores: one per patch or token.
        classes: the explained class of each example; empty for questions and contexts.
        maps: for pictures, the patches in their places.
        pixels: for methods that work on pixels.
        others: for each example, what is shown for the other classes that a metric asks for.
        cascade: the scores of the model whose parts are randomised one after the other, with the parts' names.
        failed: for contexts, which are explained one by one, why the method has no scores of an example.
    """

    scores: Float[Tensor, "b n"]
    classes: Classes
    maps: Float[Tensor, "b y x"] | None = None
    pixels: Float[Tensor, "b h w"] | None = None
    others: tuple[Mapping[int, "Shown"], ...] = ()
    cascade: Sequence[tuple[str, Float[Tensor, "b n"]]] = ()
    failed: tuple[str | None, ...] = ()

    @property
    def finest(self) -> Float[Tensor, "b y x"]:
        """The map as fine as the method gives it."""
        found = self.maps if self.pixels is None else self.pixels
        assert found is not None
        return found

    @property
    def places(self) -> Float[Tensor, "b y x"]:
        """One value per patch."""
        assert self.maps is not None
        return self.maps

    def take(self, rows: Sequence[int]) -> "Shown":
        """Some of the examples."""
        some = list(rows)
        return Shown(
            self.scores[some],
            tuple(self.classes[i] for i in some) if self.classes else (),
            None if self.maps is None else self.maps[some],
            None if self.pixels is None else self.pixels[some],
            tuple(self.others[i] for i in some) if self.others else (),
            [(part, scores[some]) for part, scores in self.cascade],
            tuple(self.failed[i] for i in some) if self.failed else (),
        )


Stored = Sequence[tuple[Any, ...]]
"""For each example, what is stored of the metrics that a column needs."""
Array = np.ndarray
ARROWS = {True: "↑", False: "↓", None: ""}


@dataclass(frozen=True)
class Column:
    """One number of a table.

    Args:
        needs: the stored metrics it is made of.
        higher: whether more is better; None where neither is.
        features: from the examples' stored values, one tuple each, to their features `[n, f]`.
        finish: from means of the features `[..., f]` to the number `[...]`.
    """

    name: str
    needs: tuple[str, ...]
    higher: bool | None
    features: Callable[[Stored], Array]
    finish: Callable[[Array], Array] = lambda means: means[..., 0]

    @property
    def title(self) -> str:
        """The name with an arrow that points to where better is."""
        return f"{self.name} {ARROWS[self.higher]}".strip()


@dataclass(frozen=True)
class CurvePanel:
    """One kind of curve in the figure of a results file: the mean over examples.

    Args:
        across: the words below the horizontal axis.
        up: the words beside the vertical axis.
        curve: from what is stored of one example to the heights of its curve.
        places: from the protocol and the number of points to their places on the horizontal axis.
    """

    name: str
    across: str
    up: str
    curve: Callable[[Mapping[str, Any]], Sequence[float] | Array]
    places: Callable[[Protocol, int], Array]


@dataclass(frozen=True)
class Measure:
    """A metric: one object for the worker, the tables, the figures and the manual.

    Args:
        words: what it measures, in one line.
        run: from a batch, the maps of one method and the protocol to what is stored of each example.
        kinds: the data it measures on.
        columns: the columns of a table, with their direction, under a protocol.
        gives: what the data set must know of an example.
        further: the classes it wants explained beside the protocol's.
        randomised: whether it also wants the model explained while its weights are randomised.
        panels: the curves it draws.
    """

    name: str
    words: str
    run: Callable[..., Values]
    kinds: tuple[str, ...]
    columns: Callable[[Protocol], list[Column]]
    gives: frozenset[str] = frozenset()
    further: Further | None = None
    randomised: bool = False
    panels: tuple[CurvePanel, ...] = ()


def plain(name: str, metric: str, entry: str, *, higher: bool = True) -> Column:
    """The mean over examples of one stored entry."""
    return Column(
        name, (metric,), higher, lambda values: np.array([[row[entry]] for (row,) in values], dtype=np.float64)
    )
