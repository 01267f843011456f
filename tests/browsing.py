"""A real browser, and what tests do in it."""

from contextlib import contextmanager

import pytest
from served_page import find_browser

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed (apt-get install chromium)")
MAPS = "() => [...document.querySelectorAll('#image-maps img')].map((image) => image.src).join()"
PANELS = {
    "Layers": "layer-view figure, #{kind}-layer-view table",
    "Remove": "remove-view svg.curve",
    "Why not?": "between-view .legend",
    "Agreement": "agreement table",
    "Download": "json",
}


@contextmanager
def chromium():
    """The browser of this machine; a test is skipped where there is no Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=find_browser(), args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@contextmanager
def visits(browser, *own):
    """A function that opens pages; at the end nothing was asked of other addresses, and no script has failed."""
    opened, outside, wrong = [], [], []

    def captured(request):
        if not request.url.startswith((*own, "data:", "blob:")):
            outside.append(request.url)

    def open_page(size=DESK, **more):
        page = browser.new_context(viewport=size, **more).new_page()
        opened.append(page)
        page.set_default_timeout(30_000)
        page.on("request", captured)
        page.on("dialog", lambda dialog: wrong.append(dialog.message) or dialog.dismiss())
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        return page

    yield open_page
    for page in opened:
        page.context.close()
    assert (outside, wrong) == ([], [])


def changed(page, act, script=MAPS):
    """Do something, and wait until what the script reads is another."""
    before = page.evaluate(script)
    act()
    page.wait_for_function(f"(before) => {{ const now = ({script})(); return now && now !== before; }}", arg=before)


def says(page, part, words):
    """Wait until this part of the page says these words."""
    script = "([part, words]) => document.querySelector(part)?.innerText.includes(words)"
    page.wait_for_function(script, arg=[part, words])


def counts(page, part, number):
    """Wait until there are so many of these parts."""
    script = "([part, number]) => document.querySelectorAll(part).length === number"
    page.wait_for_function(script, arg=[part, number])


def tab(page, name):
    """Open a tab; where there are two of that name, the one in sight."""
    page.get_by_role("tab", name=name, exact=True).filter(visible=True).click()


def panel(page, name, kind="image"):
    """Open a panel, and wait until it shows something."""
    tab(page, name)
    page.locator(f"#{kind}-{PANELS[name].format(kind=kind)}").filter(visible=True).first.wait_for()


def choose(page, part, option):
    """Pick an option of a list."""
    page.locator(f"#{part} input").click()
    page.get_by_role("option", name=option, exact=True).click()


def slide(page, part):
    """Move a slider by one step."""
    page.locator(f"#{part} input[type=range]").focus()
    page.keyboard.press("ArrowRight")


def sideways(page):
    """How many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
