"""Columns that pool the pixels of a data set: counts against masks, of objects or of PASCAL VOC's classes."""

from functools import partial

import numpy as np

from vitrail.evaluate.bench.column import TINY, Array, Column, Values
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.data.segmented import VOC as VOC
from vitrail.evaluate.metrics.localisation import SETTINGS, THRESHOLDS

POINTS = 1 + len(THRESHOLDS)
CLASSES = len(VOC)


def segmentation(protocol: Protocol) -> list[Column]:
    """Pixel accuracy, mAP, mIoU and mF1 of object and background."""
    chosen = tuple(SETTINGS[protocol.threshold])
    return [
        Column(name, ("segmentation",), higher=True, features=_counts, finish=partial(_at_threshold, chosen, part))
        for part, name in enumerate(("pixel accuracy", "mAP", "mIoU", "mF1"))
    ]


def _counts(values: Values) -> Array:
    confusion = np.array([row["confusion"] for (row,) in values], dtype=np.float64)
    hits, alarms, misses, _ = np.moveaxis(confusion, -1, 0)
    f1 = 2 * hits / np.maximum(2 * hits + alarms + misses, 1)
    precision = np.array([[row["average_precision"]] for (row,) in values])
    return np.concatenate([confusion.reshape(len(values), -1), f1, precision], axis=1)


def _at_threshold(chosen: tuple[int, ...], part: int, means: Array) -> Array:
    """Pixel accuracy, mAP, mIoU or mF1 in per cent, at the chosen threshold with the highest mIoU."""
    confusion = means[..., : 4 * POINTS].reshape(*means.shape[:-1], POINTS, 4)
    f1, precision = means[..., 4 * POINTS : 5 * POINTS], means[..., -1]
    hits, alarms, misses, rejections = np.moveaxis(confusion, -1, 0)
    both = np.stack([rejections, hits], axis=-1)
    iou = (both / np.maximum(both + (alarms + misses)[..., None], TINY)).mean(axis=-1)
    best = np.array(chosen)[iou[..., list(chosen)].argmax(axis=-1)]
    accuracy = (hits + rejections) / np.maximum(confusion.sum(axis=-1), TINY)

    def at(per_threshold: Array) -> Array:
        return np.take_along_axis(per_threshold, best[..., None], axis=-1)[..., 0]

    return 100 * (at(accuracy), precision, at(iou), at(f1))[part]


def voc(protocol: Protocol) -> list[Column]:
    """Pixel accuracy and mIoU over VOC's classes and the background."""
    return [
        Column(name, ("voc",), higher=True, features=_class_counts, finish=partial(_over_classes, part))
        for part, name in enumerate(("VOC pixel accuracy", "VOC mIoU"))
    ]


def _class_counts(values: Values) -> Array:
    """Of every class: pixels of the mask, then, at each threshold, those in mask and maps, and those in the maps."""
    whole = np.zeros((len(values), 1 + 2 * len(THRESHOLDS), CLASSES))
    for one, (row,) in zip(whole, values, strict=True):
        shared, shown, true = np.moveaxis(np.array(row["counts"]), -1, 0)
        one[:, row["classes"]] = np.concatenate([true[:1], shared, shown])
    return whole.reshape(len(values), -1)


def _over_classes(part: int, means: Array) -> Array:
    """Pixel accuracy or mIoU in per cent, at the threshold with the highest mIoU over the classes that are there."""
    counts = means.reshape(*means.shape[:-1], 1 + 2 * len(THRESHOLDS), CLASSES)
    true, shared, shown = np.split(counts, [1, 1 + len(THRESHOLDS)], axis=-2)
    union = shown + true - shared
    iou = (shared / np.maximum(union, TINY)).sum(axis=-1) / np.maximum((union > 0).sum(axis=-1), 1)
    accuracy = shared.sum(axis=-1) / np.maximum(true.sum(axis=-1), TINY)
    best = iou.argmax(axis=-1)[..., None]
    return 100 * np.take_along_axis((accuracy, iou)[part], best, axis=-1)[..., 0]
