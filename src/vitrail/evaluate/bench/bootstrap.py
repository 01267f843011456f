"""Intervals and paired comparisons by resampling examples, the same resamples for all methods of a table."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from vitrail.evaluate.bench.measure import Column

Features = Float[np.ndarray, "n f"]
Present = Bool[np.ndarray, " n"]
RESAMPLES, LEVEL, AT_ONCE = 1000, 0.95, 100
WHOLE = 0.9
"""The share of a table's examples that a method needs results of to be called the best."""


@dataclass(frozen=True, eq=False)
class MethodSample:
    """The features of one method, for all examples of a table; those it has no result for are absent."""

    features: Features
    present: Present


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, and how surely it differs from the best of its column.

    Args:
        p: of the paired bootstrap against the best; None for the best itself.
        count: examples it was measured on.
    """

    value: float
    low: float
    high: float
    count: int
    best: bool = False
    p: float | None = None


def estimates(
    column: Column, samples: list[MethodSample], *, seed: int, resamples: int = RESAMPLES
) -> list[Estimate | None]:
    """Every method's number with a 95 % interval; None for a method without results."""
    values = [_value(column, sample, sample.present) for sample in samples]
    known = [i for i, value in enumerate(values) if value is not None]
    if not known:
        return [None] * len(samples)
    sign = 1 if column.higher else -1
    # A method that was measured on some examples only may have had the easy ones.
    most = max(int(samples[i].present.sum()) for i in known)
    whole = [i for i in known if samples[i].present.sum() >= WHOLE * most]
    best = max(whole, key=lambda i: sign * (values[i] or 0.0))
    alone: list[list[np.ndarray]] = [[] for _ in samples]
    wins: list[list[np.ndarray]] = [[] for _ in samples]
    for weights in _resampled(len(samples[0].present), seed, resamples):
        for i in known:
            alone[i].append(_resample(column, samples[i], samples[i].present, weights))
            shared = samples[i].present & samples[best].present
            if i != best and shared.any():
                pair = (_resample(column, samples[j], shared, weights) for j in (best, i))
                wins[i].append(sign * np.subtract(*pair))
    return [
        None if values[i] is None else _estimate(values[i] or 0.0, samples[i], alone[i], wins[i], best=i == best)
        for i in range(len(samples))
    ]


def gain(
    column: Column, mine: MethodSample, other: MethodSample, *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float, float]:
    """How much better one method is than another on the examples both have, with a 95 % paired interval."""
    sign, shared = 1 if column.higher else -1, mine.present & other.present
    value, against = (_value(column, sample, shared) for sample in (mine, other))
    if value is None or against is None:
        return np.nan, np.nan, np.nan
    drawn = [
        np.subtract(*(_resample(column, sample, shared, weights) for sample in (mine, other)))
        for weights in _resampled(len(shared), seed, resamples)
    ]
    low, high = np.percentile(sign * np.concatenate(drawn), [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return sign * (value - against), float(low), float(high)


def _estimate(
    value: float, sample: MethodSample, alone: list[np.ndarray], wins: list[np.ndarray], *, best: bool
) -> Estimate:
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(np.concatenate(alone), [tail, 100 - tail])
    p = None
    if wins:
        ahead = np.concatenate(wins)
        p = min(1.0, 2 * (1 + int((ahead <= 0).sum())) / (1 + len(ahead)))
    return Estimate(value, float(low), float(high), int(sample.present.sum()), best, p)


def _value(column: Column, sample: MethodSample, present: Present) -> float | None:
    return float(column.finish(sample.features[present].mean(axis=0, keepdims=True))[0]) if present.any() else None


def _resampled(count: int, seed: int, resamples: int) -> Iterator[Float[np.ndarray, "r n"]]:
    """How often each example is drawn in each resample, some resamples at a time."""
    rng = np.random.default_rng(seed)
    for start in range(0, resamples, AT_ONCE):
        drawn = [rng.integers(count, size=count) for _ in range(min(AT_ONCE, resamples - start))]
        yield np.stack([np.bincount(one, minlength=count) for one in drawn]).astype(np.float64)


def _resample(column: Column, sample: MethodSample, present: Present, weights: Float[np.ndarray, "r n"]) -> np.ndarray:
    some = weights[:, present]
    # Where a resample holds none of a small subset's examples, it says nothing new: the plain mean stands in.
    some = np.where(some.sum(axis=1, keepdims=True) > 0, some, 1.0)
    return column.finish((some @ sample.features[present]) / some.sum(axis=1, keepdims=True))
