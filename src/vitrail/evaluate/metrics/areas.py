"""One number for a curve, and how far the probability falls.

Published areas under curves over removed fractions follow four rules; their numbers cannot be compared.
`chefer`: trapezoid over 0, 0.1, ..., 0.9, times 100, nothing at 1 (the authors' rule for arXiv:2012.09838).
`bi`: the same with a last point (1, 0), not times 100 (Beyond Intuition, Chen et al., TMLR 2023).
`unit`: trapezoid over [0, 1], times 100 (our reading of TokenTM, arXiv:2403.14552, where the rule is open).
`mean`: the plain mean of the points (AGCAM, arXiv:2402.04563).

AOPC and LOdds as in AttCAT (Qiang et al., NeurIPS 2022) and TokenTM (arXiv:2403.14552); comprehensiveness and
sufficiency as in ERASER (DeYoung et al., ACL 2020, arXiv:1911.03429). p is `[n]`, the clean probability of the
explained class; p_k is `[n, levels]`, the same after removal.
"""

from collections.abc import Callable

import numpy as np
import scipy
from jaxtyping import Float

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import TINY, Numbers, check_same, look_up, numbers_of, to_array

Points = Float[np.ndarray, " l"]
Curves = Float[np.ndarray, "l n"]
Rule = Callable[[Curves, Points], Float[np.ndarray, " n"]]


def chefer(values: Curves, levels: Points) -> Float[np.ndarray, " n"]:
    """Trapezoid up to the last level, times 100."""
    return 100 * scipy.integrate.trapezoid(values, levels, axis=0)


def bi(values: Curves, levels: Points) -> Float[np.ndarray, " n"]:
    """Trapezoid with a last point (1, 0)."""
    if levels[-1] >= 1:
        raise InputError(f"rule 'bi' adds the point (1, 0) itself, but the last level is {levels[-1]:g}.")
    return scipy.integrate.trapezoid(np.vstack([values, 0 * values[:1]]), np.append(levels, 1.0), axis=0)


def mean(values: Curves, levels: Points) -> Float[np.ndarray, " n"]:
    """The mean of the points."""
    return values.mean(axis=0)


def unit(values: Curves, levels: Points) -> Float[np.ndarray, " n"]:
    """Trapezoid over [0, 1], times 100."""
    if (levels[0], levels[-1]) != (0, 1):
        raise InputError(f"rule 'unit' needs levels from 0 to 1, but they run from {levels[0]:g} to {levels[-1]:g}.")
    return 100 * scipy.integrate.trapezoid(values, levels, axis=0)


def _tenths(count: int) -> Points:
    if count > 11:
        raise InputError(f"there are {count} values, more than the levels 0, 0.1, ..., 1: pass their levels (levels=).")
    return np.arange(count) / 10


RULES: dict[str, tuple[Rule, Callable[[int], Points]]] = {
    "chefer": (chefer, _tenths),
    "bi": (bi, _tenths),
    "mean": (mean, lambda count: np.linspace(0, 1, count)),
    "unit": (unit, lambda count: np.linspace(0, 1, count)),
}


def area(values: Numbers, *, rule: str = "chefer", levels: Numbers | None = None) -> float:
    """The area under a curve `[levels]`, or under the mean of many `[levels, n]`.

    Args:
        values: accuracy or probability, the clean one first for `chefer` and `bi`.
        rule: `chefer`, `bi`, `mean` or `unit`.
        levels: the removed fractions; by default steps of 0.1 from 0 (`chefer`, `bi`), or equal steps from 0 to 1.
    """
    return float(areas(values, rule=rule, levels=levels).mean())


