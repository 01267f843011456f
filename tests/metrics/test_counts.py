"""Counts of metrics are whole numbers within bounds, and are refused in words before anything large is made."""

import pytest
import torch
from type_checks import unchecked

from vitrail import metrics
from vitrail.errors import InputError

IMAGES, MAPS, LABELS = torch.rand(2, 3, 8, 8), torch.rand(2, 8, 8), torch.tensor([0, 1])


def score(images):
    return images.flatten(2).mean(dim=2)


def curve(name, **options):
    return getattr(metrics, name)(score, IMAGES, MAPS, LABELS, **options)


CALLS = {
    "steps of insertion": lambda n: curve("insertion", steps=n),
    "steps of deletion": lambda n: curve("deletion", steps=n),
    "margin": lambda n: metrics.pointing_game(MAPS, MAPS > 0.5, margin=n),
}
WHOLE = {
    **CALLS,
    "step": lambda n: curve("insertion", step=n),
    "batch": lambda n: curve("perturbation_curve", batch=n),
    "k": lambda n: metrics.token_f1_at_k(torch.ones(2, 5, dtype=torch.bool), torch.rand(2, 5), n),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("count", [10**9, 10**30])
def test_a_huge_count_is_refused_at_once(call, count):
    with pytest.raises(InputError, match="at most 10000"):
        call(count)


@pytest.mark.parametrize("call", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("count", [2.5, True, -1, "3"])
def test_a_count_is_a_whole_number(call, count):
    with unchecked(), pytest.raises(InputError, match="is a number of"):
        call(count)


@pytest.mark.parametrize("call", WHOLE.values(), ids=WHOLE)
def test_counts_within_bounds_are_taken(call):
    assert call(3) is not None
