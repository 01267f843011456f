"""Maps at the size of the picture, between 0 and 1."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, brief, check_axes, check_same, maps_of, to_tensor


def resize(maps: Float[Tensor, "b y x"], size: tuple[int, int]) -> Float[Tensor, "b h w"]:
    """The maps at this size: bilinear with half-pixel centres."""
    if tuple(maps.shape[1:]) == tuple(size):
        return maps
    return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def min_max(maps: Float[Tensor, "b h w"]) -> Float[Tensor, "b h w"]:
    """Each map scaled to 0..1; a constant map becomes zeros."""
    low, high = maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True)
    span = high - low
    return torch.where(span > 0, (maps - low) / span.clamp(min=torch.finfo(maps.dtype).tiny), 0.0)


def maps_and_masks(maps: Numbers, masks: Numbers) -> tuple[Tensor, Bool[Tensor, "b h w"], Bool[Tensor, "b h w"]]:
    """Maps at the size of the masks, the foreground, and the pixels that count (a mask's -1 does not)."""
    given, truth = maps_of(maps), to_tensor(masks).to(to_tensor(maps).device)
    check_axes(truth.shape, "masks", "b h w")
    check_same(given.shape[:1], truth.shape[:1], "the numbers of maps and of masks")
    if not bool(((truth == 0) | (truth == 1) | (truth == -1)).all()):
        raise InputError(
            f"masks hold 0 (background), 1 (foreground) and -1 (ignored), but these run from {truth.min().item()} "
            f"to {truth.max().item()}."
        )
    foreground, counted = truth == 1, truth != -1
    empty = (~foreground.flatten(1).any(dim=1)).nonzero().flatten().tolist()
    if empty:
        raise InputError(f"the masks of example {brief(empty)} have no foreground: leave these examples out.")
    return resize(given, (truth.shape[1], truth.shape[2])), foreground, counted
