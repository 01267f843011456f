"""What `consensus.py` found so far: values of every picture, kept in a file as they come, and the table of them."""

import gzip
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from vitrail import metrics

EVERY = 15.0
"""Seconds between two writings of the file."""
COLUMNS: dict[str, tuple[str, int]] = {
    "PAcc ↑": ("pets", 1),
    "mAP ↑": ("pets", 1),
    "mIoU ↑": ("pets", 1),
    "positive ↓": ("predicted", -1),
    "negative ↑": ("predicted", 1),
    "positive, label ↓": ("label", -1),
    "negative, label ↑": ("label", 1),
}
"""By title, where a column's values lie and whether more is better."""


class Results:
    """Values by section (`pets`, `predicted`, `label`, each also `fine`), variant and picture; seconds by phase."""

    def __init__(self, about: Mapping, path: Path | None, device: str) -> None:
        self.about, self.path, self.device = about, path, device
        self.sections: dict[str, dict] = {}
        self.seconds: dict[str, float] = {}
        self.recipes: dict[str, str] = {}
        self.started = self.written = time.perf_counter()

    @contextmanager
    def clock(self, phase: str) -> Iterator[None]:
        """Count what happens inside to a phase."""
        started = time.perf_counter()
        yield
        if self.device != "cpu":
            torch.cuda.synchronize()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started

    def add(self, section: str, keys: Sequence[str], measured: Mapping[str, Mapping[str, list]]) -> None:
        """Values of more pictures."""
        place = self.sections.setdefault(section, {"keys": [], "variants": {}})
        place["keys"] += keys
        for name, values in measured.items():
            mine = place["variants"].setdefault(name, {})
            for what, numbers in values.items():
                mine.setdefault(what, []).extend(numbers)
        if time.perf_counter() - self.written > EVERY:
            self.write()

    def finished(self, phase: str) -> None:
        """Write all there is, and say how long it took so far."""
        self.write()
        print(f"{phase}: {time.perf_counter() - self.started:.0f} s", flush=True)

    def write(self) -> None:
        """The file, whole at any time."""
        self.written = time.perf_counter()
        if self.path is None:
            return
        content = {"about": self.about, "seconds": self.seconds, "recipes": self.recipes, "sections": self.sections}
        data = json.dumps(content, ensure_ascii=False).encode()
        beside = self.path.with_name(self.path.name + ".part")
        beside.write_bytes(gzip.compress(data) if self.path.suffix == ".gz" else data)
        os.replace(beside, self.path)

    def table(self) -> str:
        """Markdown: variants x columns; bold where better than every published method (in backticks)."""
        rows = {name: numbers(self.sections, name) for name in names_of(self.sections)}
        best = best_published(rows)
        head = ["variant", *COLUMNS, "better in"]
        lines = [head, ["---", *["---:"] * (len(head) - 1)], ["best published", *map(shown, best), ""]]
        lines += [written(name, row, best) for name, row in rows.items()]
        counts = ", ".join(f"{len(place['keys'])} of {name}" for name, place in self.sections.items())
        spent = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in self.seconds.items())
        foot = f"Pictures: {counts}.\nSeconds: {spent}, in all {time.perf_counter() - self.started:.1f}."
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{foot}"


def read_results(path: Path) -> dict:
    """What a file holds."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def names_of(sections: Mapping) -> list[str]:
    """Every variant that has values."""
    return list(dict.fromkeys(name for place in sections.values() for name in place["variants"]))


def values_of(sections: Mapping, section: str, name: str) -> Mapping[str, list] | None:
    """What was measured of a variant, of patches or of pixels."""
    for place in (section, f"{section}, fine"):
        if place in sections and name in sections[place]["variants"]:
            return sections[place]["variants"][name]
    return None


def numbers(sections: Mapping, name: str) -> list[float]:
    """A variant's number in every column, NaN where it was not measured."""
    pets = values_of(sections, "pets", name)
    found = [np.nan] * 3 if pets is None else localisation(pets)
    for section in ("predicted", "label"):
        values = values_of(sections, section, name)
        found += [np.nan] * 2 if values is None else [float(np.mean(values[x])) for x in ("positive", "negative")]
    return found


def localisation(values: Mapping[str, list]) -> list[float]:
    """Pixel accuracy, mAP and mIoU in per cent, of pixels pooled over all pictures."""
    counts = metrics.SegmentationCounts(np.array(values["confusion"])[:, None], np.array(values["precision"]))
    whole = metrics.aggregate_segmentation(counts)
    return [100 * x for x in (whole.pixel_accuracy, whole.mean_ap, whole.mean_iou)]


def is_published(name: str) -> bool:
    """Whether a row is a published method."""
    return name.startswith("`")


def best_published(rows: Mapping[str, Sequence[float]]) -> list[float]:
    """The best number of any published method, column by column."""
    table = np.array([row for name, row in rows.items() if is_published(name)] or [[np.nan] * len(COLUMNS)])
    signs = np.array([sign for _, sign in COLUMNS.values()])
    signed = np.where(np.isnan(table), -np.inf, table * signs).max(axis=0) * signs
    return np.where(np.isinf(signed), np.nan, signed).tolist()


def wins(row: Sequence[float], best: Sequence[float]) -> list[bool]:
    """Where a row is better than the best published method."""
    signs = [sign for _, sign in COLUMNS.values()]
    return [sign * (own - other) > 0 for sign, own, other in zip(signs, row, best, strict=True)]


def written(name: str, row: Sequence[float], best: Sequence[float]) -> list[str]:
    """A line of the table."""
    better = [False] * len(row) if is_published(name) else wins(row, best)
    cells = [f"**{shown(x)}**" if won else shown(x) for x, won in zip(row, better, strict=True)]
    return [name, *cells, "" if is_published(name) else f"{sum(better)} of {sum(not np.isnan(x) for x in row)}"]


def shown(value: float) -> str:
    """A number with two decimals, or nothing."""
    return "" if np.isnan(value) else f"{value:.2f}"
