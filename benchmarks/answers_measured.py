"""What `answers_quality.py` measures of one answer, with seconds; the bench has the same metrics without them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.api import explain
from vitrail.evaluate.answers import (
    Ablations,
    Question,
    Scores,
    pooled,
    recall,
    score_lds,
    scores_without,
)
from vitrail.methods import METHODS
from vitrail.methods.context_cite import kept_sources
from vitrail.targets import continuation

HELD_OUT_SEED = 7919
"""Of the ablations that are measured on; `context_cite` is fitted to others."""


def by_method(name: str, *, scalar: str = "log_probability", **options: Any) -> Scores:
    """The scores of all columns by a method of the table, for the log-probability of the answer or its log-odds."""

    def scores(model: Any, question: Question) -> Float[Tensor, " t"]:
        given = {
            **options,
            **({"sources": list(question.sources)} if "sources" in METHODS[name].options else {}),
        }
        target = continuation(question.start, question.stop, scalar=scalar)
        return explain(model, question.inputs, name, target, **given).scores[0].detach().float().cpu()

    return scores


@dataclass(frozen=True)
class AnswerMeasures:
    """What one method reached on one question; NaN where a question has no such measure."""

    seconds: float
    lds: float = float("nan")
    drop: Mapping[int, float] = field(default_factory=dict)
    kept: Mapping[int, float] = field(default_factory=dict)
    recall: float = float("nan")
    reciprocal_rank: float = float("nan")

    def row(self) -> dict[str, float]:
        """The numbers by the names of their columns."""
        drops = {f"drop@{k}": x for k, x in self.drop.items()}
        kept = {f"kept@{k}": x for k, x in self.kept.items()}
        gold = {"recall@10%": self.recall, "mrr": self.reciprocal_rank}
        return {"lds": self.lds, **drops, **kept, **gold, "seconds": self.seconds}


def ablations_of(model: nn.Module, question: Question, count: int) -> Ablations:
    """The answer of a question under held-out ablations."""
    keep = kept_sources(len(question.sources), count, HELD_OUT_SEED)
    values = scores_without(model, question, torch.cat([torch.ones_like(keep[:1]), keep]))
    return Ablations(keep, values[1:], float(values[0]))


def measure(
    model: nn.Module,
    question: Question,
    method: Scores,
    known: Ablations | None,
    *,
    pool: str = "sum",
    ks: Sequence[int] = (1, 3),
) -> AnswerMeasures:
    """Everything that a question allows.

    Args:
        known: the answer under held-out ablations; None leaves out what needs them.
        ks: how many sentences are removed, or kept alone.
    """
    begun = time.perf_counter()
    scores = method(model, question)
    seconds = time.perf_counter() - begun
    each = pooled(scores, question.sources, pool).double()
    gold: dict[str, Any] = {}
    if question.gold:
        order = each.argsort(descending=True, stable=True).tolist()
        gold = {"reciprocal_rank": 1 / (1 + min(order.index(place) for place in question.gold))}
        gold |= {"recall": recall(scores, question.sources, question.value)} if question.value else {}
    if known is None:
        return AnswerMeasures(seconds, **gold)
    best = torch.zeros(len(ks), len(each), dtype=torch.bool)
    for row, k in enumerate(ks):
        best[row, each.argsort(descending=True, stable=True)[:k]] = True
    after = scores_without(model, question, torch.cat([~best, best]))
    drop, kept = (known.whole - after).split(len(ks))
    numbers = {k: float(x) for k, x in zip(ks, drop, strict=True)}
    alone = {k: float(x) for k, x in zip(ks, kept, strict=True)}
    return AnswerMeasures(seconds, score_lds(each, known), numbers, alone, **gold)


def difference(
    ours: Sequence[float], theirs: Sequence[float], *, share: float = 1.0, resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """The mean of `ours - share * theirs` over questions, and its 95 % interval by a paired bootstrap."""
    each = np.asarray(ours, dtype=float) - share * np.asarray(theirs, dtype=float)
    each = each[np.isfinite(each)]
    if not len(each):
        return float("nan"), float("nan"), float("nan")
    picks = np.random.default_rng(seed).integers(len(each), size=(resamples, len(each)))
    low, high = np.quantile(each[picks].mean(axis=1), [0.025, 0.975])
    return float(each.mean()), float(low), float(high)
