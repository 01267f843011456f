import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from vitrail.errors import InputError
from vitrail.evaluate import metrics


def test_the_golden_drops(given, expected):
    p, nine, eleven, twenty_one = (
        given[f"aopc/{name}"] for name in ("p", "p_k_9levels", "p_k_11levels", "p_k_21levels")
    )
    found = {
        "attcat_code_aopc_abs": metrics.aopc(p, nine, absolute=True),
        "attcat_code_logodds": metrics.log_odds(p, nine),
        "paper_aopc_mean": metrics.aopc(p, eleven),
        "paper_aopc_per_level": metrics.aopc_per_level(p, eleven),
        "paper_lodds_mean": metrics.log_odds(p, eleven),
        "paper_lodds_per_level": metrics.log_odds_per_level(p, eleven),
        "vtranm_aopc": metrics.aopc(p, twenty_one),
        "vtranm_lodds": metrics.log_odds(p, twenty_one),
    }
    for name, value in found.items():
        assert_allclose(value, expected[f"aopc/{name}"], rtol=1e-9, err_msg=name)


def test_the_golden_comprehensiveness_and_sufficiency(given, expected):
    p, without, only = (given[f"eraser_aopc/{name}"] for name in ("p", "p_comprehensiveness", "p_sufficiency"))
    assert_allclose(metrics.comprehensiveness(p, without), expected["eraser_aopc/comprehensiveness"], rtol=1e-9)
    assert_allclose(metrics.sufficiency(p, only), expected["eraser_aopc/sufficiency"], rtol=1e-9)
    points = metrics.aopc_per_level(p, without), metrics.aopc_per_level(p, only)
    assert_allclose(points[0], expected["eraser_aopc/comprehensiveness_points"], rtol=1e-9)
    assert_allclose(points[1], expected["eraser_aopc/sufficiency_points"], rtol=1e-9)


def test_a_rise_and_a_fall_cancel_unless_taken_absolutely():
    p, p_k = torch.tensor([0.5, 0.5]), torch.tensor([[0.4], [0.6]])
    assert_allclose(metrics.aopc(p, p_k), 0, atol=1e-7)  # the inputs are float32
    assert_allclose(metrics.aopc(p, p_k, absolute=True), 0.1, atol=1e-7)


def test_half_the_probability_is_log_one_half():
    assert_allclose(metrics.log_odds([0.8, 0.2], [[0.4, 0.8], [0.1, 0.2]]), np.log(0.5) / 2)


@pytest.mark.parametrize(
    ("p", "p_k", "help"),
    [
        ([0.5], [[0.5], [0.5]], r"examples of p and of p_k must be the same, but they are \[1\] and \[2\]"),
        ([0.5], [0.5], r"p_k must have the axes \[n, levels\]"),
        ([0.5], [[1.5]], "p_k must be probabilities, but they run from 1.5 to 1.5"),
        ([0.5], [[np.nan]], "1 of 1 values are NaN"),
        ([0.5], [[0.0, 0.1]], "1 probabilities are exactly 0"),
    ],
)
def test_what_are_no_probabilities_are_refused(p, p_k, help):
    with pytest.raises(InputError, match=help):
        metrics.log_odds(p, p_k)
