"""Sanity checks and agreement between methods, as the bench stores and tabulates them."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from vitrail import compare
from vitrail.api import explainer
from vitrail.apps.cli.app import app
from vitrail.attribution import Comparison
from vitrail.errors import InputError
from vitrail.evaluate import bench, data, metrics
from vitrail.models.loading import load


def pets(place):
    loaded = load(str(place / "vit"))
    inputs = torch.cat(
        [loaded.image(e.image, squash=True).inputs["pixel_values"] for e in data.load("pets", place / "pets")]
    )
    with torch.no_grad():
        return loaded.model, inputs, loaded.model(inputs).logits


@pytest.fixture(scope="module")
def checked(place, tmp_path_factory):
    path = tmp_path_factory.mktemp("sanity") / "r.db"
    plan = bench.Plan(
        models=(bench.ModelSpec(str(place / "vit")),),
        data=(bench.DataSpec("pets", str(place / "pets")),),
        trials=(bench.Trial("gae"), bench.Trial("rollout"), bench.Trial("raw_attention")),
        protocols=bench.protocols_of(("sanity", "agreement")),
        batch=4,
    )
    bench.run(plan, path)
    return path, plan


def cells(table):
    return {name: dict(zip([c.name for c in table.columns], row, strict=True)) for name, row in table.rows}


def test_rows_are_those_of_a_direct_cascade(place, checked, stored):
    model, inputs, logits = pets(place)
    target = logits.argmax(dim=1)
    expected = metrics.cascading_randomisation(lambda m: compare(m, inputs, ["gae"], target)[0].scores, model)
    rows = stored_run(checked[0], "sanity", "gae", "randomisation")
    assert next(iter(rows.values()))["parts"] == list(expected.parts)
    assert len(expected.parts) > 3
    np.testing.assert_allclose([row["correlation"] for row in rows.values()], expected.correlation.T, atol=1e-3)


def stored_run(path, protocol, label, metric):
    from vitrail.evaluate.bench.store import reading

    with reading(path) as store:
        (run,) = (
            run
            for run, about in store.runs().items()
            if (about["protocol"]["name"], about["method"]["label"]) == (protocol, label)
        )
        return {key: value for key, name, value, _ in store.results(run) if name == metric}


def test_the_table_takes_the_size_of_the_correlation(checked):
    rows = stored_run(checked[0], "sanity", "gae", "randomisation").values()
    sizes = np.abs([row["correlation"] for row in rows])
    found = cells(bench.tables(checked[0])[-1])["gae"]
    assert found["random head"].value == pytest.approx(sizes[:, 0].mean())
    assert found["all random"].value == pytest.approx(sizes[:, -1].mean())
    assert found["cascade"].value == pytest.approx(sizes.mean())


def test_attention_alone_does_not_look_at_the_class_nor_at_the_head(place, checked):
    table = cells(bench.tables(checked[0])[-1])
    assert table["rollout"]["class sensitivity"].value == pytest.approx(1)
    assert table["rollout"]["random head"].value == pytest.approx(1)
    assert table["gae"]["class sensitivity"].value < 0.999
    model, inputs, logits = pets(place)
    first, second = logits.topk(2, dim=1).indices.T
    maps = [compare(model, inputs, ["gae"], target)[0].scores for target in (first, second)]
    assert table["gae"]["class sensitivity"].value == pytest.approx(metrics.class_sensitivity(*maps).mean(), abs=1e-3)


def test_agreement_is_the_matrix_of_direct_calls(place, checked):
    model, inputs, logits = pets(place)
    names = ["gae", "raw_attention", "rollout"]
    maps = [a.scores for a in compare(model, inputs, names, logits.argmax(dim=1))]
    expected = metrics.agreement(dict(zip(names, maps, strict=True))).matrix
    (table, _) = bench.tables(checked[0])
    assert table.title == "vit on pets, protocol agreement: how far methods agree"
    for (name, row), line in zip(table.rows, expected, strict=True):
        for other, cell, value in zip(names, row, line, strict=True):
            assert cell is None if name == other else cell.value == pytest.approx(value, abs=1e-3)
    text = bench.render([table])
    assert "| method | n | gae | raw_attention | rollout |" in text
    assert "**" not in text
    assert r"\begin{tabular}{lrrrr}" in bench.render([table], "latex")


def test_a_method_that_comes_later_joins_in_and_nothing_is_computed_twice(place, checked, tmp_path, monkeypatch):
    path, plan = tmp_path / "r.db", checked[1]
    bench.run(bench.Plan(**{**vars(plan), "trials": plan.trials[:2]}), path)
    assert len(bench.tables(path)[0].rows) == 2
    bench.run(plan, path)
    assert bench.render(bench.tables(path)) == bench.render(bench.tables(checked[0]))
    monkeypatch.setattr(explainer, "compare", None)
    assert bench.run(plan, path).fresh == 0


def test_texts_are_compared_without_their_padding(place, text_plan_of, tmp_path):
    given = {"protocols": bench.protocols_of(("sanity", "agreement")), "trials": (bench.Trial("gae"),)}
    bench.run(text_plan_of(**given, batch=8), tmp_path / "whole.db")
    bench.run(text_plan_of(**given, batch=1), tmp_path / "single.db")
    numbers = {"ranks": "ranks", "class_sensitivity": "correlation", "randomisation": "correlation"}
    for metric, entry in numbers.items():
        protocol = "agreement" if metric == "ranks" else "sanity"
        one, other = (stored_run(tmp_path / f"{n}.db", protocol, "gae", metric) for n in ("whole", "single"))
        assert list(one) == list(other)
        for key in one:
            np.testing.assert_allclose(one[key][entry], other[key][entry], atol=1e-6)


def test_the_cascade_can_be_drawn(checked):
    figure = bench.curves(checked[0])
    (place,) = (axes for axes in figure.axes if axes.lines)
    assert [len(line.get_xdata()) for line in place.lines] == [6, 6, 6]  # the trained model and five parts
    assert place.lines[0].get_ydata()[0] == 1


def test_a_model_that_cannot_be_explained_at_random_is_skipped_with_the_part(place, plan_of, tmp_path, monkeypatch):
    real, calls = explainer.compare, []

    def failing(model, *rest, **more):
        calls.append(model)
        if len(calls) == 3:
            return Comparison([], {0: InputError("no gradient")})
        return real(model, *rest, **more)

    monkeypatch.setattr(explainer, "compare", failing)
    plan = plan_of(
        protocols=bench.protocols_of(("sanity",)), metrics=("randomisation",), trials=(bench.Trial("gae"),), batch=6
    )
    assert bench.run(plan, tmp_path / "r.db").skipped == 6
    assert "randomised: gae: no gradient (6 times)" in bench.tables(tmp_path / "r.db")[0].notes[-1]


def test_both_commands_print_tables(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    methods = ["--method", "gae", "--method", "rollout", "--limit", "3"]
    sanity = CliRunner().invoke(app, ["bench", "sanity", "vit", "pets/images", *methods, "-o", str(tmp_path / "r.db")])
    assert sanity.exit_code == 0
    assert "cascade ↓" in sanity.stdout
    assert "class sensitivity ↓" in sanity.stdout
    alike = CliRunner().invoke(
        app, ["bench", "agreement", "vit", "pets/images", *methods, "-o", str(tmp_path / "r.db")]
    )
    assert alike.exit_code == 0
    assert alike.stdout.count("###") == 1
    assert ": how far methods agree" in alike.stdout
