"""Find Chromium or install it: Debian's package as root, else the one that Playwright downloads.

The one without windows comes first: it opens a page with a third of the work.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser():
    """The path of a browser, or None: an installed one first, then Playwright's own."""
    return next(filter(None, map(shutil.which, BROWSERS)), None) or _playwrights()


def _playwrights():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as running:
        path = running.chromium.executable_path
    return path if Path(path).exists() else None


def ways():
    """The commands that install a browser on this machine, the best first."""
    if hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get"):
        yield ["apt-get", "update", "--quiet"], ["apt-get", "install", "--yes", "--quiet", "chromium-headless-shell"]
        yield (["apt-get", "install", "--yes", "--quiet", "chromium"],)  # older releases have no other
    yield (([sys.executable, "-m", "playwright", "install", "chromium"]),)


def install():
    """Try each way until there is a browser; say so where there is none."""
    for commands in ways():
        if find_browser():
            return
        for command in commands:
            try:
                subprocess.run(command, check=False, stdout=subprocess.DEVNULL, timeout=600)
            except (OSError, subprocess.TimeoutExpired) as error:
                print(f"{command[0]}: {error}", file=sys.stderr)
    if not find_browser():
        print("No Chromium could be installed: the browser tests will be skipped.", file=sys.stderr)


if __name__ == "__main__":
    install()
