"""Metrics of pictures and texts alike: does the map depend on the weights and on the class; which map is like which?"""

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate import metrics
from vitrail.evaluate.bench.batches import Batch
from vitrail.evaluate.bench.on_texts import real_rows
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.bench.shown import Shown, Values
from vitrail.evaluate.bench.texts import Texts


def randomisation(batch: Batch, shown: Shown, protocol: Protocol) -> Values:
    """Rank correlation with the trained model's map, after each part was randomised with all parts above it."""
    found = np.stack([_alike(batch, shown.scores, scores) for _, scores in shown.cascade], axis=1)
    parts = [part for part, _ in shown.cascade]
    return [{"parts": parts, "correlation": row} for row in found.tolist()]


def class_sensitivity(batch: Batch, shown: Shown, protocol: Protocol) -> Values:
    """Rank correlation of the maps of the explained class and of its closest rival."""
    if not all(shown.others):
        raise InputError("the model has one class only, so there is none to compare with.")
    others = [next(iter(maps.items())) for maps in shown.others]
    found = _alike(batch, shown.scores, torch.cat([other.scores for _, other in others]))
    return [{"correlation": value, "class": c} for value, (c, _) in zip(found.tolist(), others, strict=True)]


def ranks(batch: Batch, shown: Shown, protocol: Protocol) -> Values:
    """Twice the rank of every patch or token, so that ties are whole numbers: what agreement of methods needs."""
    rows = _rows(batch, shown.scores)
    if any(np.isnan(row).any() for row in rows):
        raise InputError("the map has NaN.")
    return [{"ranks": (2 * rankdata(row)).astype(int).tolist()} for row in rows]


def _alike(batch: Batch, scores: Tensor, other: Tensor) -> np.ndarray:
    pairs = zip(_rows(batch, scores), _rows(batch, other), strict=True)
    return np.array([metrics.rank_correlation(a[None], b[None])[0] for a, b in pairs])


def _rows(batch: Batch, scores: Tensor) -> list[np.ndarray]:
    """The scores of each example, without padding."""
    return real_rows(batch, scores) if isinstance(batch, Texts) else list(scores.cpu().numpy())
