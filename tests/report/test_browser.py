"""Reports in a real browser, opened from disk without a network."""

import pytest
from browsing import DESK, PHONE, chromium, needs_browser, sideways, visits

from vitrail.evaluate import bench
from vitrail.plots import report

pytestmark = needs_browser
NASTY = "<img src=x onerror=alert(1)>.png"
SENTENCE = "<script>alert(2)</script> & film"


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def read(browser, tmp_path):
    """A function that opens a report; at the end it has asked for nothing but itself, and no script has failed."""
    with visits(browser, f"file://{tmp_path}/") as open_page:

        def open_report(made, size=DESK):
            page = open_page(size, offline=True)
            page.goto(made.save(tmp_path / "page.html").as_uri())
            return page

        yield open_report


def test_fifty_pictures_open_offline_and_can_be_sorted_and_filtered(read, timm_vit, save_pictures, tmp_path):
    folder = save_pictures(tmp_path / "fifty", 50, size=(300, 260), rough=60)
    (folder / "picture_00.png").rename(folder / NASTY)
    page = read(report.of_inputs(timm_vit, folder, "gae"))
    assert (tmp_path / "page.html").stat().st_size < 5e6
    assert page.locator("article").count() == 50
    assert page.evaluate("[...document.images].every((one) => one.complete && one.naturalWidth > 0 && one.alt)")
    assert NASTY in page.inner_text("table >> nth=0")
    for _ in range(2):
        page.locator("thead button >> nth=0").click()
    assert "picture_49.png" in page.inner_text("tr[data-for] >> nth=0")
    page.fill("#controls input", "_07")
    assert [row.is_visible() for row in page.locator("tr[data-for]").all()].count(True) == 1
    assert page.locator("article").filter(visible=True).count() == 1


def test_a_script_in_a_sentence_is_shown_as_text(read, bert, tmp_path):
    (tmp_path / "films.txt").write_text(f"{SENTENCE}\nthe quick fox\n")
    page = read(report.of_inputs(bert, tmp_path / "films.txt", ["gae", "attcat"], curves=True), PHONE)
    assert SENTENCE in page.inner_text("body")
    assert page.locator("svg polyline").count() > 0
    assert sideways(page) <= 0


def test_a_bench_result_opens_on_a_phone(read, place, tmp_path):
    plan = bench.Plan(
        models=(bench.ModelSpec(str(place / "bert")),),
        data=(bench.DataSpec("demo_sentences", limit=3),),
        trials=(bench.Trial("gae"), bench.Trial("attcat")),
        protocols=bench.protocols_of(("vitrail",)),
    )
    bench.run(plan, tmp_path / "results.db")
    page = read(report.of_results(tmp_path / "results.db"), PHONE)
    assert "gae" in page.inner_text("table >> nth=1")
    assert sideways(page) <= 0
