"""The page in a real browser: every item of it, by mouse, by keyboard, on a phone, with slow and random networks."""

import json
import random
import re
import shlex
import time
from io import BytesIO

import pytest
from browsing import DESK, PHONE, needs_browser, sideways
from PIL import Image
from typer.testing import CliRunner

import vitrail
from vitrail.apps.cli.app import app

pytestmark = [needs_browser, pytest.mark.browser]
SETTLED = "[data-settled=true]"
CANVAS = ".gallery [data-method={}] canvas[role=img]"
PIXELS = "(canvas) => canvas.toDataURL().length + canvas.toDataURL().slice(-400)"
IMAGE = "#in=example:golf_ball&m=photo&x=gae,complete_gradient"
TEXT = "#in=example:sentence-1&m=sentiment&x=attcat,gae"


def settled(page):
    page.wait_for_selector(SETTLED, timeout=90_000)
    return page


def painted(page, method="gae"):
    return page.locator(CANVAS.format(method)).evaluate(PIXELS)


def painted_anew(page, before, method="gae"):
    """Wait until a map is another one than before."""
    script = f"([part, old]) => ({PIXELS})(document.querySelector(part)) !== old"
    page.wait_for_function(script, arg=[CANVAS.format(method), before])
    return painted(page, method)


def done(page):
    """Wait until the panel has its answer."""
    page.wait_for_selector("[role=tabpanel]")
    page.wait_for_function("() => !document.querySelector('[role=tabpanel] progress')", timeout=90_000)


def shows(page, words):
    """Wait until the answer on the screen is of an input, a class or a text with these words in its key."""
    script = "(words) => document.querySelector('[data-key]')?.dataset.key.includes(words)"
    page.wait_for_function(script, arg=words, timeout=90_000)
    settled(page)


def chosen(page):
    """Wait until the class on the screen is one that was chosen."""
    script = "() => JSON.parse(document.querySelector('[data-key]').dataset.key)[2] !== null"
    page.wait_for_function(script, timeout=90_000)


def panel(page, name):
    page.get_by_role("tab", name=name, exact=True).click()
    done(page)
    return page.locator("[role=tabpanel]")


def axe(page):
    """What axe finds wrong, of any level."""
    from axe_playwright_python.sync_playwright import Axe

    if page.evaluate("() => !window.axe"):
        page.evaluate(Axe().axe_script)
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [
        (one["id"], one["nodes"][0]["html"][:120], one["nodes"][0].get("failureSummary", "")[:200]) for one in found
    ]


def picture():
    sink = BytesIO()
    Image.radial_gradient("L").resize((90, 70)).save(sink, "PNG")
    return {"name": "mine.png", "mimeType": "image/png", "buffer": sink.getvalue()}


@pytest.fixture
def opened(visit):
    return settled(visit(IMAGE))


def test_an_example_is_explained_and_the_model_says_what_it_is(visit):
    page = settled(visit())
    assert "golf ball" in page.inner_text(".answer")
    assert "ten classes" in page.inner_text(".answer")
    names = page.eval_on_selector_all("[data-method]", "all => all.map((one) => one.dataset.method)")
    assert names == ["consensus", "gae", "complete_gradient"]
    assert page.locator(".legend").nth(1).inner_text().strip()  # numbers at the ends of the scale


def test_pointing_reads_the_number_of_every_map_and_colours_need_no_server(opened):
    asked = []
    opened.on("request", lambda request: "/api/" in request.url and asked.append(request.url))
    opened.locator(CANVAS.format("gae")).hover(position={"x": 100, "y": 60})
    said = opened.inner_text("p.pointed")
    assert re.match(r"Row \d+, column \d+", said)
    assert "gae" in said
    assert "complete_gradient" in said
    seen = {painted(opened)}
    opened.mouse.move(5, 5)
    for part, act in (
        ("#look-palette", lambda one: one.select_option("Viridis")),
        ("#look-opacity", lambda one: one.fill("0.9")),
        ("#look-threshold", lambda one: one.fill("0.5")),
        ("#look-smooth", lambda one: one.uncheck()),
    ):
        old = painted(opened)
        act(opened.locator(part))
        seen.add(painted_anew(opened, old))
    assert len(seen) == 5
    opened.locator("#look-zoom").fill("3")
    assert opened.locator(CANVAS.format("gae")).evaluate("(one) => one.style.transform") == "scale(3)"
    assert asked == []


