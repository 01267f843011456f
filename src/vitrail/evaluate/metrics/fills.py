"""Fills for removed pixels: functions from images `[b, c, h, w]` in 0..1 to images of the same shape."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import InputError, OptionError
from vitrail.evaluate.metrics.arrays import check_same, look_up

Images = Float[Tensor, "b c h w"]
Fill = Callable[[Tensor], Tensor]


def constant(value: float) -> Fill:
    """One value everywhere: 0 is black."""
    if not 0 <= value <= 1:
        raise OptionError(f"images lie in 0..1 before they are normalised, so a fill of {value:g} is not a colour.")
    return lambda images: torch.full_like(images, value)


def mean(images: Images) -> Images:
    """Each image's own mean colour."""
    return images.mean(dim=(2, 3), keepdim=True).expand_as(images)


def blur(*, kernel: int = 11, sigma: float = 5.0) -> Fill:
    """The image blurred by a Gaussian, edges mirrored; kernel 11 and sigma 5 as in TIS."""
    if kernel < 1 or kernel % 2 == 0 or sigma <= 0:
        raise OptionError(f"a blur needs an odd kernel and a positive sigma, not {kernel} and {sigma:g}.")

    def blurred(images: Images) -> Images:
        channels, margin = images.shape[1], kernel // 2
        if min(images.shape[2:]) <= margin:
            raise InputError(f"a blur of {kernel} pixels needs larger images than {list(images.shape[2:])}.")
        places = torch.arange(-margin, margin + 1, device=images.device, dtype=torch.float32)
        weights = torch.softmax(-(places**2) / (2 * sigma**2), dim=0).to(images.dtype)
        padded = F.pad(images, (margin,) * 4, mode="reflect")
        rows = weights.view(1, 1, -1, 1).expand(channels, 1, -1, 1)
        return F.conv2d(F.conv2d(padded, rows, groups=channels), rows.transpose(2, 3), groups=channels)

    return blurred


def noise(*, seed: int = 0) -> Fill:
    """One picture of uniform noise for all images, so that a batch gives the same as its examples one by one."""

    def noisy(images: Images) -> Images:
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(images.shape[1:], generator=generator).to(images).expand_as(images)

    return noisy


FILLS: dict[str, Fill] = {"black": constant(0.0), "grey": constant(0.5), "mean": mean, "blur": blur(), "noise": noise()}


def filled(images: Images, fill: str | Fill) -> Images:
    """The images as they look when everything is removed."""
    background = (look_up(FILLS, fill, "fill") if isinstance(fill, str) else fill)(images)
    check_same(images.shape, background.shape, "the shapes of the images and of what the fill made of them")
    return background.to(images)
