"""How patches lie in a picture."""

from einops import reduce
from torch import Tensor

from vitrail.errors import OptionError


def patch_sums(pixels: Tensor, grid: tuple[int, int]) -> Tensor:
    """The sum of a map over each patch; pixels left over at the edges belong to none."""
    side = min(pixels.shape[1] // grid[0], pixels.shape[2] // grid[1])
    inside = pixels[:, : grid[0] * side, : grid[1] * side]
    return reduce(inside, "b (y s) (x t) -> b (y x)", "sum", s=side, t=side)


def grid_of(patches: int, size: tuple[int, int]) -> tuple[int, int]:
    """How square patches lie in an image of this size; what is left over at its edges is not seen by the model."""
    height, width = size
    likely = (height * width / max(patches, 1)) ** 0.5
    for side in sorted(range(1, min(size) + 1), key=lambda side: abs(side - likely)):
        if (height // side) * (width // side) == patches:
            return height // side, width // side
    raise OptionError(
        f"{patches} patches do not tile an image of {height} x {width} with square patches. If tokens stand before "
        "the patches, name their number: vitrail.Anatomy(prefix=...)."
    )
