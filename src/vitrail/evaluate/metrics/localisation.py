"""Does the map cover the object? Maps against masks, boxes and grid cells.

Foreground against mask, as in the ImageNet-Segmentation test: Chefer, Gur and Wolf, CVPR 2021, arXiv:2012.09838; the
best of ten thresholds as in GradToken (Neural Networks 2024). Maps are resized bilinearly and scaled to 0..1; the
foreground lies strictly above the threshold. Pixel accuracy and IoU pool the pixels of all images, mAP and mF1 are
means over images.

Maps of several classes against 21 classes, as on PASCAL VOC in GradToken's table. How the maps of one image are merged
is not published. Here each class map is scaled to 0..1, a pixel belongs to the class whose map is highest there, and to
the background (class 0) where none lies strictly above the threshold.

Pointing game: Zhang et al., "Top-down Neural Attention by Excitation Backprop", IJCV 2018, arXiv:1608.00507, without
their margin of 15 pixels by default. Energy: Wang et al., "Score-CAM", CVPR Workshops 2020, arXiv:1910.01279. Box IoU:
the usual test of weakly supervised localisation, a box around the largest connected region above the threshold.
Boxes are left, top, right, bottom in pixels, right and bottom outside the box; several boxes of an image are `[n, 4]`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import (
    MOST_STEPS,
    TINY,
    Numbers,
    average_precision,
    brief,
    check_axes,
    check_number,
    check_same,
    f1_of,
    flags_of,
    look_up,
    maps_and_masks,
    maps_of,
    min_max,
    resize,
    to_array,
    to_tensor,
)

THRESHOLDS = tuple(k / 10 for k in range(10))
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class SegmentationCounts:
    """All the measures need to know of each example, at every threshold.

    Args:
        confusion: hits, false alarms, misses and correct rejections, at the map's mean, then at 0, 0.1, ..., 0.9.
        average_precision: micro average over both classes.
    """

    confusion: Int[np.ndarray, "b s 4"]
    average_precision: Float[np.ndarray, " b"]

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.confusion)

    @property
    def f1(self) -> Float[np.ndarray, "b s"]:
        """F1 of each example at every threshold."""
        hits, alarms, misses, _ = np.moveaxis(self.confusion, -1, 0)
        return f1_of(hits, hits + alarms, hits + misses)

    def take(self, index: Numbers) -> "SegmentationCounts":
        """Some of the examples, or a resampling of them."""
        chosen = np.asarray(index)
        return SegmentationCounts(self.confusion[chosen], self.average_precision[chosen])

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per example, of plain numbers, to be stored as JSON."""
        pairs = zip(self.confusion.tolist(), self.average_precision.tolist(), strict=True)
        return [{"confusion": confusion, "average_precision": precision} for confusion, precision in pairs]

    @staticmethod
    def from_rows(rows: Sequence[Mapping[str, Any]]) -> "SegmentationCounts":
        """Return the counts that `rows` gave."""
        confusion = np.array([row["confusion"] for row in rows], dtype=np.int64)
        return SegmentationCounts(
            confusion.reshape(len(rows), 1 + len(THRESHOLDS), 4),
            np.array([row["average_precision"] for row in rows], dtype=np.float64),
        )


@dataclass(frozen=True, eq=False)
class Segmentation:
    """The measures of how well maps cover masks.

    Args:
        iou: background, foreground.
        threshold: the one all numbers were taken at; None where each map's mean was.
    """

    pixel_accuracy: float
    mean_iou: float
    mean_ap: float
    mean_f1: float
    iou: Float[np.ndarray, "2"]
    threshold: float | None


def segmentation(maps: Numbers, masks: Numbers, *, threshold: str = "mean") -> Segmentation:
    """Pixel accuracy, mIoU, mAP and mF1 of maps `[b, y, x]` of any size against masks `[b, h, w]`, -1 = ignored.

    Args:
        maps: one per example.
        masks: 1 where the object is.
        threshold: `"mean"` of each map, or `"best"`, the one of 0, 0.1, ..., 0.9 with the highest mIoU over all.
    """
    look_up(SETTINGS, threshold, "threshold")
    return aggregate_segmentation(segmentation_counts(maps, masks), threshold=threshold)


def segmentation_counts(maps: Numbers, masks: Numbers) -> SegmentationCounts:
    """Return the counts that `aggregate_segmentation` needs of each example; they take no more than fifty numbers."""
    resized, foreground, counted = maps_and_masks(maps, masks)
    scaled = min_max(resized)
    above = [_confusion(scaled > scaled.mean(dim=(1, 2), keepdim=True), foreground, counted)]
    above += [_confusion(scaled > threshold, foreground, counted) for threshold in THRESHOLDS]
    return SegmentationCounts(
        torch.stack(above, dim=1).cpu().numpy(),
        _two_class_precision(scaled, foreground, counted).cpu().double().numpy(),
    )


