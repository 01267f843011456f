"""The page in a real browser."""

import pytest
from served_page import find_browser, served

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (apt-get install chromium)")
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PANELS = {
    "Remove and watch": "remove-view svg.curve",
    "Why not another?": "between-view .legend",
    "Do they agree?": "agreement table",
}
FOCUSED = """() => {
  const ids = [];
  for (let part = document.activeElement; part; part = part.parentElement) if (part.id) ids.push(part.id);
  return ids;
}"""
SOURCES = "() => [...document.querySelectorAll('#image-maps img')].map((image) => image.src).join()"


@pytest.fixture(scope="module")
def address():
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, address):
    """A function that opens the page; at the end no request has left for another host and no script has failed."""
    opened, outside, wrong = [], [], []

    def heard(request):
        if not request.url.startswith((address, "data:", "blob:")):
            outside.append(request.url)

    def open_page(size=DESK):
        page = browser.new_context(viewport=size).new_page()
        opened.append(page)
        page.set_default_timeout(30_000)
        page.on("request", heard)
        page.on("dialog", lambda dialog: wrong.append(dialog.message) or dialog.dismiss())
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.goto(address)
        page.wait_for_selector("#image-maps img")
        return page

    yield open_page
    for page in opened:
        page.context.close()
    assert (outside, wrong) == ([], [])


def changed(page, act, script=SOURCES):
    """Do something, and wait until what the script reads is another."""
    before = page.evaluate(script)
    act()
    page.wait_for_function(f"(before) => {{ const now = ({script})(); return now && now !== before; }}", arg=before)


def panel(page, name, kind="image"):
    page.locator(f"div:has(> #{kind}-layers-panel), div:has(#{kind}-layers-panel)").last.wait_for()
    found = page.get_by_role("tab", name=name)
    (found.first if kind == "image" else found.last).click()
    page.wait_for_selector(f"#{kind}-{PANELS[name]}")


def width(page):
    return page.evaluate("document.documentElement.scrollWidth")


def test_an_example_is_explained_when_the_page_opens(visit):
    page = visit()
    assert "golf ball" in page.inner_text("#image-answer")
    assert page.locator("#image-maps img").count() == 4
    assert page.locator("#image-layer-view img").count() == 2
    assert page.evaluate("[...document.images].filter((image) => !image.alt).length") == 0
    page.get_by_role("tab", name="Text", exact=True).click()
    assert "positive" in page.inner_text("#text-answer")
    assert page.locator("#text-maps .sentence").count() == 3
    assert page.locator("#text-layer-view table.heat tbody tr").count() == 7


def test_upload_change_target_and_move_sliders(visit, demo_picture):
    page = visit()
    changed(page, lambda: page.set_input_files("#image-upload input[type=file]", demo_picture))
    page.wait_for_function("document.querySelector('#image-answer').innerText.includes('church')")
    page.wait_for_function("document.querySelectorAll('#image-maps img').length == 4")
    changed(page, lambda: page.locator("#image-target label").nth(1).click())
    assert "would speak for" in page.inner_text("#image-answer")
    changed(page, lambda: slide(page, "#image-opacity"))
    layer = "() => document.querySelectorAll('#image-layer-view img')[0]?.src"
    changed(page, lambda: slide(page, "#image-layer"), layer)
    panel(page, "Remove and watch")
    reading = "() => document.querySelector('#image-remove-view .reading')?.innerText"
    changed(page, lambda: slide(page, "#image-percent"), reading)
    assert "with 25\u00a0% removed" in page.inner_text("#image-remove-view")


def slide(page, name):
    page.locator(f"{name} input[type=range]").focus()
    page.keyboard.press("ArrowRight")


def test_methods_classes_agreement_and_downloads(visit):
    page = visit()
    panel(page, "Why not another?")
    assert "for golf ball" in page.inner_text("#image-between-view")
    panel(page, "Do they agree?")
    assert page.locator("#image-agreement tbody tr").count() == 3
    page.locator("#image-methods input").click()
    page.get_by_role("option", name="rollout").click()
    page.wait_for_function("document.querySelectorAll('#image-maps img').length == 5")
    page.wait_for_function("document.querySelectorAll('#image-agreement tbody tr').length == 4")
    page.get_by_role("tab", name="Download").first.click()
    for form, begins in {"png": b"\x89PNG", "pdf": b"%PDF", "html": b"<!doctype", "json": b"["}.items():
        with page.expect_download() as loading:
            page.click(f"#image-{form}")
        assert loading.value.suggested_filename == f"vitrail.{form}"
        with open(loading.value.path(), "rb") as file:
            assert file.read(len(begins)) == begins


def test_a_broken_picture_is_said_so_and_the_page_goes_on(visit, tmp_path):
    page = visit()
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing more")
    page.set_input_files("#image-upload input[type=file]", tmp_path / "cat.jpg")
    page.wait_for_selector("#image-trouble [role=alert]")
    assert "damaged" in page.inner_text("#image-trouble")
    page.locator("#image-examples button").nth(1).click()
    page.wait_for_function("document.querySelector('#image-answer').innerText.includes('church')")
    assert page.locator("#image-trouble [role=alert]").count() == 0


def test_a_script_is_shown_as_text(visit):
    page = visit()
    page.get_by_role("tab", name="Text", exact=True).click()
    page.fill("#text-input textarea", "<script>alert(1)</script> <img src=x onerror=alert(2)> a miracle")
    words = "() => document.querySelector('#text-maps .sentence')?.innerText"
    changed(page, lambda: page.click("#text-go"), words)
    page.wait_for_function("document.querySelectorAll('#text-maps .sentence').length == 3")
    shown = page.inner_text("#text-maps")
    assert "< script > alert ( 1 ) < / script >" in shown
    assert page.locator("#text-maps script, #text-maps img").count() == 0
    panel(page, "Remove and watch", "text")
    assert page.locator("#text-remove-view del").count() >= 1
    assert page.locator("#text-remove-view img").count() == 0


@pytest.mark.parametrize("tab", ["Picture", "Text"])
def test_a_phone_needs_no_sideways_scrolling(visit, tab):
    page = visit(PHONE)
    page.get_by_role("tab", name=tab, exact=True).click()
    page.wait_for_timeout(300)
    assert width(page) <= PHONE["width"]
    first = page.locator(f"#{ {'Picture': 'image', 'Text': 'text'}[tab] }-maps").bounding_box()
    assert first["y"] < PHONE["height"] / 2  # the explanation is in sight before anything is scrolled


def test_every_control_is_reached_by_keyboard(visit):
    page = visit()
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen |= set(page.evaluate(FOCUSED))
    wanted = {"upload", "examples", "target", "methods", "stop", "opacity", "palette", "layer"}
    assert {f"image-{name}" for name in wanted} - seen == set()


def test_a_long_job_shows_progress_and_stops(visit):
    page = visit()
    page.locator("#image-methods input").click()
    page.keyboard.type("tis")
    page.get_by_role("option", name="tis").click()
    page.wait_for_function("document.body.innerText.includes('computing tis')")
    page.click("#image-stop")
    page.wait_for_selector("#image-trouble [role=alert]")
    assert "Stopped" in page.inner_text("#image-trouble")
