"""What a browser sees of the page: bytes, requests, first paint, layout shift, and how long a recolouring takes.

    python benchmarks/app_page.py http://127.0.0.1:7860 [--folder screenshots]

Needs Playwright and Chromium, and a page that is being served. With a folder it also takes screenshots at 390, 1280 and
2560 pixels, light and dark.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Playwright, sync_playwright

WATCH = """window.shift = 0; new PerformanceObserver((list) => { for (const one of list.getEntries())
if (!one.hadRecentInput) window.shift += one.value; }).observe({type: "layout-shift", buffered: true});"""
SIZES = (390, 1280, 2560)
STARTS = {"image": "#in=example:temple", "text": "#in=example:sentence-2&panel=layers"}
RECOLOUR = """() => new Promise((done) => { const begun = performance.now();
const slider = document.querySelector("#look-opacity"); slider.value = 0.35;
slider.dispatchEvent(new Event("input", {bubbles: true}));
requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begun))); })"""


def settled(page: Page, address: str) -> None:
    """Open an address and wait for all its maps."""
    page.goto(address)
    page.wait_for_selector("[data-settled=true]", timeout=120_000)
    page.wait_for_timeout(400)


def measure(page: Page, address: str) -> dict[str, float]:
    """What one load of the page costs: milliseconds, layout shift, requests and kilobytes."""
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", 0))))
    page.add_init_script(WATCH)
    settled(page, address)
    paint = page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return {
        "first contentful paint, ms": paint,
        "layout shift": page.evaluate("() => window.shift"),
        "requests": len(sizes),
        "kB without the stream of results": sum(sizes) / 1000,
        "opacity of all maps, ms, no request": page.evaluate(RECOLOUR),
    }


def launched(running: Playwright) -> Browser:
    """Chromium without a window."""
    return running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])


def sized(browser: Browser, width: int, **more: Any) -> Page:
    """A page of this width."""
    return browser.new_context(viewport={"width": width, "height": 844}, **more).new_page()


def main() -> None:
    """Measure, then take screenshots."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with sync_playwright() as running:
        browser = launched(running)
        for width in (1280, 390):
            found = measure(sized(browser, width), given.address)
            print(f"{width} pixels:", ", ".join(f"{name} {value:.4g}" for name, value in found.items()))
        if given.folder is not None:
            given.folder.mkdir(parents=True, exist_ok=True)
            for width in SIZES:
                for scheme in ("light", "dark"):
                    page = sized(browser, width, color_scheme=scheme)
                    for name, start in STARTS.items():
                        settled(page, given.address + start)
                        page.screenshot(path=given.folder / f"{name}-{width}-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
