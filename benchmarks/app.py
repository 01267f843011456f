"""How long a visitor waits, measured through the page's HTTP API on loopback.

    python benchmarks/app.py [--rounds 5]

Starts `vitrail app` in a process of its own, warms it, then times what the issue names: the first map after an upload,
a switch of methods, a move of the perturbation slider, and ten visitors at once. Times include HTTP and the client.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from gradio_client import Client, handle_file
from PIL import Image

LOOK = ("recommended", 0.6, "Fire")
START = "from vitrail.apps.cli import main; main()"
LIMITS = {"first map after upload": 1.5, "method switch": 0.3, "slider move": 0.3}


def timed(act) -> float:
    """Seconds an action takes."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def picture(folder: Path, seed: int) -> Path:
    """A picture that the page has not seen."""
    noise = np.random.default_rng(seed).integers(256, size=(6, 8, 3), dtype=np.uint8)
    path = folder / f"{seed}.jpg"
    Image.fromarray(noise).resize((640, 480), Image.Resampling.BICUBIC).save(path)
    return path


def upload(client: Client, path: Path) -> None:
    """Hand in a picture and wait for its first maps."""
    asked = (None, "photo", None, ["gae", "complete_gradient"], *LOOK)
    found = client.predict(handle_file(path), *asked, api_name="/image_new")
    if "<img" not in found[3]:
        sys.exit(f"no maps came back: {found[0]}")


def switch(client: Client, methods: list[str]) -> None:
    """Choose other methods."""
    client.predict(None, "photo", None, methods, *LOOK, api_name="/image_methods")


def slide(client: Client, percent: float) -> None:
    """Move the slider."""
    client.predict("attcat", "blur", percent, "photo", None, ["attcat"], *LOOK, api_name="/image_percent")


def one_visitor(address: str, folder: Path, rounds: int) -> dict[str, list[float]]:
    """The three waits of one visitor, several times."""
    client = Client(address, verbose=False, analytics_enabled=False)
    found: dict[str, list[float]] = {name: [] for name in LIMITS}
    upload(client, picture(folder, 1000))
    for number in range(rounds):
        path = picture(folder, number)
        found["first map after upload"].append(timed(lambda path=path: upload(client, path)))
        for method in ("rollout", "tokentm", "attcat"):
            found["method switch"].append(timed(lambda method=method: switch(client, [method])))
    print(f"curve of 21 steps and 2 random orders, once: {timed(lambda: slide(client, 0.0)):.2f} s")
    for percent in range(5, 5 * rounds + 5, 5):
        found["slider move"].append(timed(lambda percent=percent: slide(client, float(percent))))
    return found


def crowd(address: str, folder: Path, count: int = 10) -> float:
    """Seconds until all visitors, who upload at the same moment, have their maps."""
    clients = [Client(address, verbose=False, analytics_enabled=False) for _ in range(count)]
    paths = [picture(folder, 100 + number) for number in range(count)]
    threads = [threading.Thread(target=upload, args=pair) for pair in zip(clients, paths, strict=True)]
    return timed(lambda: [thread.start() for thread in threads] and [thread.join() for thread in threads])


def main() -> None:
    """Start the page, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    started = time.perf_counter()
    page = subprocess.Popen([sys.executable, "-c", START, "app"], stderr=subprocess.PIPE, text=True)
    try:
        address = next(found[0] for line in page.stderr or () if (found := re.search(r"http://\S+(?=;)", line)))
        load, ready = os.getloadavg()[0], time.perf_counter() - started
        print(f"ready after {ready:.1f} s; load {load:.1f} on {os.cpu_count()} cores")
        with tempfile.TemporaryDirectory() as folder:
            found = one_visitor(address, Path(folder), rounds)
            together = crowd(address, Path(folder))
    finally:
        page.terminate()
        page.communicate(timeout=30)
    print("| wait | median | slowest | limit |\n|---|---|---|---|")
    for name, seconds in found.items():
        print(f"| {name} | {statistics.median(seconds):.3f} s | {max(seconds):.3f} s | {LIMITS[name]} s |")
    print(f"| ten uploads at once, all answered | {together:.2f} s | | |")


if __name__ == "__main__":
    main()
