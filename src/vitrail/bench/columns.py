"""From stored rows to numbers: every column of a table is a function of means over examples.

So a bootstrap needs only weighted means of each example's features, also where pixels are pooled over a data set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from vitrail.bench.protocols import Protocol
from vitrail.metrics import areas
from vitrail.metrics.localisation import SETTINGS, THRESHOLDS

Values = Sequence[tuple[Any, ...]]
Array = np.ndarray
POINTS = 1 + len(THRESHOLDS)
TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Column:
    """One number of a table.

    Args:
        needs: the stored metrics it is made of.
        higher: whether more is better.
        features: from the examples' stored values, one tuple each, to their features `[n, f]`.
        finish: from means of the features `[..., f]` to the number `[...]`.
    """

    name: str
    needs: tuple[str, ...]
    higher: bool
    features: Callable[[Values], Array]
    finish: Callable[[Array], Array] = lambda means: means[..., 0]

    @property
    def title(self) -> str:
        """The name with an arrow to where better is."""
        return f"{self.name} {'↑' if self.higher else '↓'}"


def columns_of(protocol: Protocol, metrics: Sequence[str]) -> list[Column]:
    """The columns that can be made of these metrics, in the order of the metrics."""
    made = [column for name in metrics for column in MAKERS[name](protocol)]
    both = {"positive", "negative"} <= set(metrics)
    return made + (_between(protocol) if both and protocol.area == "mean" else [])


def _segmentation(protocol: Protocol) -> list[Column]:
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


def _curve(order: str, protocol: Protocol) -> list[Column]:
    area = Column(f"{order} AUC", (order,), order == "negative", partial(_areas, protocol))
    if not protocol.drops or order != "positive":
        return [area]
    return [
        area,
        Column("AOPC", (order,), higher=True, features=_image_drops),
        Column("LOdds", (order,), higher=False, features=_image_odds),
    ]


def _areas(protocol: Protocol, values: Values) -> Array:
    hits = np.array([row["hits"] for (row,) in values], dtype=np.float64)
    return areas(hits.T, rule=protocol.area, levels=protocol.levels)[:, None]


def _image_drops(values: Values) -> Array:
    likely = np.array([row["probability"] for (row,) in values])
    return (likely[:, :1] - likely).mean(axis=1, keepdims=True)


def _image_odds(values: Values) -> Array:
    likely = np.log(np.maximum([row["probability"] for (row,) in values], TINY))
    return (likely - likely[:, :1]).mean(axis=1, keepdims=True)


def _between(protocol: Protocol) -> list[Column]:
    """The mean distance of the two probability curves, as in AGCAM: how far the order of the map matters."""
    return [Column("ABPC", ("positive", "negative"), higher=True, features=_gaps)]


def _gaps(values: Values) -> Array:
    pairs = [np.mean(low["probability"]) - np.mean(high["probability"]) for high, low in values]
    return np.array(pairs)[:, None]


def _drop(name: str, metric: str, protocol: Protocol, *, higher: bool, absolute: bool = False) -> list[Column]:
    def features(values: Values) -> Array:
        drops = np.array([[row["p"]] for (row,) in values]) - np.array([row["p_k"] for (row,) in values])
        return (np.abs(drops) if absolute else drops).mean(axis=1, keepdims=True)

    return [Column(name, (metric,), higher, features)]


def _log_odds(values: Values) -> Array:
    clean, removed = np.array([[row["p"]] for (row,) in values]), np.array([row["p_k"] for (row,) in values])
    return (np.log(np.maximum(removed, TINY)) - np.log(np.maximum(clean, TINY))).mean(axis=1, keepdims=True)


def _token_f1(protocol: Protocol) -> list[Column]:
    """The mean over all k, and single ones: all of a short list, every fourth of a long one."""
    shown = range(len(protocol.ks)) if len(protocol.ks) <= 8 else range(3, len(protocol.ks), 4)
    whole = Column("token-F1", ("token_f1",), higher=True, features=lambda values: _f1(values).mean(1, keepdims=True))
    single = [Column(f"F1@{protocol.ks[i]}", ("token_f1",), higher=True, features=partial(_f1_at, i)) for i in shown]
    return [whole, *single]


def _f1(values: Values) -> Array:
    """ERASER's F1 of every text at every k, in per cent."""
    hits, chosen = (np.array([row[name] for (row,) in values], dtype=np.float64) for name in ("hits", "chosen"))
    gold = np.array([[row["gold"]] for (row,) in values])
    return 100 * 2 * hits / np.maximum(chosen + gold, 1)


def _f1_at(index: int, values: Values) -> Array:
    return _f1(values)[:, [index]]


def _plain(name: str, metric: str, entry: str, protocol: Protocol, *, higher: bool = True) -> list[Column]:
    return [
        Column(name, (metric,), higher, lambda values: np.array([[row[entry]] for (row,) in values], dtype=np.float64))
    ]


MAKERS: Mapping[str, Callable[[Protocol], list[Column]]] = {
    "segmentation": _segmentation,
    "pointing": partial(_plain, "pointing", "pointing", "hit"),
    "boxes": lambda p: _plain("box energy", "boxes", "energy", p) + _plain("box IoU", "boxes", "iou", p),
    "positive": partial(_curve, "positive"),
    "negative": partial(_curve, "negative"),
    "insertion": partial(_plain, "insertion", "insertion", "mean"),
    "deletion": partial(_plain, "deletion", "deletion", "mean", higher=False),
    "text_deletion": lambda p: _drop("AOPC", "text_deletion", p, higher=True, absolute=p.absolute),
    "text_padding": lambda p: [Column("LOdds", ("text_padding",), higher=False, features=_log_odds)],
    "comprehensiveness": lambda p: _drop("comprehensiveness", "comprehensiveness", p, higher=True),
    "sufficiency": lambda p: _drop("sufficiency", "sufficiency", p, higher=False),
    "kendall": partial(_plain, "Kendall", "kendall", "tau", higher=False),
    "token_f1": _token_f1,
    "precision_at_k": lambda p: _plain(f"Precision@{p.k}", "precision_at_k", "count", p),
}
