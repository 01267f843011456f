"""What one method made of a batch, as metrics see it."""

from collections.abc import Sequence
from dataclasses import dataclass
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
        maps: for pictures, the patches in their places.
        pixels: for methods that work on pixels.
        classes: the explained class of each example; empty for questions.
        other: the scores for another class, where a metric compares the two.
    """

    scores: Float[Tensor, "b n"]
    classes: tuple[int, ...]
    maps: Float[Tensor, "b y x"] | None = None
    pixels: Float[Tensor, "b h w"] | None = None
    other: Float[Tensor, "b n"] | None = None

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

        def some(x: Tensor | None) -> Any:  # noqa: ANN401
            return None if x is None else x[list(rows)]

        classes = tuple(self.classes[i] for i in rows) if self.classes else ()
        return Shown(some(self.scores), classes, some(self.maps), some(self.pixels), some(self.other))
