"""What a visitor does first, in a real browser: look, upload, choose, move, download."""

from browsing import PANELS, PHONE, changed, choose, counts, needs_browser, panel, says, sideways, slide, tab

pytestmark = needs_browser
UPLOAD = "#image-upload input[type=file]"
FOCUSED = """() => {
  const ids = [];
  for (let part = document.activeElement; part; part = part.parentElement) if (part.id) ids.push(part.id);
  return ids;
}"""


def test_an_example_is_explained_when_the_page_opens(visit):
    page = visit()
    assert "golf ball" in page.inner_text("#image-answer")
    assert page.locator("#image-maps img").count() == 4
    assert page.locator("#image-layer-view img").count() == 2
    assert page.locator("#image-heads-view img").count() == 4
    assert page.evaluate("[...document.images].filter((image) => !image.alt).length") == 0
    tab(page, "Text")
    assert "positive" in page.inner_text("#text-answer")
    assert page.locator("#text-maps .sentence").count() == 3
    assert page.locator("#text-layer-view table.heat tbody tr").count() == 7


def test_upload_change_target_and_move_sliders(visit, demo_picture):
    page = visit()
    changed(page, lambda: page.set_input_files(UPLOAD, demo_picture))
    says(page, "#image-answer", "church")
    counts(page, "#image-maps img", 4)  # the slow map has come too
    assert page.locator("#image-maps .blank").count() == 0
    says(page, "#image-target label:first-of-type", "church")
    changed(page, lambda: page.locator("#image-target label").nth(1).click())
    assert "would speak for" in page.inner_text("#image-answer")
    changed(page, lambda: slide(page, "image-opacity"))
    changed(page, lambda: slide(page, "image-layer"), "() => document.querySelector('#image-layer-view img')?.src")
    assert "layer 2 of 8" in page.inner_text("#image-layer-view")
    panel(page, "Remove")
    reading = "() => document.querySelector('#image-remove-view .reading')?.innerText"
    changed(page, lambda: slide(page, "image-percent"), reading)
    assert "with 25\u00a0% removed" in page.inner_text("#image-remove-view")
    assert page.locator("#image-remove-view polyline").count() == 2  # the map's order, and random order


def test_methods_classes_agreement_and_downloads(visit):
    page = visit()
    panel(page, "Why not?")
    assert "golf ball rather than English springer" in page.inner_text("#image-between-view")
    page.locator("#image-target label").nth(1).click()
    says(page, "#image-between-view", "English springer rather than golf ball")
    page.locator("#image-target label").nth(0).click()
    says(page, "#image-between-view", "golf ball rather than English springer")
    choose(page, "image-second", "parachute")
    says(page, "#image-between-view", "golf ball rather than parachute")
    panel(page, "Agreement")
    assert page.locator("#image-agreement tbody tr").count() == 3
    choose(page, "image-methods", "rollout")
    counts(page, "#image-maps img", 5)
    counts(page, "#image-agreement tbody tr", 4)
    panel(page, "Why not?")
    assert page.input_value("#image-second input") == "parachute"  # other methods leave the two classes alone
    panel(page, "Download")
    downloads(page, "image", 4)


def downloads(page, kind, maps):
    for form, begins in {"png": b"\x89PNG", "pdf": b"%PDF", "html": b"<!doctype", "json": b"["}.items():
        with page.expect_download() as loading:
            page.click(f"#{kind}-{form}")
        assert loading.value.suggested_filename == f"vitrail.{form}"
        with open(loading.value.path(), "rb") as file:
            data = file.read()
        assert data.startswith(begins)
        assert form != "json" or data.count(b'"method"') >= maps


def test_a_text_is_written_explained_and_taken_apart(visit):
    page = visit()
    tab(page, "Text")
    page.fill("#text-input textarea", "a dull and endless film")
    page.locator("#text-input textarea").press("Shift+Enter")
    says(page, "#text-answer", "negative")
    says(page, "#text-maps", "endless")
    says(page, "#text-target label:first-of-type", "negative")
    says(page, "#text-layer-view", "endless")
    slide(page, "text-layer")
    page.wait_for_selector("#text-layer-view tr.marked:nth-child(2)")
    page.locator("#text-target label").nth(1).click()
    says(page, "#text-answer", "would speak for positive")
    panel(page, "Remove", "text")
    assert page.locator("#text-remove-view del").count() == 1
    slide(page, "text-percent")
    counts(page, "#text-remove-view del", 2)
    panel(page, "Why not?", "text")
    assert page.locator("#text-between-view .sentence").count() == 3
    panel(page, "Download", "text")
    downloads(page, "text", 3)


def test_a_phone_needs_no_sideways_scrolling(visit):
    page = visit(PHONE)
    for name, kind in {"Picture": "image", "Text": "text"}.items():
        tab(page, name)
        counts(page, f"#{kind}-maps figure", {"image": 4, "text": 3}[kind])
        first = page.locator(f"#{kind}-maps").bounding_box()
        assert first["y"] < PHONE["height"] / 2  # the explanation is in sight before anything is scrolled
        for part in PANELS:  # every panel's name is in sight too
            panel(page, part, kind)
            assert sideways(page) <= 0, (name, part)


def test_every_control_is_reached_by_keyboard(visit):
    page = visit()
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen |= set(page.evaluate(FOCUSED))
    wanted = {"upload", "examples", "target", "methods", "opacity", "palette", "layer-by", "layer", "heads-by"}
    assert {f"image-{name}" for name in wanted} - seen == set()
    page.locator("#image-layers-panel-button").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#image-remove-view svg.curve")
