"""Files of `consensus.py` side by side: which variant beats every published method in every column, and how surely.

Files of the same model add up (Pets in one, ImageNet in another; other `--also` methods), files of two models stand
side by side. The first table sorts variants by the number of columns in which they are better than the best published
method, then by the smallest margin, in standard errors of the paired difference. `--name` gives intervals of variants.

    python benchmarks/consensus_compare.py vit.json.gz deit.json.gz [--top 30] [--name consensus ...]
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from consensus_results import COLUMNS, best_published, is_published, names_of, numbers, read_results, shown, values_of

RESAMPLES = 2000
COLUMN_NAMES = list(COLUMNS)
Sections = dict[str, dict]


@dataclass(frozen=True)
class Place:
    """One column of one model: the best published method there, and a number of every variant and resample."""

    model: str
    title: str
    sign: int
    best: str
    values: Mapping[str, float]
    drawn: Mapping[str, np.ndarray]

    def margin(self, name: str) -> tuple[float, float, float, float]:
        """How much better a variant is than the best published method: the difference, its 95 % interval, its error."""
        if name not in self.values:
            return np.nan, np.nan, np.nan, np.nan
        apart = self.sign * (self.drawn[name] - self.drawn[self.best])
        low, high = np.percentile(apart, [2.5, 97.5])
        return self.sign * (self.values[name] - self.values[self.best]), low, high, float(apart.std())


def read(paths: list[Path]) -> dict[str, Sections]:
    """By model, the sections of all its files; refuses files about different pictures."""
    models: dict[str, Sections] = {}
    for path in paths:
        content = read_results(path)
        sections = models.setdefault(content["about"]["model"], {})
        for name, place in content["sections"].items():
            mine = sections.setdefault(name, {"keys": place["keys"], "variants": {}})
            if mine["keys"] != place["keys"]:
                raise SystemExit(f"{path}: {name} holds other pictures than the files before; compare runs of one set.")
            mine["variants"] |= place["variants"]
    return models


def resampled(values: Mapping[str, list], column: int, weights: np.ndarray) -> np.ndarray:
    """A column's number in every resample."""
    if column > 2:
        return weights @ np.array(values["positive" if COLUMN_NAMES[column].startswith("positive") else "negative"])
    if column == 1:
        return 100 * weights @ np.array(values["precision"])
    hits, alarms, misses, rejections = (weights @ np.array(values["confusion"], dtype=np.float64)).T
    if column == 0:
        return 100 * (hits + rejections) / (hits + alarms + misses + rejections)
    return 50 * (hits / (hits + alarms + misses) + rejections / (rejections + alarms + misses))


def places(model: str, sections: Sections, seed: int = 0) -> list[Place]:
    """Every column that was measured."""
    rows = {name: numbers(sections, name) for name in names_of(sections)}
    best, found = best_published(rows), []
    for column, (title, (section, sign)) in enumerate(COLUMNS.items()):
        known = {name: row[column] for name, row in rows.items() if not np.isnan(row[column])}
        if np.isnan(best[column]):
            continue
        chosen = next(name for name, x in known.items() if is_published(name) and x == best[column])
        count = len(sections[section]["keys"])
        drawn = np.random.default_rng(seed).multinomial(count, [1 / count] * count, size=RESAMPLES) / count
        sampled = {
            name: resampled(values, column, drawn)
            for name in known
            if (values := values_of(sections, section, name)) and len(next(iter(values.values()))) == count
        }
        found.append(Place(model, title, sign, chosen, {name: known[name] for name in sampled}, sampled))
    return found


def ranked(columns: list[Place], top: int) -> str:
    """Markdown: the variants by wins and by their smallest margin."""
    names = list(dict.fromkeys(name for place in columns for name in place.values if not is_published(name)))
    scored = []
    for name in names:
        margins = np.array([place.margin(name) for place in columns])
        known = ~np.isnan(margins[:, 0])
        errors = margins[known, 0] / np.maximum(margins[known, 3], 1e-9)
        wins, clear = int((margins[known, 0] > 0).sum()), int((margins[known, 1] > 0).sum())
        scored.append((wins, float(errors.min()), name, clear, int(known.sum())))
    titles = [f"{place.model.split('_')[0]} {place.title}" for place in columns]
    head = ["variant", "better in", "clear in", "worst margin", *titles]
    best = ["best published", "", "", "", *(f"{shown(place.values[place.best])} {place.best}" for place in columns)]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], best]
    for wins, worst, name, clear, known in sorted(scored, key=lambda row: row[:2], reverse=True)[:top]:
        cells = [cell(place, name) for place in columns]
        lines.append([name, f"{wins} of {known}", str(clear), f"{worst:+.1f} se", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(place: Place, name: str) -> str:
    """A number, bold where better than the best published method, with an asterisk where the interval says so."""
    gain, low, _, _ = place.margin(name)
    if np.isnan(gain):
        return ""
    number = shown(place.values[name])
    return f"**{number}**{'*' if low > 0 else ''}" if gain > 0 else number


def intervals(columns: list[Place], name: str) -> str:
    """Markdown: one variant against the best published method, column by column."""
    lines = [f"| {name} | value | best published | gain [95 %] |", "|---|---:|---|---|"]
    for place in columns:
        gain, low, high, _ = place.margin(name)
        if not np.isnan(gain):
            value, best = shown(place.values[name]), f"{shown(place.values[place.best])} {place.best}"
            lines.append(f"| {place.model}, {place.title} | {value} | {best} | {gain:+.2f} [{low:+.2f}, {high:+.2f}] |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--top", type=int, default=30)
    parser.add_argument("--name", nargs="*", default=[])
    given = parser.parse_args()
    columns = [place for model, sections in read(given.files).items() for place in places(model, sections)]
    print(ranked(columns, given.top))
    for name in given.name:
        print(f"\n{intervals(columns, name)}")


if __name__ == "__main__":
    main()
