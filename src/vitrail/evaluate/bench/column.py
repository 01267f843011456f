"""`Column`: how one number of a table is made of what is stored of the examples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Values = Sequence[tuple[Any, ...]]
Array = np.ndarray
TINY = float(np.finfo(np.float64).tiny)
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
    features: Callable[[Values], Array]
    finish: Callable[[Array], Array] = lambda means: means[..., 0]

    @property
    def title(self) -> str:
        """The name with an arrow to where better is."""
        return f"{self.name} {ARROWS[self.higher]}".strip()
