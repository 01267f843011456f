"""What one method made of a batch, as metrics see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

Values = list[dict[str, Any]]
"""For each example the plain numbers that are stored of it."""


@dataclass(frozen=True, eq=False)
class Shown:
    """What one method made of a batch.

    Args:
        scores: one per patch or token.
        classes: the explained class of each example; empty for questions.
        maps: for pictures, the patches in their places.
        pixels: for methods that work on pixels.
        others: for each example, what is shown for the other classes that a metric asks for.
        cascade: the scores of the model whose parts are randomised one after the other, with the parts' names.
    """

    scores: Float[Tensor, "b n"]
    classes: tuple[int, ...]
    maps: Float[Tensor, "b y x"] | None = None
    pixels: Float[Tensor, "b h w"] | None = None
    others: tuple[Mapping[int, "Shown"], ...] = ()
    cascade: Sequence[tuple[str, Float[Tensor, "b n"]]] = ()

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

    def with_(self, others: tuple[Mapping[int, "Shown"], ...], cascade: Sequence[tuple[str, Tensor]]) -> "Shown":
        """The same beside what else a metric asks for."""
        return replace(self, others=others, cascade=cascade)

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
        )