def test_a_canvas_has_the_scores_of_the_library(opened):
    """Without smoothing and at full opacity the brightest cell is the largest score of the map."""
    import vitrail
    from vitrail.models import picture_path
    from vitrail.models.loading import load

    loaded = load("photo")
    with Image.open(picture_path("golf_ball")) as shown:
        gae = vitrail.explain(loaded.model, loaded.image(shown.convert("RGB")).inputs, "gae")
    opened.locator("#look-smooth").uncheck()
    opened.locator("#look-opacity").fill("1")
    opened.locator("#look-palette").select_option("Grey")
    opened.wait_for_timeout(200)
    grid = opened.locator(CANVAS.format("gae")).evaluate(
        """(canvas) => { const size = canvas.width / 16, context = canvas.getContext("2d");
        const at = (i) => context.getImageData((i % 16 + 0.5) * size, (Math.floor(i / 16) + 0.5) * size, 1, 1).data[0];
        return Array.from({length: 256}, (_, i) => at(i)); }"""
    )
    scores = gae.shown[0]
    expected = (scores - scores.min()) / (scores.max() - scores.min()) * 255
    assert max(abs(a - b) for a, b in zip(grid, expected.tolist(), strict=True)) <= 2


def test_classes_by_choice_and_by_search_and_undo(opened):
    before = painted(opened)
    opened.get_by_role("button", name="English springer").click()
    opened.wait_for_selector(".answer[data-target='1']")
    settled(opened)
    assert painted(opened) != before
    opened.get_by_role("searchbox", name="Search all").fill("horn")
    opened.get_by_role("button", name="French horn").click()
    opened.wait_for_selector(".answer[data-target='5']")
    assert "French horn" in opened.inner_text(".answer")
    settled(opened)
    opened.locator("#undo").click()
    opened.locator("#undo").click()
    opened.wait_for_selector(".answer[data-target='8']")
    assert painted(opened) == before
    opened.locator("#redo").click()
    opened.wait_for_selector(".answer[data-target='1']")


def test_an_upload_is_explained_stays_in_the_tray_and_a_broken_file_is_said_so(opened):
    opened.set_input_files("#upload", [picture()])
    shows(opened, "own:1")
    assert opened.get_by_role("button", name="mine.png").get_attribute("aria-pressed") == "true"
    opened.get_by_role("button", name="golf ball").first.click()
    shows(opened, "golf_ball")
    opened.get_by_role("button", name="mine.png").click()
    shows(opened, "own:1")
    opened.set_input_files("#upload", [{"name": "bad.png", "mimeType": "image/png", "buffer": b"nothing"}])
    opened.wait_for_selector(".trouble")
    assert "not a picture" in opened.inner_text(".trouble")


def test_a_lost_session_is_renewed_without_a_word(opened, ready):
    opened.set_input_files("#upload", [picture()])
    shows(opened, "own:1")

    def lose(route):
        route.continue_(headers={**route.request.headers, "x-vitrail-session": "lost"})

    opened.route("**/api/explain", lose, times=1)
    opened.evaluate("() => document.querySelectorAll('.class')[1].click()")
    chosen(opened)
    settled(opened)
    assert not opened.locator(".trouble").count()


def test_what_if_on_a_picture_by_mouse_and_by_keyboard(opened):
    view = panel(opened, "What if")
    box = view.locator("canvas").bounding_box()
    opened.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.3)
    opened.mouse.down()
    opened.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.7, steps=4)
    opened.mouse.up()
    view.locator("table").wait_for()
    assert "patches removed" in view.inner_text()
    assert re.search(r"\d\d+ patches removed", view.inner_text())
    view.get_by_role("button", name="Put back all").click()
    view.locator("canvas").focus()
    for key in ("ArrowRight", "ArrowDown", "Space"):
        opened.keyboard.press(key)
    view.locator("table").wait_for()
    assert "1 patch removed" in view.inner_text()


