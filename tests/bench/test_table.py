import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from markdown_it import MarkdownIt

from vitrail.errors import InputError, OptionError
from vitrail.evaluate import bench
from vitrail.evaluate.bench import forms
from vitrail.evaluate.bench.measure import Column
from vitrail.evaluate.bench.table import Estimate, MethodSample, estimates, gain, read_groups

MEAN = Column("mean", ("x",), higher=True, features=lambda values: np.array(values))
LOW = Column("mean", ("x",), higher=False, features=lambda values: np.array(values))


def sample(values, present=None):
    values = np.array(values, dtype=float)
    return MethodSample(values[:, None], np.ones(len(values), dtype=bool) if present is None else np.array(present))


def test_the_interval_is_that_of_resampled_means():
    values = np.random.default_rng(1).normal(size=30)
    (found,) = estimates(MEAN, [sample(values)], seed=0, resamples=300)
    rng = np.random.default_rng(0)
    means = [values[rng.integers(30, size=30)].mean() for _ in range(300)]
    np.testing.assert_allclose([found.low, found.high], np.percentile(means, [2.5, 97.5]), rtol=1e-12)
    np.testing.assert_allclose(found.value, values.mean())


def test_a_real_difference_is_told_and_a_spurious_one_is_not():
    rng = np.random.default_rng(2)
    good = rng.normal(size=60)
    best, worse, same = estimates(
        MEAN, [sample(good), sample(good - 0.5 + 0.1 * rng.normal(size=60)), sample(good - 0.01 * rng.normal(size=60))],
        seed=0,
    )  # fmt: skip
    assert [best.best or same.best, worse.best] == [True, False]
    assert worse.p < 0.01
    assert max(p for p in (best.p, same.p) if p is not None) > 0.05


def test_pairs_matter():
    """Two methods whose difference is small beside the spread of examples, but always of one sign."""
    spread = np.random.default_rng(3).normal(size=50) * 10
    first, second = estimates(MEAN, [sample(spread), sample(spread - 0.1)], seed=0)
    assert first.best
    assert second.p < 0.01
    assert first.low < second.value < first.high


def test_where_less_is_better_the_lowest_is_best():
    first, second = estimates(LOW, [sample([1.0, 2.0]), sample([0.0, 1.0])], seed=0)
    assert (first.best, second.best) == (False, True)


def test_methods_are_compared_on_the_examples_they_share():
    some = sample([1.0, 2.0, 0.0, 0.0], [True, True, False, False])
    every = sample([3.0, 4.0, 5.0, 6.0])
    first, second = estimates(MEAN, [some, every], seed=0)
    assert (first.count, first.value, second.count) == (2, 1.5, 4)
    assert estimates(MEAN, [sample([1.0], [False]), sample([1.0])], seed=0)[0] is None


def test_a_gain_is_paired_over_the_examples_both_have_and_knows_which_way_is_better():
    rng = np.random.default_rng(0)
    hard = rng.normal(size=200)
    middle, low, high = gain(MEAN, sample(hard + 0.1), sample(hard))
    assert (middle, low, high) == pytest.approx((0.1, 0.1, 0.1))  # what all examples share is no noise
    assert gain(LOW, sample(hard + 0.1), sample(hard))[0] == pytest.approx(-0.1)
    some = np.arange(200) < 50
    other = np.where(some, hard - 1, hard + 9)
    assert gain(MEAN, sample(hard), sample(other, some))[0] == pytest.approx(1.0)
    assert np.isnan(gain(MEAN, sample(hard, some), sample(hard, ~some))[0])
    noisy = hard + rng.normal(size=200)
    middle, low, high = gain(MEAN, sample(noisy), sample(hard))
    assert low < middle < high
    assert high - low == pytest.approx(2 * 1.96 * (noisy - hard).std() / np.sqrt(200), rel=0.15)


@pytest.fixture(scope="module")
def results(tmp_path_factory, place):
    path = tmp_path_factory.mktemp("table") / "r.db"
    plan = bench.Plan(
        models=(bench.ModelSpec(str(place / "vit")),),
        data=(bench.DataSpec("pets", str(place / "pets")),),
        trials=(bench.Trial("gae"), bench.Trial("gradtoken", {"scheme": "none"})),
        protocols=bench.protocols_of(("vtranm",)),
    )
    bench.run(plan, path)
    return path


def test_markdown_marks_one_best_in_every_column(results):
    text = bench.render(bench.tables(results))
    lines = [line.split("|")[3:-1] for line in text.splitlines() if line.startswith("| `")]
    assert len(lines) == 4
    for cells in zip(*lines, strict=True):
        assert sum("**" in cell for cell in cells) == 1
        assert all("[" in cell for cell in cells)
    assert text.startswith("### vit on pets, protocol vtranm\n")
    assert "21 levels 0 to 1, fill black, pixels" in text


def test_latex_escapes_and_csv_can_be_read(results):
    latex = bench.render(bench.tables(results), "latex")
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    assert r"\textbf{" in latex
    rows = list(csv.DictReader(io.StringIO(bench.render(bench.tables(results), "csv"))))
    assert {row["method"] for row in rows} == {"gae", "gradtoken(scheme=none)", "random", "centre"}
    assert all(float(row["low"]) <= float(row["value"]) + 1e-9 for row in rows)
    assert {row["examples"] for row in rows} == {"6"}


