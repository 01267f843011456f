"""Every model of `stream_models`: its streams, batches and samples, and what is refused. A tenth runs by default."""

import logging

import pytest
import torch
from stream_models import TABLE, prepared
from torch.testing import assert_close

import vitrail
from vitrail.errors import SeamError

FOLLOWED = [name for name, case in TABLE.items() if case.refused is None]
REFUSED = [name for name, case in TABLE.items() if case.refused is not None]
EXACT = {"atol": 1e-9, "rtol": 1e-7}
SINGLE = {"atol": 1e-5, "rtol": 1e-3}  # a model that does not run in float64


def tenth(names: list[str]) -> list:
    return [name if i % 10 == 0 else pytest.param(name, marks=pytest.mark.table) for i, name in enumerate(names)]


def form(found):
    return tuple((name, one.grid or one.scores.shape[1]) for name, one in (found.streams or {"image": found}).items())


@pytest.mark.parametrize("name", tenth(FOLLOWED))
def test_every_sample_of_a_batch_gets_the_scores_it_gets_alone(name):
    case = TABLE[name]
    model, inputs = prepared(case)
    found = vitrail.explain(model, inputs, "gae", case.target)
    if case.streams:
        assert form(found) == case.streams
    alone = prepared(case, batch=1)[1]
    one = vitrail.explain(model, alone, "gae", case.target)
    assert_close(one.scores, found.scores[:1], **EXACT if case.double else SINGLE) if same(alone, inputs) else None
    for stream in found.streams.values():
        assert stream.scores.shape[0] == 2
        assert bool(torch.isfinite(stream.scores).all())
    assert bool((found.scores != 0).any())


def same(alone, inputs) -> bool:
    """Whether the one sample is the first of two: noise of another shape may be other noise."""
    pairs = [(alone, inputs)] if isinstance(alone, torch.Tensor) else [(alone[name], inputs[name]) for name in alone]
    return all(torch.equal(one, two[: len(one)]) for one, two in pairs)


@pytest.mark.parametrize("name", tenth(REFUSED))
def test_attention_that_cannot_be_followed_is_refused_and_the_default_takes_gradients(name, monkeypatch):
    case = TABLE[name]
    model, inputs = prepared(case)
    logging.disable(logging.WARNING)
    with pytest.raises(SeamError, match=case.refused):
        vitrail.explain(model, inputs, "gae", case.target)
    found = vitrail.explain(model, inputs, "input_x_gradient", case.target)
    logging.disable(logging.NOTSET)
    assert bool((found.scores != 0).any())
    assert found.scores.shape[0] == 2


def test_the_table_has_the_families_that_people_ask_for():
    assert len(TABLE) >= 75
    assert len(FOLLOWED) >= 55
