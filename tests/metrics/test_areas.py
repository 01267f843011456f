import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from vitrail.errors import InputError
from vitrail.evaluate import metrics

TEN = "perturbation/accuracy_clean_then_0.1_to_0.9"


def test_the_golden_areas(given, expected):
    ten, twenty_one = given[TEN], given["perturbation/accuracy_0_to_100_step5"]
    assert_allclose(metrics.area(ten, rule="chefer"), expected["perturbation/auc_chefer"], rtol=1e-9)
    assert_allclose(metrics.area(ten, rule="bi"), expected["perturbation/auc_bi"], rtol=1e-9)
    assert_allclose(metrics.area(twenty_one, rule="unit"), expected["perturbation/auc_vtranm_default"], rtol=1e-9)
    assert_allclose(100 * metrics.area(ten, rule="mean"), expected["perturbation/mean_of_10"], rtol=1e-9)
    assert_allclose(100 * metrics.area(ten[1:], rule="mean"), expected["perturbation/mean_of_9"], rtol=1e-9)


def test_the_golden_area_between_curves(given, expected):
    most, least = given["abpc/MoRF"], given["abpc/LeRF"]
    assert_allclose(metrics.area(most, rule="mean"), expected["abpc/auc_MoRF"], rtol=1e-9)
    assert_allclose(metrics.area(least, rule="mean"), expected["abpc/auc_LeRF"], rtol=1e-9)
    assert_allclose(metrics.abpc(most, least), expected["abpc/score"], rtol=1e-9)


def test_a_straight_line_under_every_rule():
    line = 1 - np.arange(10) / 10
    assert_allclose(metrics.area(line, rule="chefer"), 100 * (0.5 - 0.005))
    assert_allclose(metrics.area(line, rule="bi"), 0.5)
    assert_allclose(metrics.area(line, rule="mean"), 0.55)
    assert_allclose(metrics.area([1.0, 0.75, 0.5, 0.25, 0.0], rule="unit"), 50)


def test_the_area_of_many_curves_is_the_mean_of_their_areas_and_the_area_of_their_mean(rng):
    curves = rng.random((10, 4))
    assert_allclose(metrics.areas(curves, rule="bi"), [metrics.area(curve, rule="bi") for curve in curves.T])
    assert_allclose(metrics.area(curves), metrics.areas(curves).mean())
    assert_allclose(metrics.area(torch.from_numpy(curves)), metrics.area(curves.mean(axis=1)))


def test_uneven_levels_are_weighted_by_their_width():
    assert_allclose(metrics.area([1.0, 0.5, 0.0], rule="unit", levels=[0, 0.2, 1]), 100 * (0.15 + 0.2))
    assert_allclose(metrics.area([1.0, 0.5], rule="bi", levels=[0, 0.2]), 0.15 + 0.2)


@pytest.mark.parametrize(
    ("call", "help"),
    [
        (lambda: metrics.area(np.ones(12)), "12 values, more than the levels"),
        (lambda: metrics.area([1.0]), "at least two points"),
        (lambda: metrics.area([1.0, 0.5], levels=[0.5, 0.5]), r"levels must rise, but they are \[0.5, 0.5\]"),
        (lambda: metrics.area([1.0, 0.5], levels=[0, 0.5, 1]), r"\[3\] and \[2\]"),
        (lambda: metrics.area([1.0, 0.5], rule="bi", levels=[0, 1]), "the last level is 1"),
        (lambda: metrics.area([1.0, 0.5], rule="unit", levels=[0, 0.9]), "they run from 0 to 0.9"),
        (lambda: metrics.area([1.0, np.nan]), "1 of 2 values are NaN"),
        (lambda: metrics.abpc([1.0, 0.5], [1.0, 0.5, 0.1]), r"\[2\] and \[3\]"),
    ],
)
def test_curves_without_an_area_are_refused(call, help):
    with pytest.raises(InputError, match=help):
        call()