def test_what_if_on_words_and_whole_words_or_pieces(visit):
    page = settled(visit("#in=text:" + "an unwatchable, unbelievably dull film" + "&m=sentiment&x=attcat"))
    whole = page.locator(".gallery .token").count()
    page.locator("#look-words").uncheck()
    assert page.locator(".gallery .token").count() > whole
    page.locator("#look-words").check()
    view = panel(page, "What if")
    view.get_by_role("button", name="dull").click()
    view.locator("table").wait_for()
    whole, without, _ = view.locator("tbody tr").first.locator("td").all_inner_texts()
    assert whole != without


@pytest.mark.slow
def test_removal_trust_and_the_fills_that_mislead(opened):
    view = panel(opened, "Remove")
    view.locator("#removed").wait_for(timeout=90_000)
    before = opened.inner_text("#reading")
    asked = []
    opened.on("request", lambda request: "/api/" in request.url and asked.append(request.url))
    view.locator("#removed").focus()
    opened.keyboard.press("ArrowRight")
    assert opened.inner_text("#reading") != before
    assert asked == []
    assert view.locator(".u-wrap canvas").count() == 1
    view.get_by_label("Removed parts become").select_option("blur")
    script = "() => /blur.* too little/.test(document.querySelector('#fills.trouble')?.innerText)"
    opened.wait_for_function(script, timeout=90_000)
    trust = panel(opened, "Trust")
    opened.wait_for_selector("#verdict", timeout=90_000)
    assert trust.locator("#trust tbody tr").count() == 2
    assert re.search(r"believe (gae|complete_gradient|none)", opened.inner_text("#verdict"))


def test_two_answers_are_compared_side_by_side(opened):
    view = panel(opened, "Compare")
    opened.locator("#pin").click()
    opened.get_by_role("button", name="temple").click()
    shows(opened, "temple")
    assert view.locator("figure").count() == 3
    assert "golf ball" in view.inner_text()
    assert "church" in view.inner_text()
    opened.locator("#swipe").fill("20")
    assert "20%" in view.locator(".over").evaluate("(one) => one.style.clipPath")


def test_two_methods_are_compared_without_a_pin(opened):
    view = panel(opened, "Compare")
    assert view.locator("figure strong").all_inner_texts() == ["left: gae", "right: complete_gradient"]
    view.locator("#side-right").select_option("gae")
    assert view.locator("figure strong").all_inner_texts() == ["left: gae", "right: gae"]
    opened.locator(CANVAS.format("gae")).hover(position={"x": 100, "y": 60})
    numbers = view.locator("figure .value").all_inner_texts()
    assert numbers[0]
    assert numbers[0] == numbers[1]


def test_an_edited_sentence_is_compared_with_the_original(visit):
    page = settled(visit("#in=text:a clever and moving film&m=sentiment&x=attcat&panel=compare"))
    page.locator("#pin").click()
    page.locator("#text").fill("a dull and moving film")
    page.get_by_role("button", name="Explain", exact=True).click()
    shows(page, "dull")
    assert page.locator("#edited del").inner_text() == "clever"
    assert page.locator("#edited ins").inner_text() == "dull"
    page.get_by_role("button", name="a clever and moving film").click()  # both stay in the tray
    shows(page, "clever")
    assert not page.locator("#edited").count()