def areas(values: Numbers, *, rule: str = "chefer", levels: Numbers | None = None) -> Float[np.ndarray, " n"]:
    """The area under each of the curves `[levels, n]`."""
    measure, spaced = look_up(RULES, rule, "rule")
    given = to_array(values)
    curves = numbers_of(given if given.ndim != 1 else given[:, None], "values", "levels n")
    if len(curves) < 2:
        raise InputError("a curve needs at least two points, but there is one.")
    points = spaced(len(curves)) if levels is None else to_array(levels).astype(np.float64)
    check_same(points.shape, curves.shape[:1], "the numbers of levels and of values")
    if (np.diff(points) <= 0).any():
        raise InputError(f"levels must rise, but they are {points.tolist()}.")
    return measure(curves, points)


def abpc(positive: Numbers, negative: Numbers) -> float:
    """AGCAM's area between perturbation curves: the mean of (lowest removed first) - (highest removed first).

    Args:
        positive: probability with the highest-scored removed first, `[levels]` or `[levels, n]`.
        negative: the same with the lowest-scored removed first.
    """
    return float(abpcs(positive, negative).mean())


def abpcs(positive: Numbers, negative: Numbers) -> Float[np.ndarray, " n"]:
    """AGCAM's area between the perturbation curves `[levels, n]` of each example."""
    check_same(to_array(positive).shape, to_array(negative).shape, "the shapes of the two curves")
    return areas(negative, rule="mean") - areas(positive, rule="mean")


def aopc(p: Numbers, p_k: Numbers, *, absolute: bool = False) -> float:
    """Mean over examples and levels of p - p_k.

    Args:
        p: clean probabilities.
        p_k: probabilities after removal.
        absolute: |p - p_k| instead, as in AttCAT's released code.
    """
    return float(aopc_per_level(p, p_k, absolute=absolute).mean())


def aopc_per_level(p: Numbers, p_k: Numbers, *, absolute: bool = False) -> Points:
    """AOPC at each level, the mean over examples."""
    return drops(p, p_k, absolute=absolute).mean(axis=0)


def drops(p: Numbers, p_k: Numbers, *, absolute: bool = False) -> Float[np.ndarray, "n l"]:
    """p - p_k of each example at each level."""
    clean, removed = _probabilities(p, p_k)
    return np.abs(clean - removed) if absolute else clean - removed


def log_odds(p: Numbers, p_k: Numbers) -> float:
    """Mean over examples and levels of log(p_k / p)."""
    return float(log_odds_per_level(p, p_k).mean())


def log_odds_per_level(p: Numbers, p_k: Numbers) -> Points:
    """LOdds at each level, the mean over examples."""
    clean, removed = _probabilities(p, p_k)
    zeros = int((clean == 0).sum() + (removed == 0).sum())
    if zeros:
        raise InputError(f"{zeros} probabilities are exactly 0, and log 0 is infinite: take the softmax in float64.")
    return log_ratios(p, p_k).mean(axis=0)


def log_ratios(p: Numbers, p_k: Numbers) -> Float[np.ndarray, "n l"]:
    """log(p_k / p) of each example at each level; a probability of 0 counts as the smallest number."""
    clean, removed = _probabilities(p, p_k)
    return np.log(np.maximum(removed, TINY)) - np.log(np.maximum(clean, TINY))


def comprehensiveness(p: Numbers, p_without: Numbers) -> float:
    """ERASER: mean of p - p(without the rationale) over examples and rationale sizes; high is good."""
    return aopc(p, p_without)


def sufficiency(p: Numbers, p_only: Numbers) -> float:
    """ERASER: mean of p - p(with the rationale only) over examples and rationale sizes; low is good."""
    return aopc(p, p_only)


def _probabilities(p: Numbers, p_k: Numbers) -> tuple[Float[np.ndarray, "n 1"], Float[np.ndarray, "n l"]]:
    clean, removed = numbers_of(p, "p", "n"), numbers_of(p_k, "p_k", "n levels")
    check_same(clean.shape, removed.shape[:1], "the numbers of examples of p and of p_k")
    for name, values in (("p", clean), ("p_k", removed)):
        if values.min() < 0 or values.max() > 1 + 1e-6:
            raise InputError(f"{name} must be probabilities, but they run from {values.min():g} to {values.max():g}.")
    return clean[:, None], removed
