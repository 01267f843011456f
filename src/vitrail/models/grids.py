"""How patches lie in a picture."""

from einops import reduce
from torch import Tensor


def patch_sums(pixels: Tensor, grid: tuple[int, int], patch: tuple[int, int] | None = None) -> Tensor:
    """The sum of a map over each patch; pixels left over at the edges belong to none.

    Args:
        patch: pixels of a patch in either direction; None where patches fill the picture.
    """
    tall, wide = patch or (pixels.shape[1] // grid[0], pixels.shape[2] // grid[1])
    inside = pixels[:, : grid[0] * tall, : grid[1] * wide]
    return reduce(inside, "b (y s) (x t) -> b (y x)", "sum", s=tall, t=wide)
