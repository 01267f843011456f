"""Metrics for pictures and texts: does the map depend on the weights and on the class? Do methods agree?"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate import metrics
from vitrail.evaluate.bench.measure import Array, Column, CurvePanel, Measure, Shown, Stored, Values, plain
from vitrail.evaluate.bench.on_texts import real_rows
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.bench.texts import Batch, Contexts


def randomisation(batch: Batch, shown: Shown, protocol: Protocol) -> Values:
    """Rank correlation with the trained model's map, after each part was randomised with all parts above it."""
    found = np.stack([_alike(batch, shown.scores, scores) for _, scores in shown.cascade], axis=1)
    parts = [part for part, _ in shown.cascade]
    return [{"parts": parts, "correlation": row} for row in found.tolist()]


def rival(batch: Batch, classes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The likeliest beside the explained one; none where the model has but one class."""
    assert not isinstance(batch, Contexts)
    explained = torch.tensor(classes, device=batch.logits.device)[:, None]
    logits = batch.logits.scatter(1, explained, -torch.inf)
    return tuple((c,) if logits.shape[1] > 1 else () for c in logits.argmax(dim=1).tolist())


def class_sensitivity(batch: Batch, shown: Shown, protocol: Protocol) -> Values:
    """Rank correlation of the maps of the explained class and of its closest rival."""
    if not all(shown.others):
        raise InputError("the model has one class only, so there is none to compare with.")
    others = [next(iter(maps.items())) for maps in shown.others]
    found = _alike(batch, shown.scores, torch.cat([other.scores for _, other in others]))
    return [{"correlation": value, "class": c} for value, (c, _) in zip(found.tolist(), others, strict=True)]


def ranks(batch: Batch, shown: Shown, protocol: Protocol) -> Values:
    """Twice the rank of every patch or token, so that ties are whole numbers: what agreement of methods needs."""
    rows = real_rows(batch, shown.scores)
    if any(np.isnan(row).any() for row in rows):
        raise InputError("the map has NaN.")
    return [{"ranks": (2 * scipy.stats.rankdata(row)).astype(int).tolist()} for row in rows]


def _alike(batch: Batch, scores: Tensor, other: Tensor) -> np.ndarray:
    pairs = zip(real_rows(batch, scores), real_rows(batch, other), strict=True)
    return np.array([metrics.rank_correlation(a[None], b[None])[0] for a, b in pairs])


def _cascade_columns(protocol: Protocol) -> list[Column]:
    """Return the likeness to the trained map: with a random head, with all weights random, and the mean over all steps.

    A map with its sign turned is alike too, so the size of the correlation counts.
    """
    steps = {"random head": lambda row: row[0], "all random": lambda row: row[-1], "cascade": np.mean}

    def likeness(of: Callable[[Array], Any], values: Stored) -> Array:
        return np.array([[of(np.abs(row["correlation"]))] for (row,) in values])

    return [
        Column(name, ("randomisation",), higher=False, features=partial(likeness, of)) for name, of in steps.items()
    ]


_BOTH = ("image", "text")
RANDOMISATION = Measure(
    "randomisation", "rank correlation with the map of the model with random weights", randomisation, _BOTH,
    _cascade_columns, randomised=True,
    panels=(
        CurvePanel(
            "weights randomised", "parts, from the output down", "|rank correlation|",
            lambda row: [1.0, *np.abs(row["correlation"])], lambda _, count: np.arange(count),
        ),
    ),
)  # fmt: skip
CLASS_SENSITIVITY = Measure(
    "class_sensitivity", "rank correlation of the maps of the two most likely classes", class_sensitivity, _BOTH,
    lambda _: [plain("class sensitivity", "class_sensitivity", "correlation", higher=False)], further=rival,
)  # fmt: skip
RANKS = Measure(
    "ranks", "the order of the scores, from which the agreement of methods is computed", ranks, (*_BOTH, "question"),
    lambda _: [],  # the agreement is a table of its own
)  # fmt: skip
