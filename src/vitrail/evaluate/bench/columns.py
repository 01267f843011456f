"""From stored rows to numbers: every column of a table is a function of means over examples.

So a bootstrap needs only weighted means of each example's features, also where pixels are pooled over a data set.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from vitrail.evaluate.bench.column import TINY, Array, Column, Values
from vitrail.evaluate.bench.pooled import segmentation, voc
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.metrics import areas


def columns_of(protocol: Protocol, metrics: Sequence[str]) -> list[Column]:
    """The columns that can be made of these metrics, in the order of the metrics."""
    made = [column for name in metrics for column in MAKERS[name](protocol)]
    both = {"positive", "negative"} <= set(metrics)
    return made + (_between(protocol) if both and protocol.area == "mean" else [])


def _randomised(protocol: Protocol) -> list[Column]:
    """How like the trained model's map: with a random head, with all weights random, and the mean over all steps.

    Likeness with its sign turned is likeness too, so it is the size of the correlation that counts.
    """
    steps = {"random head": lambda row: row[0], "all random": lambda row: row[-1], "cascade": np.mean}
    return [
        Column(name, ("randomisation",), higher=False, features=partial(_likeness, of)) for name, of in steps.items()
    ]


def _likeness(of: Callable[[Array], Any], values: Values) -> Array:
    return np.array([[of(np.abs(row["correlation"]))] for (row,) in values])


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
    "segmentation": segmentation,
    "pointing": partial(_plain, "pointing", "pointing", "hit"),
    "boxes": lambda p: [
        *_plain("box energy", "boxes", "energy", p),
        *_plain("box IoU", "boxes", "iou", p),
        *_plain("box pointing", "boxes", "hit", p),
    ],
    "voc": voc,
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
    "randomisation": _randomised,
    "class_sensitivity": partial(_plain, "class sensitivity", "class_sensitivity", "correlation", higher=False),
    "ranks": lambda p: [],  # a table of their own: agreement.py
}
