import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from vitrail.errors import InputError
from vitrail.evaluate import metrics

SPECIAL = {101, 102}


def counts_sevens(ids, mask):
    """Class 1 the more 7s there are among the tokens that are not masked."""
    sevens = ((ids == 7) & (mask == 1)).sum(dim=1).double()
    return torch.stack([torch.ones_like(sevens), sevens], dim=1)


def texts():
    ids = [[101, 5, 7, 6, 7, 4, 9, 8, 3, 2, 7, 102], [101, 7, 5, 4, 7, 6, 3, 2, 8, 9, 102]]
    right = [[float(token == 7) - 0.01 * place for place, token in enumerate(text)] for text in ids]
    return ids, right, [1, 1]


@pytest.mark.parametrize(("how", "name"), [("delete", "deleted"), ("pad", "padded")])
def test_the_golden_ids_after_removal(given, expected, how, name):
    scores, ids = given["attcat_removal/scores"], given["attcat_removal/input_ids"]
    found = metrics.perturbed_ids(ids, scores, special=SPECIAL, how=how, mode="attcat")
    levels = expected["attcat_removal/levels"]
    assert len(found) == len(levels)
    for level, sequence in zip(levels, found, strict=True):
        assert sequence.tolist() == expected[f"attcat_removal/{name}_ids_level{level}"].tolist()


def test_the_paper_removes_tenths_of_the_ordinary_tokens_down_to_none():
    ids = [101, *range(20), 102]
    found = metrics.perturbed_ids(ids, np.arange(22.0), special=SPECIAL)
    assert [len(sequence) for sequence in found] == [22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2]
    assert found[1].tolist() == [101, *range(18), 102]
    assert found[-1].tolist() == [101, 102]


def test_special_tokens_that_are_not_named_are_removed_too():
    """As AttCAT's code for pairs of sentences does."""
    found = metrics.perturbed_ids([101, 5, 6, 102], [9.0, 1.0, 2.0, 8.0])
    assert found[5].tolist() == [5, 6]


def test_eraser_keeps_or_deletes_the_same_tokens():
    ids, scores = [101, *range(1, 41), 102], [0.0, *np.arange(40.0), 0.0]
    without = metrics.perturbed_ids(ids, scores, special=SPECIAL, mode="eraser")
    only = metrics.perturbed_ids(ids, scores, special=SPECIAL, mode="eraser", how="keep")
    assert [len(sequence) - 2 for sequence in only] == [1, 2, 4, 8, 20]
    assert only[1].tolist() == [101, 39, 40, 102]
    for left, kept in zip(without, only, strict=True):
        assert sorted([*left[1:-1], *kept[1:-1]]) == list(range(1, 41))


@pytest.mark.parametrize("mode", ["paper", "attcat"])
@pytest.mark.parametrize("how", ["delete", "pad"])
def test_planted_beats_random_beats_reverse(rng, mode, how):
    ids, right, labels = texts()
    random = [rng.random(len(text)) for text in ids]
    reverse = [[-score for score in row] for row in right]
    drops, odds = [], []
    for scores in (right, random, reverse):
        curve = metrics.text_curve(counts_sevens, ids, scores, labels, special=SPECIAL, how=how, mode=mode)
        drops.append(metrics.aopc(curve.p, curve.p_k))
        odds.append(metrics.log_odds(curve.p, curve.p_k))
    assert drops[0] > drops[1] > drops[2]
    assert odds[0] < odds[1] < odds[2]


def test_the_planted_rationale_is_comprehensive_and_sufficient(rng):
    ids, right, labels = texts()
    random = [rng.random(len(text)) for text in ids]
    found = []
    for scores in (right, random):
        without, only = (
            metrics.text_curve(counts_sevens, ids, scores, labels, special=SPECIAL, mode="eraser", how=how)
            for how in ("delete", "keep")
        )
        found.append((metrics.comprehensiveness(without.p, without.p_k), metrics.sufficiency(only.p, only.p_k)))
    assert found[0][0] > found[1][0]
    assert found[0][1] < found[1][1]


def test_the_curve_of_a_hand_example():
    """Ten ordinary tokens, three of them 7: after k tenths, max(3 - k, 0) are left."""
    ids, right, _ = texts()
    curve = metrics.text_curve(counts_sevens, ids[:1], right[:1], [1], special=SPECIAL)
    sevens = np.array([3, 2, 1, *[0] * 8])
    assert_allclose(curve.p, 1 / (1 + np.exp(1 - 3)))
    assert_allclose(curve.p_k[0], 1 / (1 + np.exp(1 - sevens)))


def test_replaced_tokens_are_seen_by_the_model_and_nothing_is_padded():
    masks = {"delete": [], "pad": []}
    ids, right, labels = texts()
    for how, seen in masks.items():

        def score(ids, mask, seen=seen):
            seen.append((ids.clone(), mask.clone()))
            return counts_sevens(ids, mask)

        metrics.text_curve(score, ids, right, labels, special=SPECIAL, how=how, pad=55)
    assert all(bool((mask == 1).all()) for seen in masks.values() for _, mask in seen)
    assert not any((ids == 55).any() for ids, _ in masks["delete"])
    assert sum(int(mask.sum()) for _, mask in masks["pad"]) == 11 * 12 + 1 * 12 + 12 * 11
    assert any(((ids == 55) & (mask == 1)).any() for ids, mask in masks["pad"])


def test_the_size_of_the_batch_changes_nothing():
    ids, right, labels = texts()
    whole = metrics.text_curve(counts_sevens, ids, right, labels, special=SPECIAL)
    again = metrics.text_curve(counts_sevens, ids, right, labels, special=SPECIAL, batch=3)
    assert_allclose(again.p_k, whole.p_k)
    assert_allclose(again.p, whole.p)


@pytest.mark.parametrize(
    ("call", "help"),
    [
        (lambda: metrics.perturbed_ids([1, 2], [1.0]), r"\[2\] and \[1\]"),
        (lambda: metrics.perturbed_ids([101], [1.0], special=SPECIAL), "all 1 tokens are special"),
        (lambda: metrics.perturbed_ids([1] * 9, [1.0] * 9, mode="attcat"), "fewer than 10 tokens, and this one has 9"),
        (lambda: metrics.text_curve(counts_sevens, [[1, 2]], [[1.0, 2.0]], [0]), "nothing is left of text 0"),
        (lambda: metrics.text_curve(counts_sevens, [[1, 2]], [[1.0, 2.0]], [0, 1]), r"\[1, 1\] and \[1, 2\]"),
        (lambda: metrics.text_curve(counts_sevens, [], [], []), "no texts"),
        (
            lambda: metrics.text_curve(counts_sevens, [[1, 2]], [[1.0, 2.0]], [5], how="pad"),
            "there are 2 classes",
        ),
        (
            lambda: metrics.text_curve(counts_sevens, [[1]], [[1.0]], [0], how="pad", batch=0),
            "at least 1, not 0",
        ),
    ],
)
def test_texts_that_cannot_be_perturbed_are_refused(call, help):
    with pytest.raises(InputError, match=help):
        call()