@pytest.mark.slow
def test_the_address_restores_what_panels_show(opened, visit):
    view = panel(opened, "What if")
    view.locator("canvas").focus()
    for key in ("ArrowRight", "Space", "ArrowRight", "Space"):
        opened.keyboard.press(key)
    view.get_by_label("Removed parts become").select_option("grey")
    done(opened)
    panel(opened, "Compare")
    opened.locator("#pin").click()
    opened.locator("#swipe").fill("30")
    opened.get_by_role("button", name="temple").click()
    shows(opened, "temple")
    opened.locator("#undo").click()
    shows(opened, "golf_ball")
    opened.wait_for_timeout(300)  # the address follows
    address = opened.url
    again = settled(visit(address[address.index("#") :]))
    again.wait_for_selector("#unpin", timeout=90_000)
    assert again.locator("#swipe").input_value() == "30"
    view = panel(again, "What if")
    assert "2 patches removed" in view.inner_text()
    assert view.get_by_label("Removed parts become").input_value() == "grey"
    assert view.locator("tbody").inner_text() == panel(opened, "What if").locator("tbody").inner_text()
    opened.locator("#undo").click()
    assert "1 patch removed" in opened.inner_text("[role=tabpanel]")


@pytest.mark.parametrize("bad", ["{", "[1]", '{"cells":[-1,99999,"x"],"word":1e999}', '{"cells":{"a":1}}', "null"])
def test_a_damaged_address_still_opens(visit, bad):
    page = settled(visit(IMAGE + f"&here={bad}&view={bad}&panel=what-if&pin=in&zoom=x&opacity=NaN"))
    assert "0 patches removed" in page.inner_text("[role=tabpanel]")


@pytest.mark.slow
def test_fills_are_compared_and_a_misleading_one_is_named(visit):
    page = settled(visit(IMAGE + '&panel=remove&view={"fills":true}'))
    script = "() => document.querySelectorAll('#all-fills tbody tr').length === 5"
    page.wait_for_function(script, timeout=90_000)
    rows = {row.split()[0]: row for row in page.locator("#all-fills tbody tr").all_inner_texts()}
    assert "hides too little" in rows["blur"]
    assert "hides too little" not in rows["noise"]


def test_pointing_reads_every_layer(visit):
    page = settled(visit("#in=example:golf_ball&m=photo&x=gae,attcat&panel=layers"))
    page.locator("[role=tabpanel] select").select_option("attcat")
    page.locator(".tiles .tile").first.wait_for()
    page.locator(CANVAS.format("gae")).hover(position={"x": 100, "y": 60})
    numbers = page.locator(".named .value").all_inner_texts()
    assert len(numbers) == 8
    assert all(number.strip() for number in numbers)


def test_any_class_by_search_in_why_not(opened):
    view = panel(opened, "Why not")
    view.locator("#search-other").fill("chain")
    view.get_by_role("button", name="chain saw").click()
    script = "() => document.querySelector('#contrast')?.innerText.includes('chain saw')"
    opened.wait_for_function(script, timeout=90_000)
    assert "chain saw" in opened.locator("#contrast").inner_text()


def test_a_word_of_an_answer_shows_what_it_rests_on(visit, writer):
    page = settled(visit(f"#in=text:the quick brown fox&m={writer}&x=gae&panel=answer", size=PHONE))
    words = page.locator("#answer-words button")
    words.first.wait_for(timeout=90_000)
    assert words.count() > 2
    heading = page.locator("[role=tabpanel] h2")
    first = heading.inner_text()
    before = page.locator("#sources").evaluate("(one) => one.outerHTML")
    words.nth(2).focus()
    assert words.nth(2).get_attribute("aria-pressed") == "true"
    assert page.locator("#sources").evaluate("(one) => one.outerHTML") != before
    assert page.locator("#sources").inner_text().split() == ["the", "quick", "brown", "fox"]
    words.first.hover()
    assert heading.inner_text() == first
    cited = page.locator(".cited li").all_inner_texts()
    assert cited == ["100.0\u00a0% prompt: the quick brown fox"] or cited == ["No passage speaks for this word."], cited
    assert sideways(page) <= 0
    assert axe(page) == []