def aggregate_segmentation(
    counts: SegmentationCounts | Iterable[SegmentationCounts], *, threshold: str = "mean"
) -> Segmentation:
    """The measures over all examples, from counts or from a stream of them, of which only sums are kept."""
    look_up(SETTINGS, threshold, "threshold")
    examples, precision, confusion, f1 = 0, 0.0, np.zeros((1, 4)), np.zeros(1)
    for part in [counts] if isinstance(counts, SegmentationCounts) else counts:
        examples += len(part)
        precision += part.average_precision.sum()
        confusion = confusion + part.confusion.sum(axis=0)
        f1 = f1 + part.f1.sum(axis=0)
    if not examples:
        raise InputError("there are no examples to aggregate.")
    accuracy, iou, best = pooled_scores(confusion, threshold)
    return Segmentation(
        pixel_accuracy=float(accuracy),
        mean_iou=float(iou.mean()),
        mean_ap=float(precision / examples),
        mean_f1=float(f1[best] / examples),
        iou=iou,
        threshold=(None, *THRESHOLDS)[best],
    )


def pooled_scores(confusion: Float[np.ndarray, "*n s 4"], threshold: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return accuracy `[*n]` and IoU `[*n, 2]` of pooled pixels, and the place `[*n]` of the threshold they belong to.

    Args:
        confusion: sums or means over examples.
        threshold: as of `segmentation`; of several, the one with the highest mean IoU is taken.
    """
    places = np.array(SETTINGS[threshold])
    hits, alarms, misses, rejections = np.moveaxis(confusion, -1, 0)
    both = np.stack([rejections, hits], axis=-1)  # background and foreground; 0 where there is neither
    iou = both / np.maximum(both + (alarms + misses)[..., None], TINY)
    accuracy = (hits + rejections) / np.maximum(confusion.sum(axis=-1), TINY)
    best = np.asarray(places[iou.mean(axis=-1)[..., places].argmax(axis=-1)])
    return at_place(accuracy, best), np.take_along_axis(iou, best[..., None, None], axis=-2)[..., 0, :], best


def at_place(values: Float[np.ndarray, "*n s"], places: Int[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Return one value of each row."""
    return np.take_along_axis(values, places[..., None], axis=-1)[..., 0]


def row_f1(maps: Numbers, masks: Numbers) -> Float[np.ndarray, " b"]:
    """F1 of each picture row at the mean of the map, averaged over rows.

    For reproduction only: Chefer's released script prints this as mF1; `segmentation` gives F1 of whole images.
    """
    resized, foreground, counted = maps_and_masks(maps, masks)
    if not bool(counted.all()):
        raise InputError(f"F1 by rows is not defined with ignored pixels, and {int((~counted).sum())} are -1.")
    scaled = min_max(resized)
    predicted = scaled > scaled.mean(dim=(1, 2), keepdim=True)
    hits = (predicted & foreground).sum(dim=2).cpu().double()
    sizes = (predicted.sum(dim=2) + foreground.sum(dim=2)).cpu()
    return (2 * hits / sizes.clamp(min=1)).mean(dim=1).numpy()


SETTINGS: dict[str, Sequence[int]] = {"mean": (0,), "best": tuple(range(1, 1 + len(THRESHOLDS)))}


def _confusion(
    predicted: Bool[Tensor, "b h w"], foreground: Bool[Tensor, "b h w"], counted: Bool[Tensor, "b h w"]
) -> Int[Tensor, "b 4"]:
    cells = (predicted & foreground, predicted & ~foreground, ~predicted & foreground, ~predicted & ~foreground)
    return torch.stack([(cell & counted).sum(dim=(1, 2)) for cell in cells], dim=1)


def _two_class_precision(
    scaled: Float[Tensor, "b h w"], foreground: Bool[Tensor, "b h w"], counted: Bool[Tensor, "b h w"]
) -> Float[Tensor, " b"]:
    """One average precision over the scores of both classes, 1 - m and m."""
    scores = torch.cat([1 - scaled.flatten(1), scaled.flatten(1)], dim=1)
    positive = torch.cat([~foreground.flatten(1), foreground.flatten(1)], dim=1)
    return average_precision(scores, positive, counted.flatten(1).repeat(1, 2))


IGNORED = (-1, 255)


@dataclass(frozen=True, eq=False)
class VocScore:
    """Pixel accuracy and mIoU at the threshold with the highest mIoU.

    Args:
        iou: one number per class, NaN for classes that are nowhere.
        mean_iou: over the classes that are somewhere.
    """

    pixel_accuracy: float
    mean_iou: float
    iou: Float[np.ndarray, " c"]
    threshold: float


def voc(maps: Sequence[Numbers], classes: Sequence[Sequence[int]], masks: Sequence[Numbers]) -> VocScore:
    """Pixel accuracy and mIoU over 21 classes at the best of the thresholds 0, 0.1, ..., 0.9.

    Args:
        maps: for each example `[n, y, x]`, one map for each class it shows.
        classes: for each example the classes (1..20) of its maps.
        masks: for each example the class of every pixel; -1 and 255 are ignored.
    """
    check_same(
        [len(maps)] * 2, [len(classes), len(masks)], "the numbers of examples with maps, and with classes and masks"
    )
    return aggregate_voc(voc_counts(*example) for example in zip(maps, classes, masks, strict=True))


def voc_counts(maps: Numbers, classes: Sequence[int], mask: Numbers, *, count: int = 21) -> Int[np.ndarray, "s c 3"]:
    """For one example, at each threshold and class: pixels in both, in the prediction, in the truth."""
    given, truth = maps_of(maps), to_tensor(mask).long()
    check_axes(truth.shape, "the mask", "h w")
    names = [int(name) for name in classes]
    check_same([len(names)], given.shape[:1], "the numbers of classes and of maps of an example")
    truth = truth.to(given.device)
    counted = torch.stack([truth != value for value in IGNORED]).all(dim=0)
    _check_classes(names, truth[counted], count)
    height, width = truth.shape
    strength, winner = min_max(resize(given, (height, width))).max(dim=0)
    label = torch.tensor(names, device=given.device)[winner]
    predictions = [torch.where(strength > threshold, label, 0) for threshold in THRESHOLDS]
    return torch.stack([_sizes(one[counted], truth[counted], count) for one in predictions]).cpu().numpy()


def aggregate_voc(counts: Iterable[Int[np.ndarray, "s c 3"]]) -> VocScore:
    """The score over all examples, from a stream of counts of which only the sum is kept."""
    total = sum((np.asarray(part) for part in counts), start=np.zeros((1, 1, 3), dtype=np.int64))
    if not total.any():
        raise InputError("there are no examples to aggregate.")
    shared, predicted, true = np.moveaxis(total, -1, 0)
    accuracy, means, iou = voc_scores(shared, predicted, true)
    best = int(means.argmax())
    return VocScore(float(accuracy[best]), float(means[best]), iou[best], THRESHOLDS[best])


def voc_scores(shared: Array, predicted: Array, true: Array) -> tuple[Array, Array, Array]:
    """Return pixel accuracy, mean IoU and IoU of each class, NaN for classes that are nowhere.

    Args:
        shared: sums or means over examples `[..., c]`: pixels in both, in the prediction, in the truth.
    """
    union = predicted + true - shared
    iou = shared / np.maximum(union, TINY)
    means = iou.sum(axis=-1) / np.maximum((union > 0).sum(axis=-1), 1)
    return shared.sum(axis=-1) / np.maximum(true.sum(axis=-1), TINY), means, np.where(union > 0, iou, np.nan)


def _sizes(predicted: Int[Tensor, " p"], truth: Int[Tensor, " p"], count: int) -> Int[Tensor, "c 3"]:
    shared = torch.bincount(truth[predicted == truth], minlength=count)
    return torch.stack([shared, predicted.bincount(minlength=count), truth.bincount(minlength=count)], dim=1)


def _check_classes(names: Sequence[int], truth: Int[Tensor, " p"], count: int) -> None:
    wrong = [name for name in names if not 1 <= name < count]
    if wrong or len(set(names)) < len(names):
        raise InputError(f"the classes of an example are different numbers from 1 to {count - 1}, not {list(names)}.")
    if not len(truth):
        raise InputError("every pixel of the mask is ignored: leave this example out.")
    odd = to_array(truth[(truth < 0) | (truth >= count)].unique()).tolist()
    if odd:
        raise InputError(
            f"a mask holds the classes 0 to {count - 1}, and -1 or 255 to ignore; it also holds {brief(odd)}."
        )


BOX_THRESHOLDS = {"mean": lambda picture: picture.mean(), "half": lambda picture: 0.5}


def box_energy(maps: Numbers, boxes: Sequence[Numbers] | Numbers, size: tuple[int, int]) -> Float[np.ndarray, " b"]:
    """The share of the map's positive part that lies inside the boxes; 0 for a map without a positive part."""
    resized, inside = resize(maps_of(maps), size), box_masks(boxes, size)
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
    level = look_up(BOX_THRESHOLDS, threshold, "threshold")
    pictures, truth = min_max(resize(maps_of(maps), size)).cpu().numpy(), _boxes(boxes, size)
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
    check_number(margin, "the margin", "pixels", least=0, most=MOST_STEPS)
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
