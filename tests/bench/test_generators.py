"""The caller's random generators are not moved by a run."""

import random

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from vitrail.evaluate import bench
from vitrail.evaluate.bench import worker
from vitrail.evaluate.bench.opened import open_model, own_generators


def drawn():
    """The next numbers of the generators. Not of Python's: the type checks of the tests draw from it."""
    return np.random.random(), torch.rand(3)


def seed_all():
    np.random.seed(12)
    torch.manual_seed(13)


def expected():
    seed_all()
    return drawn()


def test_a_run_leaves_the_callers_generators_as_they_were(plan_of, tmp_path):
    wanted = expected()
    seed_all()
    open_model.cache_clear()
    bench.run(plan_of(limit=2), tmp_path / "r.db")
    assert_close(drawn(), wanted, rtol=0, atol=0)


def test_a_run_that_fails_leaves_them_too(plan_of, tmp_path, monkeypatch):
    def fail(*_):
        np.random.random(), torch.rand(1)
        raise RuntimeError("broken")

    wanted = expected()
    seed_all()
    monkeypatch.setattr(worker._Bench, "rows", fail)
    with pytest.raises(RuntimeError, match="broken"):
        bench.run(plan_of(limit=2), tmp_path / "r.db")
    assert_close(drawn(), wanted, rtol=0, atol=0)


def test_a_watcher_that_draws_goes_on_in_its_own_sequence(plan_of, tmp_path):
    torch.manual_seed(13)
    wanted = torch.rand(3).tolist()
    torch.manual_seed(13)
    seen = []
    bench.run(plan_of(limit=2, batch=1), tmp_path / "r.db", watch=lambda _: seen.append(float(torch.rand(1))))
    assert seen == wanted


def test_pythons_own_generator_is_put_back_also_after_an_error():
    random.seed(11)
    before = random.getstate()
    with pytest.raises(ZeroDivisionError), own_generators():
        _ = random.random() / 0
    assert random.getstate() == before


def test_inside_the_seed_decides_and_torchs_seed_of_the_caller_stays():
    torch.manual_seed(13)
    before = torch.initial_seed()
    first, second = [], []
    for found in (first, second):
        with own_generators(seed=5):
            found.append(torch.rand(4))
        torch.rand(1)
    assert_close(first, second, rtol=0, atol=0)
    assert torch.initial_seed() == before


def test_a_seed_that_waits_for_cuda_is_not_replaced():
    """`torch.manual_seed` also queues a seed for a CUDA that is not started yet."""
    waiting = list(torch.cuda._queued_calls)
    with own_generators(seed=5):
        torch.rand(1)
    assert torch.cuda._queued_calls == waiting