def test_the_embedded_language_model_answers_out_of_the_box(visit):
    page = settled(visit(TEXT))
    page.get_by_role("button", name="Anna: ring. Boris: key").click()
    shows(page, "sentence-4")
    said = panel(page, "Answer")
    assert said.locator("#answer-words").inner_text().split()[0].startswith("lamp")
    assert "Clara: lamp." in said.locator(".cited li").first.inner_text()
    page.get_by_role("button", name="nothing here is original").click()  # back to the model of that sentence
    shows(page, "sentiment")


def test_the_answer_panel_has_no_fault_in_the_dark(visit, writer):
    page = settled(visit(f"#in=text:the quick brown fox&m={writer}&x=gae&panel=answer", color_scheme="dark"))
    page.locator("#answer-words button").first.wait_for(timeout=90_000)
    assert axe(page) == []


@pytest.mark.parametrize(("scheme", "size"), [("light", PHONE), ("dark", DESK)])
def test_a_picture_is_asked_about_by_keyboard_and_a_word_shows_its_patches(visit, questioned, scheme, size):
    page = settled(visit(f"#in=example:golf_ball&m={questioned}", size=size, color_scheme=scheme))
    assert [tab.inner_text() for tab in page.get_by_role("tab").all()] == ["Answer"]
    assert not page.locator("[aria-label='Explain which answer?']").count()
    page.locator("#question").focus()
    page.keyboard.type("a b c")
    page.keyboard.press("Enter")
    words = page.locator("#answer-words button")
    words.first.wait_for(timeout=90_000)
    assert words.count() == 16
    canvas = page.locator("#patches canvas[role=img]")
    canvas.wait_for(timeout=90_000)
    before, shaded = canvas.evaluate(PIXELS), page.locator("#sources").evaluate("(one) => one.outerHTML")
    words.first.focus()
    for _ in range(3):
        page.keyboard.press("Tab")
    assert words.nth(3).get_attribute("aria-pressed") == "true"
    canvas.wait_for(timeout=90_000)  # each word is explained when those before it are
    found = "[...document.querySelectorAll('#patches canvas[role=img]')]"
    page.wait_for_function(f"(old) => {found}.some((one) => ({PIXELS})(one) !== old)", arg=before)
    assert page.locator("#sources").evaluate("(one) => one.outerHTML") != shaded
    assert page.locator("#sources").inner_text().split() == ["a", "b", "c"]
    canvas.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#patches .value").inner_text().strip()
    assert sideways(page) <= 0
    assert axe(page) == []
    page.reload()
    page.locator("#answer-words button").first.wait_for(timeout=90_000)
    assert page.locator("#question").input_value() == "a b c"


def test_a_picture_of_ones_own_is_asked_about(visit, questioned):
    page = settled(visit(f"#in=example:golf_ball&m={questioned}"))
    page.set_input_files("#upload", picture())
    page.wait_for_function("() => document.querySelector('[data-key]')?.dataset.key.includes('own:')")
    settled(page)
    page.locator("#question").fill("x y")
    page.locator("#ask").click()
    page.locator("#patches canvas[role=img]").wait_for(timeout=90_000)
    assert page.locator("#sources").inner_text().split() == ["x", "y"]


def test_a_model_that_writes_nothing_has_no_answer(opened):
    assert not opened.locator("#tab-answer").count()


def test_why_not_layers_and_attention(opened):
    view = panel(opened, "Why not")
    view.locator("#contrast canvas[role=img]").wait_for()
    assert "English springer" in view.inner_text()
    view = panel(opened, "Layers")
    assert "has one map only" in view.inner_text()
    view = panel(opened, "Attention")
    opened.wait_for_selector("#attention")
    assert view.locator("#attention .tile").count() == 8 * 4
    first = view.locator("#attention .tile canvas").nth(9).evaluate(PIXELS)
    opened.locator(CANVAS.format("gae")).hover(position={"x": 20, "y": 20})
    script = "() => document.querySelector('[role=tabpanel]').innerText.includes('Attention from Row')"
    opened.wait_for_function(script, timeout=90_000)
    assert view.locator("#attention .tile canvas").nth(9).evaluate(PIXELS) != first


