"""How pictures are stitched and explained, and what came of it: plain data of `guide`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.models.anatomy import Anatomy
from vitrail.tools.guides import Guide, Preprocess
from vitrail.tools.looking import Seen
from vitrail.tools.stitch import Canvas, plan_canvas

DEFAULT_METHOD = "complete_gradient"


@dataclass(frozen=True)
class Setup:
    """How pictures are stitched and explained.

    Args:
        options: what `explain` takes beside the method.
        named: from a class index to what warnings call it.
    """

    layout: str = "beside"
    side: str | None = None
    size: str = "resize"
    method: str = DEFAULT_METHOD
    options: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Preprocess | None = None
    anatomy: Anatomy | None = None
    named: Callable[[int], str] = lambda index: f"class {index}"

    def canvas(self, seen: Seen) -> Canvas:
        """The canvas for pictures like this one."""
        assert seen.grid is not None
        return plan_canvas(self.layout, self.side, self.size, (seen.size, seen.grid))

    def about(self, guides: Sequence[Guide]) -> dict[str, Any]:
        """What a result keeps of it."""
        return {
            "layout": self.layout,
            "side": self.side,
            "size": self.size,
            "guides": [list(guide.classes) for guide in guides],
            "probabilities": [list(guide.likely) for guide in guides],
        }


@dataclass(frozen=True, eq=False)
class Guided:
    """One stitched picture as the model takes it, what was found on the whole of it, and the original's part."""

    stitched: Tensor
    whole: Attribution
    part: Attribution
