import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score

from vitrail.errors import InputError
from vitrail.evaluate import metrics


def test_the_golden_token_f1(given, expected):
    found = metrics.token_f1(given["eraser/truth_token_mask"], given["eraser/pred_token_mask"])
    for kind in ("macro", "micro"):
        for ours, golden in (("precision", "p"), ("recall", "r"), ("f1", "f1")):
            assert_allclose(getattr(found, f"{kind}_{ours}"), expected[f"eraser/instance_{kind}_{golden}"], rtol=1e-9)


@pytest.mark.parametrize("k", range(5, 45, 5))
def test_the_golden_token_f1_of_the_k_highest(given, expected, k):
    found = metrics.token_f1_at_k(given["eraser/truth_token_mask"], given["eraser/token_scores"], k)
    assert_allclose(found.macro_f1, expected[f"eraser/top{k}_instance_macro_f1"], rtol=1e-9)


def test_the_golden_ranking_scores(given, expected):
    found = metrics.token_ranking(given["eraser/truth_token_mask"], given["eraser/token_scores"])
    for ours, golden in (("auprc", "auprc"), ("average_precision", "average_precision"), ("roc_auc", "roc_auc_score")):
        assert_allclose(getattr(found, ours), expected[f"eraser/soft_{golden}_docs_with_evidence_only"], rtol=1e-9)


def test_a_hand_example():
    """Document 1: one of two right, one of three found. Document 2: nothing right. Document 3 has neither: left out."""
    truth = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=bool)
    predicted = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=bool)
    found = metrics.token_f1(truth, predicted)
    assert_allclose([found.macro_precision, found.macro_recall, found.macro_f1], [0.5 / 2, 1 / 3 / 2, 0.4 / 2])
    assert_allclose([found.micro_precision, found.micro_recall, found.micro_f1], [1 / 3, 1 / 4, 2 / 7])


def test_scikit_learn_ranks_the_same_with_ties(rng):
    truth, scores = rng.random((3, 40)) < 0.3, rng.integers(0, 9, (3, 40)).astype(float)
    found = metrics.token_ranking(truth, scores)
    rows = list(zip(truth, scores, strict=True))
    curves = [precision_recall_curve(t, s)[:2] for t, s in rows]
    assert_allclose(found.auprc, np.mean([auc(recall, precision) for precision, recall in curves]))
    assert_allclose(found.roc_auc, np.mean([roc_auc_score(t, s) for t, s in rows]))


def test_planted_beats_random_beats_reverse(rng):
    truth = (rng.random((6, 30)) < 0.2).astype(int)
    scores = [truth + 0.1 * rng.random(truth.shape), rng.random(truth.shape), -truth + 0.1 * rng.random(truth.shape)]
    f1 = [metrics.token_f1_at_k(truth, s, 5).macro_f1 for s in scores]
    roc = [metrics.token_ranking(truth, s).roc_auc for s in scores]
    assert f1[0] > f1[1] > f1[2]
    assert roc[0] == 1 > roc[1] > 0 == roc[2]


def test_what_was_cut_off_is_never_chosen_but_still_costs_recall():
    truth, scores = np.array([[1, 0, 1]], dtype=bool), np.array([[0.5, 0.1, -np.inf]])
    found = metrics.token_f1_at_k(truth, scores, 3)
    assert (found.macro_precision, found.macro_recall) == (0.5, 0.5)


def test_the_golden_precision_at_k(given, expected):
    names = ("attributions", "answer_start_end_inclusive")
    found = metrics.precision_at_k(*(given[f"precision_at_k/{name}"] for name in names))
    assert found.tolist() == expected["precision_at_k/count_top20"].tolist()


def test_precision_at_k_counts_answer_tokens_both_ends_inside():
    scores = np.array([[9.0, 8.0, 7.0, 6.0, 5.0]])
    assert [metrics.precision_at_k(scores, [[1, 3]], k=k)[0] for k in (1, 2, 3, 4, 5)] == [0, 1, 2, 3, 3]


def test_a_word_has_the_highest_score_of_its_pieces_and_special_tokens_give_none():
    text = "unlikely  plot twist"
    offsets = [(0, 0), (0, 2), (2, 8), (10, 14), (0, 0)]
    found = metrics.word_scores([9.0, 0.1, 0.7, -0.2, 8.0], offsets, text)
    assert found.tolist() == [0.7, -0.2, -np.inf]


@pytest.mark.parametrize(
    ("call", "help"),
    [
        (lambda: metrics.token_f1(np.zeros((2, 3)), np.zeros((2, 3))), "none of the 2 documents has a rationale or a"),
        (lambda: metrics.token_f1(np.ones((2, 3)), np.ones((2, 4))), r"\[2, 3\] and \[2, 4\]"),
        (
            lambda: metrics.token_f1(np.ones((1, 2)), [[0.5, 2.0]]),
            "True and False, but it holds values from 0.5 to 2.0",
        ),
        (lambda: metrics.token_f1_at_k(np.ones((1, 2)), [[0.5, 2.0]], 0), "at least 1, not 0"),
        (lambda: metrics.token_ranking(np.zeros((1, 2)), [[0.5, 2.0]]), "none of the 1 documents"),
        (lambda: metrics.token_ranking(np.ones((1, 2)), [[0.5, 2.0]]), "no ROC curve"),
        (lambda: metrics.precision_at_k([[0.5, 2.0]], [[1, 2]]), r"answer 1..2 is no part of 2 tokens"),
        (lambda: metrics.precision_at_k([[0.5, 2.0]], [[0, 0], [1, 1]]), r"\[1, 2\] and \[2, 2\]"),
        (lambda: metrics.word_scores([1.0], [(0, 9)], "short"), "run from 0 to 9, but the text has 5 characters"),
        (lambda: metrics.word_scores([1.0], [(0, 1)], " "), "no words"),
        (lambda: metrics.word_scores([1.0, 2.0], [(0, 1)], "a b"), r"\[2, 2\] and \[1, 2\]"),
    ],
)
def test_rationales_that_cannot_be_scored_are_refused(call, help):
    with pytest.raises(InputError, match=help):
        call()
