"""The rows of every table that read nothing of the model."""

import numpy as np
import torch
from torch.testing import assert_close

from vitrail import bench
from vitrail.evaluate import answers
from vitrail.evaluate.bench.measures import MEASURES
from vitrail.evaluate.bench.plan import PRIORS_OF
from vitrail.evaluate.bench.priors import central, measures
from vitrail.evaluate.bench.table import Column, Estimate, MethodSample, estimates, not_better


def test_the_map_of_the_centre_falls_with_the_distance_from_the_middle():
    found = central((3, 4))
    y, x = torch.tensor([-0.5, 0.0, 0.5]), torch.tensor([-0.6, -0.2, 0.2, 0.6])
    assert_close(found, 1 - (y[:, None] ** 2 + x**2).sqrt() / 2**0.5)
    assert found.argmax() in (5, 6)
    assert bool((found > 0).all())


def test_what_says_nothing_of_a_prior_is_not_measured():
    assert measures(("segmentation", "ranks", "randomisation"), MEASURES) == ("segmentation",)


def rows_of(path):
    (table,) = bench.tables(path)
    return {name: dict(zip([c.name for c in table.columns], row, strict=True)) for name, row in table.rows}


def test_priors_are_the_same_in_every_batch(plan_of, tmp_path):
    found = []
    for batch in (1, 4):
        path = tmp_path / f"{batch}.db"
        bench.run(plan_of(trials=(bench.Trial("gae"),), batch=batch, limit=4), path)
        found.append(rows_of(path))
    assert found[0].keys() == {"gae", "random", "centre"}
    for name in ("random", "centre"):
        for column, estimate in found[0][name].items():
            assert_close(estimate.value, found[1][name][column].value, rtol=1e-4, atol=1e-4)


def test_a_method_that_is_no_better_than_a_prior_is_marked():
    def one(value):
        return Estimate(value, value, value, 3)

    ways = {"up": True, "down": False, "free": None}
    columns = [Column(name, (), higher, np.asarray) for name, higher in ways.items()]
    rows = (
        ("bad", (one(0.4), one(0.3), one(0.1))), ("centre", (one(0.5), one(0.6), one(0.1))),
        ("good", (one(0.6), one(0.1), None)), ("random", (one(0.2), one(0.2), one(0.1))),
    )  # fmt: skip
    assert not_better(columns, rows) == ["Not better than centre and random: up: bad; down: bad."]
    assert not_better(columns, rows[::2]) == []


def test_priors_of_answers_are_those_of_tables():
    assert set(answers.PRIORS) == set(PRIORS_OF["answer"])


def test_a_prior_is_never_the_best_of_its_column():
    def sample(value, *, is_prior):
        return MethodSample(np.full((9, 1), value), np.ones(9, dtype=bool), is_prior)

    column = Column("up", (), higher=True, features=np.asarray)
    found = estimates(column, [sample(0.9, is_prior=True), sample(0.5, is_prior=False)], seed=0)
    assert [one.best for one in found] == [False, True]
