"""Random views of photographs, made for a whole batch at once on the device."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

GREY = (0.299, 0.587, 0.114)


def random_crop(images: Tensor, *, smallest: float) -> Tensor:
    """One crop of each image, of a random area and aspect ratio, half of them mirrored.

    Args:
        smallest: the least share of the area a crop may keep.
    """
    b, device = len(images), images.device
    area = torch.empty(b, device=device).uniform_(smallest, 1)
    ratio = torch.empty(b, device=device).uniform_(-math.log(4 / 3), math.log(4 / 3)).exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    left, top = (torch.empty(b, device=device).uniform_(-1, 1) for _ in range(2))
    mirror = torch.randint(0, 2, (b,), device=device) * 2 - 1
    zero = torch.zeros_like(width)
    rows = [
        torch.stack([width * mirror, zero, left * (1 - width)], dim=1),
        torch.stack([zero, height, top * (1 - height)], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def jitter_colours(images: Tensor, *, strength: float) -> Tensor:
    """Brightness, contrast and saturation changed at random, one image in twenty made grey; values from 0 to 1."""
    b, device = len(images), images.device
    bright, contrast, colour = 1 + torch.empty(3, b, 1, 1, 1, device=device).uniform_(-strength, strength)
    colour = torch.where(torch.rand_like(colour) < 0.05, 0, colour)
    images = images * bright
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = mean + contrast * (images - mean)
    grey = (images * images.new_tensor(GREY).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    return (grey + colour * (images - grey)).clamp(0, 1)


def mix(images: Tensor, labels: Tensor, *, share: float) -> tuple[Tensor, Tensor]:
    """Images mixed with those of the batch in reverse, and their labels in the same proportion.

    Two thirds of the mixed ones are blended (mixup, uniform weight), one third get a rectangle of the other (cutmix).

    Args:
        share: the share of the images that is mixed at all.
    """
    b, _, height, width = images.shape
    keep = torch.rand(b, 1, 1, 1, device=images.device)
    blended = keep.expand(b, 1, height, width)
    pasted = _outside_boxes(keep, height, width)
    kind = torch.rand_like(keep)
    weight = torch.where(kind < share / 3, pasted, torch.where(kind < share, blended, 1.0))
    amount = weight.mean(dim=(1, 2, 3)).unsqueeze(1)
    mixed = weight * images + (1 - weight) * images.flip(0)
    return mixed, amount * labels + (1 - amount) * labels.flip(0)


def _outside_boxes(keep: Tensor, height: int, width: int) -> Tensor:
    """One outside and zero inside a random rectangle that covers a share `1 - keep` of each image."""
    half = (1 - keep).sqrt() / 2
    y = (torch.arange(height, device=keep.device).view(1, 1, -1, 1) + 0.5) / height
    x = (torch.arange(width, device=keep.device).view(1, 1, 1, -1) + 0.5) / width
    inside = ((y - torch.rand_like(keep)).abs() < half) & ((x - torch.rand_like(keep)).abs() < half)
    return 1 - inside.to(keep.dtype)
