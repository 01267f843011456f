"""Reports in a real browser, opened from disk without a network."""

from datetime import datetime
from io import BytesIO

import pytest
from browsing import DESK, PHONE, chromium, needs_browser, sideways, visits
from PIL import Image

from vitrail.evaluate import bench
from vitrail.plots import report
from vitrail.plots.report.pages import Entry, Map, Report, Row

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


def many(count):
    """A report of so many inputs, with curves, as `of_inputs` makes it."""
    sink = BytesIO()
    Image.linear_gradient("L").resize((64, 64)).convert("RGB").save(sink, "JPEG")
    curve = tuple(1 - step / 10 for step in range(11))
    maps = [Map(label, signed, sink.getvalue(), curve=curve) for label, signed in (("gae", False), ("attcat", True))]
    row = Row("church", 0.9, tuple(maps), random=tuple(1 - (step / 10) ** 2 for step in range(11)))
    entries = [Entry(f"photo_{i:04}.jpg", "church", 0.9, (row,), picture=sink.getvalue()) for i in range(count)]
    about = {"model": "a model"}
    methods = {"gae": "recommended", "attcat": "recommended"}
    return Report("photos", "image", datetime(2026, 1, 1), about, methods, tuple(entries), {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_are_enlarged_curves_are_read_and_nothing_is_hard_to_see(browser, tmp_path, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = browser.new_context(offline=True, color_scheme=scheme, viewport=PHONE).new_page()
    page.goto(many(3).save(tmp_path / "page.html").as_uri())
    page.locator(".zoom").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog img").get_attribute("alt") == "Map of gae for church over photo_0000.jpg"
    page.keyboard.press("ArrowRight")
    assert "attcat" in page.inner_text("dialog p")
    assert Axe().run(page).response["violations"] == []
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()
    svg = page.locator("article .chart > svg").first
    svg.scroll_into_view_if_needed()
    svg.hover()
    told = page.locator("article .chart output").first
    assert told.inner_text() == "0.4: gae 0.60 · attcat 0.60 · random 0.84"
    svg.focus()
    page.keyboard.press("ArrowRight")
    assert told.inner_text().startswith("0.5: gae 0.50")
    page.locator("#thumbs").click()
    boxes = [one.bounding_box() for one in page.locator("article").all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert page.locator("article img").filter(visible=True).count() == 3
    assert sideways(page) <= 0
    assert Axe().run(page).response["violations"] == []
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('article')).contentVisibility") == "visible"
    assert not page.locator("#controls").is_visible()
    page.context.close()


@pytest.mark.slow
def test_two_thousand_inputs_are_no_trouble(read, tmp_path):
    page = read(many(2000))
    assert page.locator("article").count() == 2000
    measured = page.context.new_cdp_session(page)
    measured.send("Performance.enable", {"timeDomain": "threadTicks"})

    def computed():
        """Seconds that the page has computed, whatever else runs on the machine."""
        return {one["name"]: one["value"] for one in measured.send("Performance.getMetrics")["metrics"]}["TaskDuration"]

    before = computed()
    page.evaluate(
        """async () => { const field = document.querySelector("#controls input");
        field.value = "_0777"; field.dispatchEvent(new Event("input"));
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); }"""
    )
    assert 0 < computed() - before < 1
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
