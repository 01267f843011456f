"""Which pixels of an image a map removes first: masks built where the map is, level by level."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate.metrics.maps import resize

Maps = Float[Tensor, "b y x"]
Masks = Callable[[slice, slice], Bool[Tensor, "l r h w"]]  # some images, some levels -> True where pixels are removed
ORDERS = {"positive": 1, "negative": -1}  # the highest of the map goes first, or of the negated map


def pixel_masks(maps: Maps, size: tuple[int, int], levels: Sequence[float]) -> Masks:
    """Remove `int(h w level)` pixels of the resized map, highest first."""
    counts = [int(size[0] * size[1] * level) for level in levels]
    # The rim of a resized map has many equal scores. On the processor `topk` decides between them, as it did for the
    # published numbers; elsewhere reading order does, and one sort serves all levels.
    return (_by_selection if maps.device.type == "cpu" else by_rank)(resize(maps, size), counts)


def patch_masks(maps: Maps, size: tuple[int, int], levels: Sequence[float]) -> Masks:
    """Remove `int(y x level)` patches, the units of the map, highest first."""
    rows, columns = maps.shape[1:]
    if size[0] % rows or size[1] % columns:
        raise InputError(f"images of {size[0]} x {size[1]} do not divide into {rows} x {columns} patches.")
    small = by_rank(maps, [int(rows * columns * level) for level in levels])
    height, width = size[0] // rows, size[1] // columns
    return lambda images, some: small(images, some).repeat_interleave(height, -2).repeat_interleave(width, -1)


UNITS = {"pixels": pixel_masks, "patches": patch_masks}


def by_rank(maps: Maps, counts: Sequence[int]) -> Masks:
    """The `count` highest scores of each map at each level, equal ones in reading order; one sort for all levels."""
    ranks, limits = _ranks(maps), torch.tensor(counts, device=maps.device).view(-1, 1, 1, 1)
    return lambda images, some: ranks[images] < limits[some]


def _ranks(maps: Maps) -> Int[Tensor, "b y x"]:
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)
    places = torch.arange(order.shape[1], device=order.device, dtype=torch.int32).expand_as(order)
    return torch.empty_like(places.contiguous()).scatter_(1, order, places).view(maps.shape)


def _by_selection(maps: Maps, counts: Sequence[int]) -> Masks:
    """The `count` highest scores of each map at each level, selected for every level anew."""
    flat = maps.flatten(1)

    def highest(images: slice, count: int) -> Bool[Tensor, "r h w"]:
        scores = flat[images]
        chosen = scores.topk(count, dim=1, sorted=False).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, value=True).view(-1, *maps.shape[1:])

    return lambda images, some: torch.stack([highest(images, count) for count in counts[some]])
