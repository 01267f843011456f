"""Maps of several classes against a segmentation with 21 classes, as on PASCAL VOC in GradToken's table.

How the maps of one image are merged is not published. Here each class map is scaled to 0..1, a pixel belongs to the
class whose map is highest there, and to the background (class 0) where none lies strictly above the threshold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, brief, check_axes, check_same, maps_of, to_array, to_tensor
from vitrail.evaluate.metrics.localisation import THRESHOLDS
from vitrail.evaluate.metrics.maps import min_max, resize

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
    union = predicted + true - shared
    iou = np.where(union > 0, shared / np.maximum(union, 1), np.nan)
    means = np.nanmean(iou, axis=1)
    best = int(means.argmax())
    return VocScore(
        pixel_accuracy=float(shared[best].sum() / true[best].sum()),
        mean_iou=float(means[best]),
        iou=iou[best],
        threshold=THRESHOLDS[best],
    )


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
