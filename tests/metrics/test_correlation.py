import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import spearmanr

from vitrail.errors import InputError
from vitrail.evaluate import metrics


@pytest.mark.parametrize(("mode", "name"), [("scores", "scores"), ("attcat", "attcat_code")])
def test_the_golden_kendall(given, expected, mode, name):
    found = metrics.kendall(given["kendall/a"], given["kendall/b"], mode=mode)
    assert_allclose(found, expected[f"kendall/{name}"], rtol=1e-9)


def test_the_same_scores_agree_and_reversed_scores_disagree():
    a = torch.tensor([[3.0, 1.0, 2.0], [0.1, 0.5, 0.9]])
    assert_allclose(metrics.kendall(a, a), [1, 1])
    assert_allclose(metrics.kendall(a, -a), [-1, -1])


def test_kendall_by_positions_of_a_hand_example():
    """Positions by falling score: 0 2 1 and 2 0 1; 0 < 2 but 2 > 0, 0 < 1 but 2 > 1, 2 > 1 but 0 < 1."""
    assert_allclose(metrics.kendall([[3.0, 1.0, 2.0]], [[2.0, 1.0, 3.0]], mode="attcat"), [-1])
    assert_allclose(metrics.kendall([[3.0, 1.0, 2.0]], [[2.0, 1.0, 3.0]], mode="scores"), [1 / 3])


def test_rank_correlation_is_scipys_spearman_also_with_ties(rng):
    a, b = rng.integers(0, 6, (4, 30)).astype(float), rng.random((4, 30))
    scipy = [spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    assert_allclose(metrics.rank_correlation(a, b), scipy)
    assert_allclose(metrics.rank_correlation(a.reshape(4, 5, 6), b.reshape(4, 5, 6)), scipy)


def test_padding_changes_no_correlation(rng):
    a, b = rng.random((2, 9)), rng.random((2, 9))
    valid = np.ones((2, 9), dtype=bool)
    valid[1, 6:] = False
    found = metrics.rank_correlation(a, b, valid=valid)
    assert_allclose(found[1], spearmanr(a[1, :6], b[1, :6]).statistic)
    assert_allclose(found[0], metrics.rank_correlation(a, b)[0])


def test_a_constant_map_agrees_with_nothing(rng):
    assert metrics.rank_correlation(np.ones((1, 5)), rng.random((1, 5))).tolist() == [0]


def test_agreement_holds_the_mean_correlation_of_every_two_methods(rng):
    maps = {"one": rng.random((3, 12)), "two": rng.random((3, 12)), "squared": None}
    maps["squared"] = maps["one"] ** 2
    found = metrics.agreement(maps)
    assert found.names == ("one", "two", "squared")
    assert_allclose(found.matrix, found.matrix.T)
    assert_allclose(np.diag(found.matrix), 1)
    assert_allclose(found.matrix[0, 2], 1)  # a rising function keeps the ranks
    assert_allclose(found.matrix[0, 1], metrics.rank_correlation(maps["one"], maps["two"]).mean())
    assert found.per_example.shape == (3, 3, 3)


def test_a_method_blind_to_the_class_is_insensitive(rng):
    maps = rng.random((2, 4, 5))
    assert_allclose(metrics.class_sensitivity(maps, maps), 1)
    assert (metrics.class_sensitivity(maps, rng.random((2, 4, 5))) < 0.9).all()


@pytest.mark.parametrize(
    ("call", "help"),
    [
        (lambda: metrics.kendall(np.ones((2, 3)), np.ones((2, 4))), r"\[2, 3\] and \[2, 4\]"),
        (lambda: metrics.rank_correlation(np.ones((2, 3, 4)), np.ones((2, 4, 3))), r"\[2, 3, 4\] and \[2, 4, 3\]"),
        (lambda: metrics.agreement({}), "at least one method"),
        (lambda: metrics.agreement({"a": np.ones((2, 3)), "b": np.ones((2, 4))}), "of a and b"),
        (lambda: metrics.agreement({"gae": np.full((2, 3), np.nan)}), "gae: 6 of 6 values are NaN"),
        (
            lambda: metrics.rank_correlation(np.ones((2, 3)), np.ones((2, 3)), valid=np.ones((2, 2))),
            "maps and of valid",
        ),
    ],
)
def test_maps_that_cannot_be_compared_are_refused(call, help):
    with pytest.raises(InputError, match=help):
        call()
