"""Every panel of the page in Firefox, at 390 and 1280 pixels: what is too wide, what fails, what the console says.

    python benchmarks/app_firefox.py http://127.0.0.1:7860

Needs Firefox (`firefox-esr` or `firefox`) and the package websockets, and a page that is being served. Firefox is
driven by WebDriver BiDi, which it speaks itself.
"""

import argparse
import asyncio
import itertools
import json
import shutil
import subprocess
import tempfile
from typing import Any

import websockets

PORT = 9377
PANELS = ("what-if", "remove", "trust", "compare", "why-not", "layers", "attention", "share")
STARTS = {
    "image": "#in=example:golf_ball&m=photo&x=gae,complete_gradient",
    "text": "#in=example:sentence-1&m=sentiment&x=attcat,gae",
}
SETTLED = "!!document.querySelector('[data-settled=true]')"
IDLE = "!!document.querySelector('[role=tabpanel]') && !document.querySelector('[role=tabpanel] progress')"
WIDE = "document.documentElement.scrollWidth - window.innerWidth"
TROUBLE = "document.querySelectorAll('[role=alert]').length"
BOX = "JSON.stringify(document.querySelector('[data-method=gae] canvas[role=img]').getBoundingClientRect())"


class Firefox:
    """One tab."""

    def __init__(self, link: Any) -> None:
        self.link, self.count, self.context = link, itertools.count(1), ""
        self.said: list[str] = []

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        """A command and its result."""
        number = next(self.count)
        await self.link.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            found = json.loads(await self.link.recv())
            if found.get("method") == "log.entryAdded" and found["params"]["level"] in ("error", "warn"):
                self.said.append(found["params"]["text"])
            if found.get("id") == number:
                if found["type"] == "error":
                    raise RuntimeError(found["message"])
                return found["result"]

    async def evaluate(self, code: str) -> Any:
        """The value of an expression in the page."""
        found = await self.call("script.evaluate", expression=code, target={"context": self.context}, awaitPromise=True)
        if found["type"] == "exception":
            raise RuntimeError(found["exceptionDetails"]["text"])
        return found["result"].get("value")

    async def until(self, code: str) -> None:
        """Wait until an expression is true."""
        for _ in range(600):
            if await self.evaluate(code):
                return
            await asyncio.sleep(0.2)
        raise TimeoutError(code)

    async def open(self, address: str, width: int) -> None:
        """Load an address afresh and wait for all its maps."""
        size = {"width": width, "height": 900}
        await self.call("browsingContext.setViewport", context=self.context, viewport=size)
        for url in ("about:blank", address):
            await self.call("browsingContext.navigate", context=self.context, url=url, wait="complete")
        await self.until(SETTLED)


async def visit(tab: Firefox, address: str) -> None:
    """Open every panel, then point at a map."""
    await tab.call("session.new", capabilities={})
    await tab.call("session.subscribe", events=["log.entryAdded"])
    tab.context = (await tab.call("browsingContext.getTree"))["contexts"][0]["context"]
    print(await tab.evaluate("navigator.userAgent"))
    for width, (kind, start) in itertools.product((390, 1280), STARTS.items()):
        await tab.open(address + start, width)
        for panel in PANELS:
            await tab.evaluate(f"document.querySelector('#tab-{panel}').click()")
            await asyncio.sleep(0.3)
            await tab.until(IDLE)
            wide, trouble = max(0, await tab.evaluate(WIDE)), await tab.evaluate(TROUBLE)
            print(f"{width} pixels, {kind}, {panel}: {wide} pixels too wide, {trouble} errors", flush=True)
    await tab.open(address + STARTS["image"], 1280)
    box = json.loads(await tab.evaluate(BOX))
    move = {"type": "pointerMove", "x": int(box["x"]) + 60, "y": int(box["y"]) + 60}
    pointer = {"type": "pointer", "id": "mouse", "actions": [move]}
    await tab.call("input.performActions", context=tab.context, actions=[pointer])
    print(await tab.evaluate("document.querySelector('p.pointed').innerText"))
    print(f"console: {tab.said or 'nothing'}")


async def run(address: str) -> None:
    """Start Firefox, visit, end it."""
    program = shutil.which("firefox-esr") or shutil.which("firefox") or "firefox"
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-remote", "--profile", profile, "--remote-debugging-port", str(PORT)]
        process = subprocess.Popen([program, *options], stderr=subprocess.PIPE, text=True)
        try:
            next(line for line in process.stderr or () if "BiDi listening" in line)
            async with websockets.connect(f"ws://127.0.0.1:{PORT}/session", max_size=None) as link:
                await visit(Firefox(link), address.rstrip("/") + "/")
        finally:
            process.terminate()
            process.wait(20)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    asyncio.run(run(parser.parse_args().address))
