"""Scores of sources (documents, sentences, tokens) against what the model does without some of them.

LDS: Park et al., "TRAK", ICML 2023, arXiv:2303.14186, as ContextCite uses it (Cohen-Wang et al., NeurIPS 2024,
arXiv:2409.00729), and top-k drop from the latter. Recall: the share of marked tokens among the highest-scored.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, check_same, flags_of, numbers_of, to_array
from vitrail.evaluate.metrics.rationales import top

DECIMALS = 12
"""Sums of scores are rounded to so many decimals, so that equal sums are ties in any order of summation."""


def lds(scores: Numbers, kept: Numbers, log_probability: Numbers) -> Float[np.ndarray, " n"]:
    """Linear datamodeling score: Spearman's correlation over ablations of the summed scores with the log-probability.

    NaN where all sums or all log-probabilities of an example are equal.

    Args:
        scores: `[n, s]`, one for each source.
        kept: `[n, m, s]`, which sources each ablation keeps.
        log_probability: `[n, m]`, of the answer under each ablation.
    """
    given, flags = numbers_of(scores, "scores", "n s"), flags_of(kept, "kept", "n m s")
    observed = to_array(log_probability).astype(np.float64)
    check_same((len(given), given.shape[1]), (len(flags), flags.shape[2]), "the shapes [n, s] of scores and of kept")
    check_same(flags.shape[:2], observed.shape, "the shapes [n, m] of kept and of the log-probabilities")
    sums = np.round(np.einsum("ns,nms->nm", given, flags.astype(np.float64)), DECIMALS)
    pairs = zip(sums, observed, strict=True)
    return np.array([_spearman(a, b) for a, b in pairs])


def _spearman(a: Float[np.ndarray, " m"], b: Float[np.ndarray, " m"]) -> float:
    if (a == a[0]).all() or (b == b[0]).all():
        return math.nan
    return float(scipy.stats.spearmanr(a, b).statistic)  # pyright: ignore[reportAttributeAccessIssue]


def topk_drop(score: Callable[[Any], Numbers], scores: Numbers, k: int) -> Float[np.ndarray, " n"]:
    """`f(all) - f(without the k highest-scored sources)`; high is good.

    Args:
        score: `[n, s]` of ones and zeros, 1 for each source that is kept -> `[n]`, such as a log-probability. It is
            given what `scores` is, a tensor or an array.
        scores: `[n, s]`, one for each source.
        k: how many sources are removed.
    """
    given = numbers_of(scores, "scores", "n s")
    if not 1 <= k <= given.shape[1]:
        raise InputError(f"k={k}, but there are {given.shape[1]} sources: k is from 1 to that number.")
    kept = (~top(given, k)).astype(np.float64)

    def run(flags: Float[np.ndarray, "n s"]) -> Float[np.ndarray, " n"]:
        shown = torch.from_numpy(flags).to(scores.device) if isinstance(scores, Tensor) else flags
        return numbers_of(score(shown), "what score returned", "n")

    return run(np.ones_like(kept)) - run(kept)


def recall_at(scores: Numbers, gold: Numbers, percent: int | float) -> Float[np.ndarray, " n"]:
    """The share of gold tokens among the `max(1, ceil(percent / 100 t))` highest-scored of t tokens.

    Args:
        scores: `[n, t]`; -inf for tokens that cannot be chosen, such as padding, which do not count in t.
        gold: `[n, t]`, True for the marked tokens; each example needs one.
        percent: how many of the tokens are chosen, above 0 to 100.
    """
    given, marked = numbers_of(scores, "scores", "n t"), flags_of(gold, "gold", "n t")
    check_same(given.shape, marked.shape, "the shapes of scores and gold")
    if not 0 < percent <= 100:
        raise InputError(f"percent={percent}, but it is a part of the tokens above 0, at most 100.")
    if not marked.any(axis=1).all():
        raise InputError(f"example {int((~marked.any(axis=1)).argmax())} has no gold token, so it has no recall.")
    real = (given > -np.inf).sum(axis=1)
    counts = [max(1, math.ceil(percent / 100 * int(count))) for count in real]
    chosen = np.concatenate([top(row[None], count) for row, count in zip(given, counts, strict=True)])
    return (chosen & marked).sum(axis=1) / marked.sum(axis=1)
