"""How far a rewritten picture may go from the original."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.tools.lens import Levels, to_levels

ROUNDING = 1e-6


@dataclass(frozen=True)
class Budget:
    """The largest change, in units of the range 0 to 1; None for as far as it takes.

    Args:
        l2: of the Euclidean norm over all values.
        linf: of any one value.
    """

    l2: float | None = None
    linf: float | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that are none."""
        for name, size in (("l2", self.l2), ("linf", self.linf)):
            if size is not None and not (math.isfinite(size) and size > 0):
                raise OptionError(f"{name}={size}, but a budget is a size above 0, in units of the range 0 to 1.")
        if self.linf is not None and self.linf < (1 - ROUNDING) / 255:
            raise OptionError(f"linf={self.linf} is less than one of the 255 steps of an 8-bit picture: nothing fits.")

    def holds(self, *, l2: float, linf: float) -> bool:
        """Whether a change of this size is within the budget."""
        pairs = ((self.l2, l2), (self.linf, linf))
        return all(limit is None or size <= limit + ROUNDING for limit, size in pairs)

    def typical(self, count: int) -> float:
        """The change of each of so many values that just fills the budget; 0 where there is none."""
        sizes = [self.l2 and self.l2 / math.sqrt(count), self.linf]
        return min([size for size in sizes if size is not None], default=0.0)

    def project(self, change: Tensor) -> Tensor:
        """The nearest change within the budget."""
        if self.linf is not None:
            change = change.clamp(-self.linf, self.linf)
        if self.l2 is not None:
            change = change * min(1.0, self.l2 / max(float(change.norm()), torch.finfo(change.dtype).tiny))
        return change

    def quantise(self, pixels: Levels, original: Levels) -> Levels:
        """The nearest 8-bit picture within the budget: where rounding leads out of it, the smallest changes are undone.

        Args:
            original: on 256 levels.
        """
        change = (to_levels(pixels) - original).mul(255).round()
        if self.linf is not None:
            whole = math.floor(self.linf * 255 + ROUNDING)
            change = change.clamp(-whole, whole)
        if self.l2 is not None:
            order = (pixels - original).abs().flatten().argsort(descending=True)
            spent = change.flatten()[order].double().square().cumsum(dim=0)
            kept = torch.empty_like(order, dtype=torch.bool)
            kept[order] = spent <= (self.l2 * 255) ** 2
            change = change * kept.view_as(change)
        return to_levels(original + change / 255)
