"""Maps against boxes, masks and grid cells: the share of energy inside, the highest point, the box of the map.

Pointing game: Zhang et al., "Top-down Neural Attention by Excitation Backprop", IJCV 2018, arXiv:1608.00507, without
their margin of 15 pixels by default. Energy: Wang et al., "Score-CAM", CVPR Workshops 2020, arXiv:1910.01279. Box IoU:
the usual test of weakly supervised localisation, a box around the largest connected region above the threshold.
Boxes are left, top, right, bottom in pixels, right and bottom outside the box; several boxes of an image are `[n, 4]`.
"""

from collections.abc import Sequence

import numpy as np
import scipy
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import (
    Numbers,
    brief,
    check_same,
    flags_of,
    look_up,
    maps_and_masks,
    maps_of,
    min_max,
    resize,
    to_array,
)

THRESHOLDS = {
    "mean": lambda picture: picture.mean(),
    "half": lambda picture: 0.5,
}


def box_energy(maps: Numbers, boxes: Sequence[Numbers] | Numbers, size: tuple[int, int]) -> Float[np.ndarray, " b"]:
    """The share of the map's positive part that lies inside the boxes; 0 for a map without a positive part."""
    resized, inside = _resized(maps, size), box_masks(boxes, size)
    check_same(resized.shape[:1], inside.shape[:1], "the numbers of maps and of lists of boxes")
    return _energy_inside(resized, inside)


def box_iou(
    maps: Numbers, boxes: Sequence[Numbers] | Numbers, size: tuple[int, int], *, threshold: str = "mean"
) -> Float[np.ndarray, " b"]:
    """IoU of the box around the map's largest region with the true box that fits best; at least 0.5 counts as found.

    Args:
        maps: one per example, of any size.
        boxes: `[b, 4]`, or one `[n, 4]` per example.
        size: height and width of the picture the boxes were drawn in.
        threshold: `"mean"` of each map, or `"half"` of its range.
    """
    level = look_up(THRESHOLDS, threshold, "threshold")
    pictures, truth = min_max(_resized(maps, size)).cpu().numpy(), _boxes(boxes, size)
    check_same([len(pictures)], [len(truth)], "the numbers of maps and of lists of boxes")
    pairs = zip(pictures, truth, strict=True)
    return np.array([_overlap(_box_around(picture > level(picture)), true).max() for picture, true in pairs])


def box_masks(boxes: Sequence[Numbers] | Numbers, size: tuple[int, int]) -> Bool[np.ndarray, "b h w"]:
    """True inside any of an example's boxes."""
    listed = _boxes(boxes, size)
    masks = np.zeros((len(listed), *size), dtype=bool)
    for mask, some in zip(masks, listed, strict=True):
        for left, top, right, bottom in np.round(some).astype(int):
            mask[top:bottom, left:right] = True
    return masks


def _resized(maps: Numbers, size: tuple[int, int]) -> torch.Tensor:
    return resize(maps_of(maps), size)


def _boxes(boxes: Sequence[Numbers] | Numbers, size: tuple[int, int]) -> list[np.ndarray]:
    listed = [np.atleast_2d(to_array(some).astype(np.float64)) for some in boxes]
    height, width = size
    for index, some in enumerate(listed):
        if some.shape[1:] != (4,):
            raise InputError(f"a box is left, top, right, bottom, but example {index} has shape {list(some.shape)}.")
        left, top, right, bottom = some.T
        good = (left >= 0) & (left < right) & (right <= width) & (top >= 0) & (top < bottom) & (bottom <= height)
        if not good.all() or not len(some):
            raise InputError(
                f"example {index}: box {brief(np.flatnonzero(~good).tolist()) or 'list'} = {some[~good].tolist()} is "
                f"empty or leaves the picture of {height} x {width} (left, top, right, bottom)."
            )
    return listed


def _box_around(region: Bool[np.ndarray, "h w"]) -> Float[np.ndarray, "4"]:
    """The box around the largest connected part; an empty box where there is none."""
    labels, count = scipy.ndimage.label(region)  # pyright: ignore[reportGeneralTypeIssues]
    if not count:
        return np.zeros(4)
    largest = 1 + int(np.bincount(labels.ravel())[1:].argmax())
    rows, columns = scipy.ndimage.find_objects(labels)[largest - 1]
    return np.array([columns.start, rows.start, columns.stop, rows.stop], dtype=np.float64)


def _overlap(box: Float[np.ndarray, "4"], others: Float[np.ndarray, "n 4"]) -> Float[np.ndarray, " n"]:
    shared = np.clip(np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]), 0, None).prod(axis=1)
    return shared / ((box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1) - shared)


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


def grid_pointing_game(maps: Numbers, cells: Numbers, size: int | tuple[int, int]) -> Float[np.ndarray, " b"]:
    """The share of the map's positive part inside one cell of a grid of pictures; 0 for a map without one.

    Böhle, Fritz and Schiele, "Convolutional Dynamic Alignment Networks for Interpretable Classifications", CVPR 2021,
    arXiv:2104.00032: pictures of different classes form a grid, and the map of a class should lie on its picture.

    Args:
        maps: of the whole grid, one per example; their height and width are multiples of the grid's.
        cells: `[b]`, the cell of the explained class, counted in reading order.
        size: rows and columns of the grid; one number for as many rows as columns.
    """
    given, places = maps_of(maps), to_array(cells).astype(np.int64)
    rows, columns = (size, size) if isinstance(size, int) else size
    check_same([len(given)], places.shape, "the numbers of maps and of cells")
    if rows < 1 or columns < 1 or given.shape[1] % rows or given.shape[2] % columns:
        raise InputError(f"maps of {given.shape[1]} x {given.shape[2]} do not divide into {rows} x {columns} cells.")
    if places.min() < 0 or places.max() >= rows * columns:
        raise InputError(f"cells run from 0 to {rows * columns - 1}, but they are {brief(places.tolist())}.")
    height, width = given.shape[1] // rows, given.shape[2] // columns
    down, across = np.arange(given.shape[1]) // height, np.arange(given.shape[2]) // width
    return _energy_inside(given, (down[:, None] * columns + across) == places[:, None, None])


def energy_pointing_game(maps: Numbers, masks: Numbers) -> Float[np.ndarray, " b"]:
    """The share of the map's positive part inside the mask; 0 for a map without one.

    Wang et al., "Score-CAM", CVPR Workshops 2020, arXiv:1910.01279, with a mask in place of a box.

    Args:
        maps: one per example.
        masks: True on the object, of the maps' size.
    """
    given, inside = maps_of(maps), flags_of(masks, "masks", "b y x")
    check_same(given.shape, inside.shape, "the shapes of maps and masks")
    return _energy_inside(given, inside)


def _energy_inside(maps: torch.Tensor, inside: Bool[np.ndarray, "b y x"]) -> Float[np.ndarray, " b"]:
    energy = maps.clamp(min=0).cpu().double()
    share = torch.where(torch.from_numpy(inside), energy, 0.0).sum(dim=(1, 2))
    whole = energy.sum(dim=(1, 2))
    return torch.where(whole > 0, share / whole, 0.0).numpy()
