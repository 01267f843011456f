"""How long a visitor waits, measured through HTTP on loopback, and what the page weighs.

    python benchmarks/app.py [--rounds 5] [--visitors 30]

Starts `vitrail app` in a process of its own, then times each action. Times include HTTP and the client.
"""

import argparse
import gzip
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

START = "from vitrail.apps.cli import main; main()"
PHOTO = {"model": "photo", "input": "example:golf_ball"}
ACTIONS = {
    "another class": lambda n: ("explain", {**PHOTO, "methods": ["gae"], "target": n % 10}),
    "another method (known recording)": lambda n: ("explain", {**PHOTO, "methods": ["rollout"]}),
    "what if": lambda n: ("whatif", {**PHOTO, "cells": [n, n + 1, n + 16]}),
    "removal curve with eight random orders": lambda n: ("remove", {**PHOTO, "method": "gae", "target": n % 10}),
    "the same order with every fill": lambda n: ("fills", {**PHOTO, "method": "gae", "target": n % 10}),
    "attention of one token": lambda n: ("attention", {**PHOTO, "token": n}),
    "search for a class": lambda n: ("classes", {**PHOTO, "words": "horn"}),
    "figure as PNG": lambda n: ("download", {**PHOTO, "methods": ["gae"], "form": "png"}),
}


class Visitor:
    """One session."""

    def __init__(self, address: str) -> None:
        self.host = urlsplit(address).netloc
        self.session = ""
        self.session = self.post("session", {})[0]["session"]

    def post(self, route: str, body: object) -> list[dict]:
        """The events of the answer."""
        link = http.client.HTTPConnection(self.host, timeout=300)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        link.request("POST", f"/api/{route}", data, {"x-vitrail-session": self.session, "content-type": kind})
        return [json.loads(line) for line in link.getresponse().read().splitlines() if line]

    def first_map(self, picture: bytes) -> None:
        """Hand in a picture and wait for its first map."""
        kept = self.post("inputs", picture)[0]["input"]
        events = self.post("explain", {"id": "f", "input": kept, "model": "photo", "methods": ["gae"]})
        assert events[-1].get("done"), events[-1]


def picture(seed: int) -> bytes:
    """A picture of its own for each seed."""
    sink = BytesIO()
    noise = np.random.default_rng(seed).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((640, 480)).save(sink, "JPEG")
    return sink.getvalue()


def timed(act) -> float:
    """Seconds an action takes."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def report(name: str, seconds: list[float]) -> None:
    """One line of the table."""
    print(f"| {name} | {statistics.median(seconds):.2f} s | {max(seconds):.2f} s |", flush=True)


def crowd(address: str, count: int) -> list[float]:
    """Seconds until each of many visitors has the first map of a picture of their own, all at once."""
    visitors, waits = [Visitor(address) for _ in range(count)], []

    def go(number: int) -> None:
        begun = time.perf_counter()
        while True:
            try:
                visitors[number].first_map(picture(1000 + number))
            except (AssertionError, KeyError):  # busy: the page asks again after a while, and so does this
                time.sleep(0.5)
                continue
            waits.append(time.perf_counter() - begun)
            return

    threads = [threading.Thread(target=go, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waits


def memory(pid: int) -> tuple[float, float]:
    """Megabytes of a process: its own, and mapped program files, which the kernel drops when it likes."""
    with open(f"/proc/{pid}/status") as lines:
        found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith("Rss")}
    return found["RssAnon"] + found["RssShmem"], found["RssFile"]


@contextmanager
def served(*more: str) -> Iterator[tuple[str, subprocess.Popen, float]]:
    """`vitrail app` in a process of its own: its address, the process, and when it was started."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", START, "app", *more], stderr=subprocess.PIPE, text=True)
    try:
        address = next(found[0] for line in process.stderr or () if (found := re.search(r"http://\S+(?=;)", line)))
        threading.Thread(target=lambda: list(process.stderr or ()), daemon=True).start()
        yield address, process, begun
    finally:
        process.terminate()
        process.wait(20)


def wait_for_models(address: str) -> None:
    """Return when the first model is there."""
    link = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)
    link.request("GET", "/api/models")
    link.getresponse().read()


def weight_of(address: str) -> float:
    """Kilobytes of all static files, compressed."""
    link, weight = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300), 0
    for path in ("/", "/app.js", "/app.css", "/icon.svg"):
        link.request("GET", path)
        weight += len(gzip.compress(link.getresponse().read(), 9))
    return weight / 1000


def measure(address: str, rounds: int, visitors: int) -> None:
    """Print how long each action takes."""
    print("| wait | median | slowest |\n|---|---|---|")
    one = Visitor(address)
    one.first_map(picture(0))
    report("first map after an upload", [timed(lambda n=n: one.first_map(picture(n))) for n in range(rounds)])
    for name, make in ACTIONS.items():
        seconds = []
        for number in range(rounds):
            route, asked = make(number + 1)
            seconds.append(timed(lambda r=route, a=asked: one.post(r, {"id": "a", **a})))
        report(name, seconds)
    report(f"{visitors} visitors at once, first map each", crowd(address, visitors))


def main() -> None:
    """Start the server, measure, print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--visitors", type=int, default=30)
    given = parser.parse_args()
    with served() as (address, process, begun):
        shown, weight = time.perf_counter() - begun, weight_of(address)
        print(f"page shown after {shown:.1f} s, static files {weight:.0f} kB compressed")
        wait_for_models(address)
        own, mapped = memory(process.pid)
        print(f"models ready after {time.perf_counter() - begun:.1f} s, {own:.0f} MB and {mapped:.0f} MB mapped")
        print(f"load {os.getloadavg()[0]:.1f}\n")
        measure(address, given.rounds, given.visitors)
        own, mapped = memory(process.pid)
        print(f"\nmemory afterwards {own:.0f} MB and {mapped:.0f} MB mapped")


if __name__ == "__main__":
    main()
