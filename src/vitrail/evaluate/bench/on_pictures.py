"""Metrics of pictures as the bench runs them: counts against masks and boxes, points of perturbation curves."""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate import metrics, removal
from vitrail.evaluate.bench.measure import Array, Column, CurvePanel, Measure, Shown, Stored, Values, plain
from vitrail.evaluate.bench.pictures import Pictures
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.data.segmented import VOC
from vitrail.evaluate.metrics.areas import abpcs, drops, log_ratios
from vitrail.evaluate.metrics.localisation import THRESHOLDS, at_place, pooled_scores, voc_scores

T = TypeVar("T")


def segmentation(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
    """Counts against the mask; any object is foreground."""
    return metrics.segmentation_counts(shown.finest, _masks(batch)).rows()


def pointing(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
    """Measure whether the highest point lies on the object."""
    return [{"hit": value} for value in metrics.pointing_game(shown.finest, _masks(batch)).tolist()]


def boxes(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
    """The share of energy inside the boxes, the overlap with the box around the map, and the pointing game on boxes."""
    height, width = batch.images.shape[2:]
    listed = [known(found) for found in batch.boxes]
    inside = metrics.box_masks(listed, (height, width)).astype(np.int64)
    found = {
        "energy": metrics.box_energy(shown.finest, listed, (height, width)),
        "iou": metrics.box_iou(shown.finest, listed, (height, width)),
        "hit": metrics.pointing_game(shown.finest, inside),
    }
    return [{name: float(numbers[i]) for name, numbers in found.items()} for i in range(len(listed))]


def of_objects(batch: Pictures, classes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """One for every class of PASCAL VOC that can be seen."""
    return tuple(() if isinstance(found, str) else tuple(found.classes.values()) for found in batch.objects)


def voc(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
    """At every threshold and for every class that is there or shown: pixels in both, in the maps, in the mask."""
    values: Values = []
    for found, maps in zip(batch.objects, shown.others, strict=True):
        objects = known(found)
        merged = torch.cat([maps[c].finest for c in objects.classes.values()])
        counts = metrics.voc_counts(merged, list(objects.classes), objects.mask)
        there = np.flatnonzero(counts.any(axis=(0, 2)))
        values.append({"classes": there.tolist(), "counts": counts[:, there].tolist()})
    return values


def known(found: T | str) -> T:
    """Return the findings of a picture; raise an error if there is a reason why there are none."""
    if isinstance(found, str):
        raise InputError(found)
    return found


def _points(hits: Bool[np.ndarray, "b n"], probability: Float[np.ndarray, "b n"]) -> Values:
    """Hits and probability of each example at every level."""
    pairs = zip(hits.tolist(), probability.tolist(), strict=True)
    return [{"hits": list(map(int, hit)), "probability": likely} for hit, likely in pairs]


def curve(order: str) -> Callable[[Pictures, Shown, Protocol], Values]:
    """Hits and probability at every level, pixels or patches removed in this order."""

    def measure(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
        found = removal.picture_curves(
            batch.score,
            batch.images,
            shown.places if protocol.units == "patches" else shown.finest,
            shown.classes,
            levels=protocol.levels,
            order=order,
            fill=batch.fill(protocol.fill),
            units=protocol.units,
            batch=batch.settings.forward_batch,
            ends=(batch.logits, batch.without_everything(protocol.fill) if protocol.levels[-1] == 1 else None),
        )
        return _points(found.predicted == _judged(batch, protocol)[:, None], found.probability)

    return measure


def steps(run: Callable[..., metrics.Curve]) -> Callable[[Pictures, Shown, Protocol], Values]:
    """Insertion or deletion, over a blurred picture; the mean of the curve."""

    def measure(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
        most = max(batch.settings.forward_batch, len(batch.images))
        found = run(batch.score, batch.images, shown.finest, torch.tensor(shown.classes), batch=most)
        return [{"mean": value} for value in metrics.areas(found.probability, rule="mean").tolist()]

    return measure


def road(order: str) -> Callable[[Pictures, Shown, Protocol], Values]:
    """Hits and probability while pixels are imputed in this order, at the protocol's levels below 1."""

    def measure(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
        levels = [level for level in protocol.levels if level < 1]
        predicted: list[Tensor] = []

        def score(images: Tensor) -> Tensor:
            logits = batch.score(images)
            predicted.append(logits.argmax(dim=1).cpu())
            return logits

        labels = torch.tensor(shown.classes)
        found = metrics.road(score, batch.images, shown.finest, labels, order=order, levels=levels)
        hits = torch.stack(predicted, dim=1).numpy() == _judged(batch, protocol)[:, None]
        return _points(hits, found.curve)

    return measure


def _masks(batch: Pictures) -> Tensor:
    return torch.stack([batch.mask(number) for number in range(len(batch.examples))])


def _judged(batch: Pictures, protocol: Protocol) -> Int[np.ndarray, " b"]:
    """The class that counts as a hit."""
    predicted = batch.logits.argmax(dim=1).cpu().numpy()
    if protocol.judged == "predicted":
        return predicted
    classes = batch.logits.shape[1]
    for key, label in zip(batch.keys, batch.labels, strict=True):
        if label is not None and not 0 <= label < classes:
            raise InputError(f"{key}: the label {label} is none of the model's {classes} classes.")
    known = [own if label is None else label for own, label in zip(predicted.tolist(), batch.labels, strict=True)]
    return np.array(known)


POINTS = 1 + len(THRESHOLDS)
CLASSES = len(VOC)


def segmentation_columns(protocol: Protocol) -> list[Column]:
    """Pixel accuracy, mAP, mIoU and mF1 of object and background."""
    return [
        Column(name, ("segmentation",), higher=True, features=_counts, finish=partial(_at_threshold, protocol, part))
        for part, name in enumerate(("pixel accuracy", "mAP", "mIoU", "mF1"))
    ]


def _counts(values: Stored) -> Array:
    """Of each example the counts, F1 at every threshold, and the average precision."""
    counts = metrics.SegmentationCounts.from_rows([row for (row,) in values])
    confusion = counts.confusion.reshape(len(values), -1).astype(np.float64)
    return np.concatenate([confusion, counts.f1, counts.average_precision[:, None]], axis=1)


def _at_threshold(protocol: Protocol, part: int, means: Array) -> Array:
    """Pixel accuracy, mAP, mIoU or mF1 in per cent."""
    confusion = means[..., : 4 * POINTS].reshape(*means.shape[:-1], POINTS, 4)
    f1, precision = means[..., 4 * POINTS : 5 * POINTS], means[..., -1]
    accuracy, iou, best = pooled_scores(confusion, protocol.threshold)
    return 100 * (accuracy, precision, iou.mean(axis=-1), at_place(f1, best))[part]


def voc_columns(protocol: Protocol) -> list[Column]:
    """Pixel accuracy and mIoU over VOC's classes and the background."""
    return [
        Column(name, ("voc",), higher=True, features=_class_counts, finish=partial(_over_classes, part))
        for part, name in enumerate(("VOC pixel accuracy", "VOC mIoU"))
    ]


def _class_counts(values: Stored) -> Array:
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
    accuracy, means, _ = voc_scores(shared, shown, true)
    return 100 * at_place((accuracy, means)[part], means.argmax(axis=-1))


def _curve_columns(order: str, protocol: Protocol) -> list[Column]:
    """The area under the curve; where the protocol says so AOPC and LOdds, or the distance of the two curves."""
    found = [Column(f"{order} AUC", (order,), order == "negative", partial(_areas, protocol))]
    if protocol.drops and order == "positive":
        found.append(Column("AOPC", (order,), higher=True, features=_drops))
        found.append(Column("LOdds", (order,), higher=False, features=_log_odds))
    if protocol.area == "mean" and order == "negative":  # AGCAM
        found.append(Column("ABPC", ("positive", "negative"), higher=True, features=_gaps))
    return found


def _areas(protocol: Protocol, values: Stored) -> Array:
    hits = np.array([row["hits"] for (row,) in values], dtype=np.float64)
    return metrics.areas(hits.T, rule=protocol.area, levels=protocol.levels)[:, None]


def _drops(values: Stored) -> Array:
    likely = _likely(values)
    return drops(likely[:, 0], likely).mean(axis=1, keepdims=True)


def _log_odds(values: Stored) -> Array:
    likely = _likely(values)
    return log_ratios(likely[:, 0], likely).mean(axis=1, keepdims=True)


def _likely(values: Stored) -> Array:
    return np.array([row["probability"] for (row,) in values])


def _gaps(values: Stored) -> Array:
    """The mean distance of the two probability curves: how far the order of the map matters."""
    high, low = (np.array([row[place]["probability"] for row in values]) for place in (0, 1))
    return abpcs(high.T, low.T)[:, None]


def _accuracy(values: Stored) -> Array:
    return np.array([np.mean(row["hits"], keepdims=True) for (row,) in values])


def _curve_panels(order: str) -> tuple[CurvePanel, ...]:
    return tuple(
        CurvePanel(
            f"{order}: {up}", "removed fraction", up, itemgetter(entry), lambda protocol, _: np.array(protocol.levels)
        )
        for up, entry in (("accuracy", "hits"), ("probability", "probability"))
    )


_IMAGE, _MASK = ("image",), frozenset({"mask"})
SEGMENTATION = Measure(
    "segmentation", "the map against the mask of the object", segmentation, _IMAGE, segmentation_columns, _MASK
)
POINTING = Measure(
    "pointing", "whether the highest point lies on the object", pointing, _IMAGE,
    lambda _: [plain("pointing", "pointing", "hit")], _MASK,
)  # fmt: skip
BOXES = Measure(
    "boxes", "energy inside the boxes, overlap with the box around the map, pointing game", boxes, _IMAGE,
    lambda _: [
        plain("box energy", "boxes", "energy"), plain("box IoU", "boxes", "iou"), plain("box pointing", "boxes", "hit"),
    ],
    frozenset({"boxes"}),
)  # fmt: skip
VOC_SEGMENTATION = Measure(
    "voc", "maps of all classes in the picture against the classes of the mask", voc, _IMAGE, voc_columns,
    frozenset({"mask", "voc classes"}), of_objects,
)  # fmt: skip
POSITIVE, NEGATIVE = (
    Measure(
        order, f"the prediction while the {first}-scored parts are removed first", curve(order), _IMAGE,
        partial(_curve_columns, order), panels=_curve_panels(order),
    )
    for order, first in (("positive", "highest"), ("negative", "lowest"))
)  # fmt: skip
INSERTION = Measure(
    "insertion", "the probability while the highest-scored pixels appear", steps(metrics.insertion), _IMAGE,
    lambda _: [plain("insertion", "insertion", "mean")],
)  # fmt: skip
DELETION = Measure(
    "deletion", "the probability while the highest-scored pixels disappear", steps(metrics.deletion), _IMAGE,
    lambda _: [plain("deletion", "deletion", "mean", higher=False)],
)  # fmt: skip
ROAD_POSITIVE, ROAD_NEGATIVE = (
    Measure(
        f"road_{order}", f"ROAD: the prediction while the {first}-scored pixels are imputed first", road(order), _IMAGE,
        lambda _, order=order, higher=higher: [
            Column(f"ROAD {order} accuracy", (f"road_{order}",), higher, _accuracy)
        ],
        panels=(
            CurvePanel(
                f"ROAD {order}: accuracy", "removed fraction", "accuracy", itemgetter("hits"),
                lambda protocol, count: np.array(protocol.levels[:count]),
            ),
        ),
    )
    for order, first, higher in (("positive", "highest", False), ("negative", "lowest", True))
)  # fmt: skip