def test_layers_of_a_text(visit):
    page = settled(visit(TEXT + "&panel=layers"))
    page.locator(".tiles .tile").first.wait_for()
    assert page.locator(".tiles .tile").count() == 6


def test_the_address_restores_everything(visit, tiny):
    page = settled(visit(TEXT))
    page.locator("#text").fill("a dull film & a <b>clever</b> joke, 100 %")
    page.get_by_role("button", name="Explain", exact=True).click()
    shows(page, "clever")
    page.get_by_role("button", name=re.compile("negative|positive")).nth(1).click()
    chosen(page)
    page.locator("#look-palette").select_option("Cividis")
    panel(page, "Share and save")
    settled(page)
    address = page.inner_text("#share-address")
    shown = page.inner_text(".gallery")
    again = settled(visit(address[address.index("#") :]))
    assert again.inner_text(".gallery") == shown
    assert again.locator("#look-palette").input_value() == "Cividis"
    assert again.inner_text("#share-command") == page.inner_text("#share-command")
    assert "<b>clever</b>" in again.inner_text("#share-python")
    assert again.locator("main b").count() == 0  # text stays text


def test_copies_as_python_and_command_compute_the_same(opened, tmp_path, monkeypatch):
    panel(opened, "Share and save")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(opened.inner_text("#share-python"), names)
    assert [one.method for one in names["maps"]] == ["gae", "complete_gradient"]
    said = opened.inner_text("#share-command")
    place = re.compile(r'"\$\(python -c .*?\)"')
    assert 'example("golf_ball")' in place.search(said)[0]
    arguments = shlex.split(place.sub(shlex.quote(str(vitrail.zoo.example("golf_ball"))), said))
    assert arguments[0] == "vitrail"
    result = CliRunner().invoke(app, arguments[1:])
    assert result.exit_code == 0, result.output
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert {row[0] for row in rows if row[1:2] == ["golf ball"]} == {"gae", "complete_gradient"}


@pytest.mark.parametrize("form", ["png", "svg", "pdf", "json"])
def test_files(opened, form):
    panel(opened, "Share and save")
    with opened.expect_download(timeout=90_000) as found:
        opened.locator(f"#download-{form}").click()
    assert found.value.suggested_filename == f"vitrail.{form}"


def test_the_self_contained_page_works_without_a_server(opened, browser, tmp_path):
    panel(opened, "Share and save")
    with opened.expect_download(timeout=90_000) as found:
        opened.locator("#download-html").click()
    found.value.save_as(tmp_path / "page.html")
    alone = browser.new_context(offline=True).new_page()
    wrong = []
    alone.on("pageerror", lambda error: wrong.append(str(error)))
    alone.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    alone.goto((tmp_path / "page.html").as_uri())
    alone.locator(CANVAS.format("gae")).hover(position={"x": 50, "y": 60})
    assert "gae" in alone.inner_text("p.pointed")
    before = painted(alone)
    alone.locator("#look-palette").select_option("Viridis")
    painted_anew(alone, before)
    assert wrong == []
    assert axe(alone) == []
    alone.context.close()


def test_everything_by_keyboard_alone(visit):
    page = settled(visit(TEXT))

    focused = "() => { const one = document.activeElement; return one.ariaLabel || one.innerText || one.id || ''; }"

    def reach(name, most=80):
        for _ in range(most):
            page.keyboard.press("Tab")
            if page.evaluate(focused).strip().startswith(name):
                return
        raise AssertionError(f"{name} cannot be reached with the Tab key")

    reach("Map of attcat")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("p.pointed").startswith("\u201c")
    reach("What if")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector("#panel-remove")
    reach("positive")
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer[data-target='1']", timeout=90_000)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("start", [IMAGE, TEXT], ids=["image", "text"])
def test_axe_finds_nothing_on_any_view(visit, scheme, start):
    page = settled(visit(start, color_scheme=scheme))
    assert axe(page) == []
    views = page.locator("[role=tab]").evaluate_all("tabs => tabs.map((tab) => tab.id)")
    assert len(views) >= 8
    for view in views:
        page.locator(f"#{view}").click()
        page.wait_for_function("() => !document.querySelector('[role=tabpanel] progress')", timeout=90_000)
        assert (view, axe(page)) == (view, [])


