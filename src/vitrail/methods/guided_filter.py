"""A coarse map brought to the edges of the picture it belongs to.

He, Sun and Tang, "Guided Image Filtering", ECCV 2010. Paper -> code: I -> guide, p -> maps, r -> radius.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Maps = Float[Tensor, "b y x"]


def box_mean(maps: Maps, radius: int) -> Maps:
    """The mean over a window of `2 radius + 1` pixels each way; at the border over what of it lies inside."""
    # Rows and columns one after the other: the windows are products, also where they are cut.
    across = F.avg_pool2d(maps, (1, 2 * radius + 1), 1, (0, radius), count_include_pad=False)
    return F.avg_pool2d(across, (2 * radius + 1, 1), 1, (radius, 0), count_include_pad=False)


def guided_filter(maps: Maps, guide: Maps, *, radius: int, eps: float) -> Maps:
    """Eqs. 5, 6 and 8: in every window the line of the guide that fits the map best; lines averaged over windows.

    Args:
        eps: how much the guide has to vary in a window for its edges to be followed, in squares of its values.
    """
    mean, seen = box_mean(guide, radius), box_mean(maps, radius)
    variance = box_mean(guide * guide, radius) - mean * mean
    slope = (box_mean(guide * maps, radius) - mean * seen) / (variance + eps)
    level = seen - slope * mean
    return box_mean(slope, radius) * guide + box_mean(level, radius)


def grey(images: Float[Tensor, "b c y x"]) -> Maps:
    """The mean over channels, from zero to one in every picture, however it was preprocessed."""
    mean = images.mean(dim=1)
    low, high = mean.amin(dim=(1, 2), keepdim=True), mean.amax(dim=(1, 2), keepdim=True)
    return (mean - low) / (high - low).clamp(min=1e-12)
