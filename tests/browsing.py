"""A real browser, and what tests do in it."""

from contextlib import contextmanager

import pytest
from browser_of_this_machine import find_browser

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
BROWSER = find_browser()
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (make browser)")


@contextmanager
def chromium():
    """The browser of this machine; a test is skipped where there is no Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


def refused(said):
    """Whether this line of the console is the browser's note of an answer that the page puts into words."""
    return any(f"status of {status}" in said.text for status in (401, 422, 429))


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
        page.set_default_timeout(90_000)
        page.on("request", captured)
        page.on("dialog", lambda dialog: wrong.append(dialog.message) or dialog.dismiss())
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" and not refused(said) else None)
        return page

    yield open_page
    for page in opened:
        page.context.close()
    assert (outside, wrong) == ([], []), (outside, wrong)


def sideways(page):
    """How many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