WIDTHS = (360, 390, 768, 1280, 2560)


@pytest.mark.parametrize("start", [IMAGE, TEXT], ids=["image", "text"])
def test_nothing_is_wider_than_the_window(visit, start):
    page = settled(visit(start, size={"width": WIDTHS[0], "height": 800}))
    for view in ("", "what-if", "attention", "share"):
        if view:
            page.locator(f"#tab-{view}").click()
            done(page)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            assert sideways(page) <= 0, (view, width)


def test_on_a_phone_a_choice_and_its_map_are_on_the_screen_together(visit):
    page = settled(visit(IMAGE, size=PHONE))
    choice = page.get_by_role("button", name="English springer")
    choice.scroll_into_view_if_needed()
    page.mouse.wheel(0, 100)
    choice.click()
    page.wait_for_selector(".answer[data-target='1']", state="attached")
    settled(page)
    height = PHONE["height"]
    boxes = [choice.bounding_box(), page.locator(CANVAS.format("gae")).bounding_box()]
    assert all(box["y"] >= -2 and box["y"] + box["height"] <= height + 2 for box in boxes), boxes


def test_the_layout_does_not_shift_and_little_is_asked(visit, ready):
    page = settled(visit())
    requests = []
    page.on("response", lambda answer: requests.append(answer))
    page.add_init_script(
        """window.shift = 0; new PerformanceObserver((list) => { for (const one of list.getEntries())
        if (!one.hadRecentInput) window.shift += one.value; }).observe({type: "layout-shift", buffered: true});"""
    )
    page.goto("about:blank")
    requests.clear()
    page.goto(ready)
    settled(page)
    page.wait_for_timeout(300)
    assert page.evaluate("() => window.shift") < 0.05
    assert len(requests) <= 12
    assert sum(int(one.headers.get("content-length", 0)) for one in requests) < 150_000


@pytest.mark.slow
def test_random_clicks_on_a_random_network_always_show_one_state(visit):
    """80 clicks, every request late by up to 0.6 s: the answer and the maps belong together at all times."""
    page = settled(visit(IMAGE))
    rng = random.Random(7)

    def late(route):
        time.sleep(rng.random() * 0.02)
        route.continue_()

    page.route("**/api/explain", late)
    page.evaluate(
        """() => { const own = window.fetch; window.fetch = async (...args) => {
            await new Promise((done) => setTimeout(done, Math.random() * 600)); return own(...args); }; }"""
    )
    buttons = ".example, .class, .kinds button, #undo, #redo, .chip, #stop, [role=tab], #pin, #unpin"
    press = """([buttons, share]) => { const found = document.querySelectorAll(buttons);
        found[Math.floor(share * found.length)].click(); }"""
    for number in range(80):
        page.evaluate(press, [buttons, rng.random()])
        if number % 4 == 0:
            page.wait_for_timeout(rng.random() * 120)
        state = page.evaluate(
            """() => { const maps = document.querySelector("[data-key]"), answer = document.querySelector(".answer");
            return {key: maps.dataset.key, kind: maps.className, target: answer.dataset.target,
                said: answer.innerText,
                names: [...maps.querySelectorAll("[aria-label^='Map of']")].map((one) => one.ariaLabel)}; }"""
        )
        given, _, target, _ = json.loads(state["key"])
        assert state["kind"].endswith("text" if given.startswith(("text:", "example:sentence")) else "image")
        assert target is None or str(target) == state["target"]
        explained = {re.sub(r"^Map of \w+ for (.*?)(: strongest.*)?$", r"\1", name) for name in state["names"]}
        assert len(explained) <= 1
        assert all(name in state["said"] for name in explained)
    page.evaluate("() => { document.querySelectorAll('.example')[1].click(); }")
    settled(page)
    page.wait_for_timeout(300)  # the address follows
    wanted = page.evaluate("() => new URLSearchParams(location.hash.slice(1)).get('in')")
    assert json.loads(page.get_attribute("[data-key]", "data-key"))[0] == wanted


