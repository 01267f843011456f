"""One number for a curve over removed fractions. Published areas follow four rules; they cannot be compared.

`chefer`: trapezoid over 0, 0.1, ..., 0.9, times 100, nothing at 1 (the authors' rule for arXiv:2012.09838).
`bi`: the same with a last point (1, 0), not times 100 (Beyond Intuition, Chen et al., TMLR 2023).
`unit`: trapezoid over [0, 1], times 100 (our reading of TokenTM, arXiv:2403.14552, where the rule is open).
`mean`: the plain mean of the points (AGCAM, arXiv:2402.04563).
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.integrate import trapezoid

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, check_same, look_up, numbers_of, to_array

Points = Float[np.ndarray, " l"]
Curves = Float[np.ndarray, "l n"]
Rule = Callable[[Curves, Points], Float[np.ndarray, " n"]]


def chefer(values: Curves, levels: Points) -> Float[np.ndarray, " n"]:
    """Trapezoid up to the last level, times 100."""
    return 100 * trapezoid(values, levels, axis=0)


def bi(values: Curves, levels: Points) -> Float[np.ndarray, " n"]:
    """Trapezoid with a last point (1, 0)."""
    if levels[-1] >= 1:
        raise InputError(f"rule 'bi' adds the point (1, 0) itself, but the last level is {levels[-1]:g}.")
    return trapezoid(np.vstack([values, 0 * values[:1]]), np.append(levels, 1.0), axis=0)


def mean(values: Curves, levels: Points) -> Float[np.ndarray, " n"]:
    """The mean of the points."""
    return values.mean(axis=0)


def unit(values: Curves, levels: Points) -> Float[np.ndarray, " n"]:
    """Trapezoid over [0, 1], times 100."""
    if (levels[0], levels[-1]) != (0, 1):
        raise InputError(f"rule 'unit' needs levels from 0 to 1, but they run from {levels[0]:g} to {levels[-1]:g}.")
    return 100 * trapezoid(values, levels, axis=0)


def _tenths(count: int) -> Points:
    if count > 11:
        raise InputError(f"{count} values are more than 0, 0.1, ..., 1: say at which levels they were taken (levels=).")
    return np.arange(count) / 10


def _whole(count: int) -> Points:
    return np.linspace(0, 1, count)


RULES: dict[str, tuple[Rule, Callable[[int], Points]]] = {
    "chefer": (chefer, _tenths),
    "bi": (bi, _tenths),
    "mean": (mean, _whole),
    "unit": (unit, _whole),
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
    check_same(to_array(positive).shape, to_array(negative).shape, "the shapes of the two curves")
    return area(negative, rule="mean") - area(positive, rule="mean")
