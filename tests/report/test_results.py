import re

import pytest
from html_reader import Reader

from vitrail.evaluate import bench
from vitrail.evaluate.bench.forms import panels_of
from vitrail.plots import report
from vitrail.plots.report.markup import Line, chart


@pytest.fixture(scope="module")
def results(place, tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "<i>results.db"
    plan = bench.Plan(
        models=(bench.ModelSpec(str(place / "bert")),),
        data=(bench.DataSpec("demo_sentences", limit=5),),
        trials=(bench.Trial("gae"), bench.Trial("attcat"), bench.Trial("rollout")),
        protocols=bench.protocols_of(("vitrail", "agreement")),
    )
    bench.run(plan, path)
    return path


def test_the_numbers_are_those_of_the_table(results):
    printed = [
        [cell.strip().strip("*`").replace("** [", " [") for cell in line.strip("|").split(" | ")]
        for line in bench.render(bench.tables(results)).splitlines()
        if line.startswith("| `")
    ]
    page = report.of_results(results).to_html()
    shown = [row for table in Reader(page).tables if table[0][:2] == ["method", "n"] for row in table[1:]]
    assert shown == [[cell.strip() for cell in row] for row in printed]
    assert len(shown) == 3 + 2 + 3  # with both priors; of these nobody asks how far they agree
    assert page.count("<strong>") == bench.render(bench.tables(results)).count("**") // 2


def test_notes_and_origin_are_told(results):
    text = Reader(report.of_results(results).to_html()).text
    for table in bench.tables(results):
        for words in (table.title, *table.notes, table.about["model"]["hash"], "protocol.levels"):
            assert " ".join(words.split()) in text


def test_every_curve_is_drawn_once_with_the_points_of_the_plot(results):
    page = report.of_results(results).to_html()
    (group,) = panels_of(results)
    charts = re.findall(r'<svg viewBox="0 0 360 220".*?</svg>', page)
    assert len(charts) == len(group[1]) == 2
    for drawn, series in zip(charts, group[1].values(), strict=True):
        for label, curve in series:
            assert f"{label} from {curve.mean[0]:.2f} to {curve.mean[-1]:.2f}" in drawn


def test_the_page_needs_nothing_and_names_are_text(results):
    page = report.of_results(results).to_html()
    found = Reader(page)
    assert "<i>results.db" in found.text
    assert found.all("i") == []
    assert re.findall(r"https?://|<link|<img|url\(", page) == []


def test_a_file_without_results_is_refused(tmp_path, results):
    with pytest.raises(Exception, match=r"absent\.db"):
        report.of_results(tmp_path / "absent.db")


def test_points_lie_where_their_numbers_say():
    drawn = chart([Line("a <b>", "c0", [0.0, 0.5, 1.0], [1.0, 0.25, 0.0])], across="x", up="y")
    assert 'points="46.0,10.0 197.0,136.0 348.0,178.0"' in drawn
    assert "a &lt;b&gt;" in drawn
    assert "<b>" not in drawn


def test_a_chart_reaches_a_round_number_above_its_highest_point_and_below_zero_where_points_do():
    high = chart([Line("a", "c0", [0.0, 1.0], [0.013, 0.02])], across="x", up="y")
    assert ">0.02</text>" in high
    low = chart([Line("a", "c0", [0.0, 1.0], [-0.3, 0.9])], across="x", up="y")
    assert ">-1</text>" in low