def test_forced_colours_and_reduced_motion_and_print(visit):
    page = settled(visit(TEXT, forced_colors="active", reduced_motion="reduce"))
    assert page.locator(".gallery .token").first.evaluate("(one) => getComputedStyle(one).forcedColorAdjust") == "none"
    page.emulate_media(media="print")
    page.locator("aside").wait_for(state="hidden")
    assert page.locator(".gallery").is_visible()


def test_the_desk_size_is_used(visit):
    assert settled(visit(IMAGE, size=DESK)).locator("aside").bounding_box()["x"] > 900


KEYS = "(part) => document.activeElement.matches(part)"


def reach(page, part, most=150):
    """Press Tab until the element has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate(KEYS, part):
            return
    raise AssertionError(f"{part} cannot be reached with the Tab key")


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def tab_to(page, name):
    """Open a panel with the keys alone."""
    if not page.evaluate(KEYS, "[role=tab]"):
        reach(page, "[role=tab]")
    for _ in range(10):
        if page.evaluate(KEYS, f"#tab-{name}"):
            break
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    done(page)
    assert sideways(page) <= 0, name


@pytest.mark.slow
def test_every_panel_with_keys_alone_on_a_phone(visit):
    page = settled(visit(IMAGE, size=PHONE))
    tab_to(page, "what-if")
    reach(page, "[role=tabpanel] canvas")
    press(page, "ArrowRight", "Space")
    page.wait_for_selector("[role=tabpanel] tbody")
    tab_to(page, "remove")
    page.wait_for_selector("#removed", timeout=90_000)
    reach(page, "#removed")
    before = page.inner_text("#reading")
    press(page, "ArrowRight")
    assert page.inner_text("#reading") != before
    tab_to(page, "trust")
    page.wait_for_selector("#verdict", timeout=90_000)
    tab_to(page, "compare")
    reach(page, "#pin")
    press(page, "Enter")
    reach(page, "#swipe")
    press(page, "ArrowRight")
    assert page.locator("#swipe").input_value() == "51"
    tab_to(page, "why-not")
    reach(page, "[role=tabpanel] select")
    press(page, "ArrowDown")
    page.wait_for_selector("#contrast", timeout=90_000)
    tab_to(page, "attention")
    page.wait_for_selector("#attention", timeout=90_000)
    reach(page, "[role=tabpanel] canvas[role=img]")
    press(page, "ArrowRight")
    script = "() => document.querySelector('[role=tabpanel]').innerText.includes('Attention from Row')"
    page.wait_for_function(script, timeout=90_000)
    tab_to(page, "share")
    reach(page, "[role=tabpanel] .copy button")
    press(page, "Enter")
    reach(page, "#look-opacity")
    press(page, "ArrowRight")
    assert page.locator("#look-opacity").input_value() == "0.65"
    assert "cells" in page.url
    page.keyboard.press("Control+z")
    page.wait_for_function("() => !location.hash.includes('cells')")


def test_many_changes_of_the_look_are_one_change_of_the_address(opened):
    """Browsers refuse more than 200 changes of the address in ten seconds."""
    opened.evaluate(
        """async () => { window.changes = 0; const own = history.replaceState.bind(history);
        history.replaceState = (...args) => { window.changes += 1; own(...args); };
        const slider = document.querySelector("#look-opacity");
        for (let i = 0; i < 300; i++) { slider.value = (i % 20) / 20;
            slider.dispatchEvent(new Event("input", {bubbles: true})); await null; } }"""
    )
    opened.wait_for_function("() => location.hash.includes('opacity=0.95')")
    assert opened.evaluate("() => window.changes") < 20
