"""The pointing game: does the highest point of the map lie on the object?

Zhang et al., "Top-down Neural Attention by Excitation Backprop", IJCV 2018, arXiv:1608.00507, without their margin of
15 pixels unless it is asked for.
"""

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers
from vitrail.evaluate.metrics.maps import maps_and_masks


def pointing_game(maps: Numbers, masks: Numbers, *, margin: int = 0) -> Float[np.ndarray, " b"]:
    """1 where the highest point of the map hits the mask, else 0; the mean over examples is the published number.

    Several equally high points share the hit, so that a constant map scores the share the object has of the picture.

    Args:
        maps: one per example, of any size.
        masks: 1 on the object, -1 where a point does not count.
        margin: how many pixels next to the object still are hits.
    """
    if margin < 0:
        raise InputError(f"the margin is a number of pixels, at least 0, not {margin}.")
    resized, foreground, counted = maps_and_masks(maps, masks)
    resized = resized.masked_fill(~counted, -float("inf"))
    highest = resized == resized.amax(dim=(1, 2), keepdim=True)
    near = F.max_pool2d(foreground[:, None].float(), 2 * margin + 1, stride=1, padding=margin)[:, 0] > 0
    return (highest & near).sum(dim=(1, 2)).cpu().double().numpy() / highest.sum(dim=(1, 2)).cpu().numpy()
