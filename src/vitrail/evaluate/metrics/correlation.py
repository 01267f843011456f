"""How similar two rankings are: between classes (Kendall, class sensitivity) and between methods (agreement)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Bool, Float

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, check_same, flags_of, look_up, numbers_of, to_array

Row = Float[np.ndarray, " t"]
Rows = Float[np.ndarray, "n t"]


def _by_scores(a: Row, b: Row) -> float:
    """Ordinary tau-b of the scores."""
    return float(scipy.stats.kendalltau(a, b).statistic)  # pyright: ignore[reportAttributeAccessIssue]


def _by_positions(a: Row, b: Row) -> float:
    """AttCAT's definition: tau of the two arrays of token positions in order of falling score."""
    return _by_scores(np.argsort(-a, kind="stable").astype(float), np.argsort(-b, kind="stable").astype(float))


MODES: dict[str, Callable[[Row, Row], float]] = {"scores": _by_scores, "attcat": _by_positions}


def kendall(a: Numbers, b: Numbers, *, mode: str = "scores") -> Float[np.ndarray, " n"]:
    """Kendall's tau of the scores `[n, t]` for one class and for another, one number per example.

    NaN where all scores of an example are equal: there is no ranking.

    Args:
        a: scores for the explained class.
        b: scores for another class; low correlation means the explanation depends on the class.
        mode: `"scores"`, tau-b of the scores; `"attcat"`, tau of the sorted token positions, as AttCAT defines it.
    """
    measure = look_up(MODES, mode, "mode")
    left, right = _two(a, b)
    return np.array([measure(x, y) for x, y in zip(left, right, strict=True)])


def rank_correlation(a: Numbers, b: Numbers, *, valid: Numbers | None = None) -> Float[np.ndarray, " n"]:
    """Spearman's correlation of the maps of each example; a constant map, which ranks nothing, correlates 0.

    Args:
        a: maps, the examples first.
        b: maps of the same shape.
        valid: True for the entries that are real; all if None.
    """
    left, right = _two(a, b)
    real = _real(valid, left)
    return (_unit_ranks(left, real) * _unit_ranks(right, real)).sum(axis=1)


def class_sensitivity(maps: Numbers, other_maps: Numbers, *, valid: Numbers | None = None) -> Float[np.ndarray, " n"]:
    """Rank correlation of the maps of two classes: near 1, the method does not look at the class at all."""
    return rank_correlation(maps, other_maps, valid=valid)


@dataclass(frozen=True, eq=False)
class Agreement:
    """Rank correlations between methods: the mean over examples, and each example's."""

    names: tuple[str, ...]
    matrix: Float[np.ndarray, "m m"]
    per_example: Float[np.ndarray, "n m m"]


def agreement(maps: Mapping[str, Numbers], *, valid: Numbers | None = None) -> Agreement:
    """Spearman's correlation between the maps of every two methods.

    Args:
        maps: name -> maps of the same examples, the examples first.
        valid: True for the entries that are real; all if None.
    """
    if not maps:
        raise InputError("agreement needs maps of at least one method, but there are none.")
    all_rows = {name: _rows(values, name) for name, values in maps.items()}
    first, expected = next(iter(all_rows.items()))
    for name, rows in all_rows.items():
        check_same(expected.shape, rows.shape, f"the shapes [examples, entries] of {first} and {name}")
    real = _real(valid, expected)
    ranks = np.stack([_unit_ranks(rows, real) for rows in all_rows.values()])
    per_example = np.einsum("ant,bnt->nab", ranks, ranks)
    return Agreement(tuple(all_rows), per_example.mean(axis=0), per_example)


def _two(a: Numbers, b: Numbers) -> tuple[Rows, Rows]:
    left, right = _rows(a, "the first maps"), _rows(b, "the second maps")
    check_same(to_array(a).shape, to_array(b).shape, "the shapes of the two sets of maps")
    return left, right


def _rows(maps: Numbers, name: str) -> Rows:
    array = to_array(maps)
    return numbers_of(array.reshape(len(array), -1) if array.ndim > 2 else array, name, "n t")


def _real(valid: Numbers | None, rows: Rows) -> Bool[np.ndarray, "n t"] | None:
    if valid is None:
        return None
    real = flags_of(valid, "valid", "n t")
    check_same(rows.shape, real.shape, "the shapes of the maps and of valid")
    return real


def _unit_ranks(rows: Rows, valid: Bool[np.ndarray, "n t"] | None) -> Rows:
    """Ranks with mean 0 and length 1, so that products are correlations; zeros where not real, or all equal."""
    if valid is None:
        ranks = scipy.stats.rankdata(rows, axis=1)
        centred = ranks - ranks.mean(axis=1, keepdims=True)
    else:
        centred = np.zeros_like(rows)
        for out, row, real in zip(centred, rows, valid, strict=True):
            ranks = scipy.stats.rankdata(row[real])
            out[real] = ranks - ranks.mean()
    length = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    return centred / np.where(length > 0, length, 1)