def test_names_from_outside_become_neither_formulas_nor_markup(results):
    (made, *_) = bench.tables(results)
    evil = '=HYPERLINK("x")|<img src=x>\n# [a](b) ``x`'
    made = replace(made, title=evil, notes=(evil,), rows=((evil, made.rows[0][1]), *made.rows[1:]))
    rows = list(csv.reader(io.StringIO(bench.render([made], "csv"))))
    assert {len(row) for row in rows} == {9}
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in (row[0], row[1], row[2]))
    assert rows[1][0].startswith("'=HYPERLINK(")
    text = bench.render([made])
    assert len({line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    page = MarkdownIt("commonmark").enable("table").render(text)
    assert "<img" not in page
    assert "<a " not in page
    assert page.count("<h") == 1 + page.count("<hr")


def test_a_table_has_the_same_bytes_each_time(results):
    assert bench.render(bench.tables(results)) == bench.render(bench.tables(results))


def test_an_unknown_form_is_refused(results):
    with pytest.raises(OptionError, match="Did you mean latex"):
        bench.render(bench.tables(results), "latx")


def test_curves_have_a_line_for_each_method(results):
    figure = bench.curves(results)
    places = [place for place in figure.axes if place.lines]
    assert [place.get_title(loc="left").splitlines()[-1] for place in places] == [
        f"{order}: {what}" for order in ("positive", "negative") for what in ("accuracy", "probability")
    ]
    assert all(len(place.lines) == 4 for place in places)
    np.testing.assert_allclose(places[0].lines[0].get_xdata(), np.arange(21) / 20)


def test_curves_have_bands_of_the_size_of_the_interval_of_the_mean(results):
    from vitrail.evaluate.bench.store import reading

    (panels,) = [panels for _, panels in forms.panels_of(results)]
    label, found = panels["positive: probability"][0]
    with reading(results) as store:
        (group,) = read_groups(store)
        run = next(method.run for method in group.methods if method.label == label)
        metric, panel = forms.PANELS["positive: probability"]
        stored = np.stack([np.asarray(panel.curve(row)) for _, (row,) in group.store.values(run, (metric,))])
    np.testing.assert_allclose(found.mean, stored.mean(axis=0), atol=1e-12)
    wanted = 1.96 * stored.std(axis=0, ddof=1) / len(stored) ** 0.5
    np.testing.assert_allclose(found.low, np.maximum(found.mean - wanted, stored.min(axis=0)), atol=1e-12)
    np.testing.assert_allclose(found.high, np.minimum(found.mean + wanted, stored.max(axis=0)), atol=1e-12)
    place = next(
        one for one in bench.curves(results).axes if one.get_title(loc="left").endswith("positive: probability")
    )
    assert len(place.collections) == len(place.lines) == 4  # two methods, and the two rows of chance


def test_rows_of_chance_are_dashed_and_grey():
    from matplotlib.figure import Figure

    place = Figure().subplots()
    curve = forms.MeanCurve(np.arange(3), np.ones(3), np.zeros(3), np.ones(3))
    forms._draw(place, "positive: accuracy", [("gae", curve), ("random", curve)])
    assert [line.get_linestyle() for line in place.lines] == ["-", "--"]
    assert place.lines[1].get_color() == forms.CHANCE["color"]


def test_a_table_is_shown_as_html_in_notebooks_and_as_markdown_elsewhere(results):
    (made, *_) = bench.tables(results)
    assert str(made) == bench.render([made])
    page = made._repr_html_()
    assert page.count("<tr>") == 1 + len(made.rows)
    assert page.count("<strong>") == 1 + len(made.columns)  # the title, and the best of each column
    evil = replace(made, title="<img src=x>", rows=(("<b>x</b>", made.rows[0][1]),))._repr_html_()
    assert "<img" not in evil
    assert "<b>" not in evil


def test_a_ranking_is_shown_in_its_order(results):
    (made, *_) = bench.tables(results)
    rows = [(method, Estimate(value, 0.0, 1.0, 6)) for method, value in (("worse", 0.25), ("better", 0.75))]
    column = replace(made.columns[0], name="ABPC")
    ranked = forms.ranking(replace(made, columns=(column,), rows=tuple((name, (one,)) for name, one in rows)))
    assert str(ranked).splitlines()[1:] == ["1. better: 0.750 [0.000, 1.000]", "2. worse: 0.250 [0.000, 1.000] ~"]
    page = ranked._repr_html_()
    assert page.index("better") < page.index("worse")


def test_a_file_without_results_has_no_table(tmp_path):
    from vitrail.evaluate.bench.store import writing

    with writing(tmp_path / "r.db"):
        pass
    with pytest.raises(InputError, match="holds no results yet"):
        bench.tables(tmp_path / "r.db")


def test_no_more_rows_are_held_than_are_read_at_once(results, monkeypatch):
    from vitrail.evaluate.bench import table
    from vitrail.evaluate.bench.store import Store

    whole = bench.render(bench.tables(results))
    alive, most, real = [0], [0], Store.values

    class Counted(dict):
        def __init__(self, row):
            super().__init__(row)
            alive[0] += 1
            most[0] = max(most[0], alive[0])

        def __del__(self):
            alive[0] -= 1

    def counted(store, run, metrics):
        return ((key, tuple(Counted(row) for row in rows)) for key, rows in real(store, run, metrics))

    monkeypatch.setattr(Store, "values", counted)
    monkeypatch.setattr(table, "AT_ONCE", 2)
    assert bench.render(bench.tables(results)) == whole
    assert most[0] <= 2 * 2 + 1  # of six examples and two methods
