"""Tables of results: estimates with intervals, what decided the numbers, and what was left out.

Runs stand in one table if model, data, protocol and versions are the same (`TableGroup`). Rows are read as they are
needed, so that memory holds the features of one column for the methods of one group and no more. The agreement of
methods is the mean over examples of the rank correlation of their maps. Intervals and paired comparisons resample
examples, the same resamples for all methods of a table.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import merge
from itertools import combinations, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from vitrail.errors import InputError, as_path
from vitrail.evaluate import metrics
from vitrail.evaluate.bench.measure import Column
from vitrail.evaluate.bench.measures import MEASURES, columns_of
from vitrail.evaluate.bench.plan import PRIORS
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.bench.store import Store, reading

Features = Float[np.ndarray, "n f"]
Present = Bool[np.ndarray, " n"]
RESAMPLES, LEVEL, RESAMPLED_AT_ONCE = 1000, 0.95, 100
WHOLE = 0.9
"""The share of a table's examples that a method needs results of to be called the best."""


@dataclass(frozen=True, eq=False)
class MethodSample:
    """The features of one method, for all examples of a table; those it has no result for are absent."""

    features: Features
    present: Present
    is_prior: bool = False


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, and how surely it differs from the best of its column.

    Args:
        p: of the paired bootstrap against the best; None for the best itself.
        count: examples it was measured on.
    """

    value: float
    low: float
    high: float
    count: int
    best: bool = False
    p: float | None = None


def estimates(
    column: Column, samples: list[MethodSample], *, seed: int, resamples: int = RESAMPLES
) -> list[Estimate | None]:
    """Every method's number with a 95 % interval; None for a method without results."""
    values = [_value(column, sample, sample.present) for sample in samples]
    known = [i for i, value in enumerate(values) if value is not None]
    if not known:
        return [None] * len(samples)
    sign = 1 if column.higher else -1
    # A method that was measured on some examples only may have had the easy ones.
    rivals = [i for i in known if not samples[i].is_prior] or known
    most = max(int(samples[i].present.sum()) for i in rivals)
    whole = [i for i in rivals if samples[i].present.sum() >= WHOLE * most]
    best = max(whole, key=lambda i: sign * (values[i] or 0.0))
    alone: list[list[np.ndarray]] = [[] for _ in samples]
    wins: list[list[np.ndarray]] = [[] for _ in samples]
    for weights in _resampled(len(samples[0].present), seed, resamples):
        for i in known:
            alone[i].append(_resample(column, samples[i], samples[i].present, weights))
            shared = samples[i].present & samples[best].present
            if i != best and shared.any():
                pair = (_resample(column, samples[j], shared, weights) for j in (best, i))
                wins[i].append(sign * np.subtract(*pair))
    found: list[Estimate | None] = [None] * len(samples)
    for i in known:
        ahead = np.concatenate(wins[i]) if wins[i] else None
        p = None if ahead is None else min(1.0, 2 * (1 + int((ahead <= 0).sum())) / (1 + len(ahead)))
        interval = _interval(np.concatenate(alone[i]))
        found[i] = Estimate(values[i] or 0.0, *interval, int(samples[i].present.sum()), i == best, p)
    return found


def gain(
    column: Column, mine: MethodSample, other: MethodSample, *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float, float]:
    """Return how much better one method is than another on the examples both have, with a 95 % paired interval."""
    sign, shared = 1 if column.higher else -1, mine.present & other.present
    value, against = (_value(column, sample, shared) for sample in (mine, other))
    if value is None or against is None:
        return np.nan, np.nan, np.nan
    drawn = [
        np.subtract(*(_resample(column, sample, shared, weights) for sample in (mine, other)))
        for weights in _resampled(len(shared), seed, resamples)
    ]
    return sign * (value - against), *_interval(sign * np.concatenate(drawn))


def _interval(drawn: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the resamples."""
    low, high = np.percentile(drawn, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(low), float(high)


def _value(column: Column, sample: MethodSample, present: Present) -> float | None:
    return float(column.finish(sample.features[present].mean(axis=0, keepdims=True))[0]) if present.any() else None


def _resampled(count: int, seed: int, resamples: int) -> Iterator[Float[np.ndarray, "r n"]]:
    """Yield how often each example is drawn in each resample, some resamples at a time."""
    rng = np.random.default_rng(seed)
    for start in range(0, resamples, RESAMPLED_AT_ONCE):
        drawn = [rng.integers(count, size=count) for _ in range(min(RESAMPLED_AT_ONCE, resamples - start))]
        yield np.stack([np.bincount(one, minlength=count) for one in drawn]).astype(np.float64)


def _resample(column: Column, sample: MethodSample, present: Present, weights: Float[np.ndarray, "r n"]) -> np.ndarray:
    some = weights[:, present]
    # Where a resample holds none of a small subset's examples, it says nothing new: the plain mean stands in.
    some = np.where(some.sum(axis=1, keepdims=True) > 0, some, 1.0)
    return column.finish((some @ sample.features[present]) / some.sum(axis=1, keepdims=True))


AT_ONCE = 256
STAND_INS = {"classes": {"voc": "PASCAL VOC"}}
"""Reader's option and value -> the data set that another one stands in for."""


@dataclass(frozen=True)
class MeasuredMethod:
    """A method and the identity of its results."""

    label: str
    run: str


@dataclass(frozen=True, eq=False)
class TableGroup:
    """Methods that were measured in the same way on the same data, in an open results file."""

    store: Store
    about: dict[str, Any]
    protocol: Protocol
    methods: Sequence[MeasuredMethod]

    @property
    def title(self) -> str:
        """Model, data set and protocol."""
        data = self.about["data"]
        real = [STAND_INS[name][x] for name, x in data["options"].items() if x in STAND_INS.get(name, {})]
        stand_in = f" (stand-in for {real[0]})" if real else ""
        return f"{self.about['model']['name']} on {data['name']}{stand_in}, protocol {self.protocol.name}"

    @cached_property
    def keys(self) -> list[str]:
        """Every example that some method has a result for."""
        return sorted(set().union(*(self.store.examples(method.run) for method in self.methods)))

    @cached_property
    def metrics(self) -> list[str]:
        """The measured metrics, in the order of the table of metrics."""
        found = set().union(*(self.store.metrics(method.run) for method in self.methods))
        return [name for name in MEASURES if name in found]

    @cached_property
    def columns(self) -> list[Column]:
        """The numbers that can be made of the results."""
        return columns_of(self.protocol, self.metrics)

    def samples(self, column: Column) -> list[MethodSample]:
        """The features of every method at the group's examples."""
        places = {key: place for place, key in enumerate(self.keys)}
        found = [self._sample(method.run, column, places) for method in self.methods]
        return [replace(x, is_prior=one.label in PRIORS) for x, one in zip(found, self.methods, strict=True)]

    def _sample(self, run: str, column: Column, places: dict[str, int]) -> MethodSample:
        features, present = np.zeros((len(places), 1)), np.zeros(len(places), dtype=bool)
        # A run that is still being written may have examples that were not there when the group was read.
        rows = (row for row in self.store.values(run, column.needs) if row[0] in places)
        while some := list(islice(rows, AT_ONCE)):
            found = column.features([values for _, values in some])
            if not present.any():
                features = np.zeros((len(places), found.shape[1]))
            where = [places[key] for key, _ in some]
            features[where], present[where] = found, True
        return MethodSample(features, present)


def read_groups(store: Store) -> Iterator[TableGroup]:
    """The groups of a results file, one at a time, in an order that does not depend on when they were made."""
    groups: dict[str, tuple[dict[str, Any], list[MeasuredMethod]]] = {}
    for run, about in store.runs().items():
        same = common(about)
        place = json.dumps([*(same[part]["name"] for part in ("model", "data", "protocol")), same], sort_keys=True)
        groups.setdefault(place, (same, []))[1].append(MeasuredMethod(about["method"]["label"], run))
    for _, (same, every) in sorted(groups.items()):
        methods = [method for method in every if store.metrics(method.run)]
        if methods:
            stored: dict[str, Any] = {
                name: tuple(x) if isinstance(x, list) else x for name, x in same["protocol"].items()
            }
            protocol = Protocol(metrics=(), **stored)
            yield TableGroup(store, same, protocol, sorted(methods, key=lambda method: method.label))


def common(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the runs of one table have in common: all but the method."""
    return {name: x for name, x in about.items() if name != "method"}


RANKS = "ranks"
Rows = tuple[tuple[str, tuple[Estimate | None, ...]], ...]


def agreement(group: TableGroup, *, seed: int, resamples: int) -> tuple[tuple[Column, ...], Rows]:
    """A column and a row for each method that has ranks; neither more nor less agreement is better."""
    methods = [method for method in group.methods if RANKS in group.store.metrics(method.run)]
    mean = Column("agreement", (RANKS,), None, np.asarray)
    pairs = list(combinations(range(len(methods)), 2))
    samples = _samples(group, methods, pairs) if group.keys and pairs else []
    found = estimates(mean, samples, seed=seed, resamples=resamples) if samples else []
    cells = {pair: one and replace(one, best=False, p=None) for pair, one in zip(pairs, found, strict=False)}
    rows = (
        (m.label, tuple(cells.get((min(a, b), max(a, b))) for b in range(len(methods)))) for a, m in enumerate(methods)
    )
    return tuple(replace(mean, name=method.label) for method in methods), tuple(rows)


def _samples(group: TableGroup, methods: list[MeasuredMethod], pairs: list[tuple[int, int]]) -> list[MethodSample]:
    """The correlation of every two methods at each example; examples are read one after the other."""

    def numbered(number: int, run: str) -> Iterator[tuple[str, int, list[int]]]:
        return ((key, number, row["ranks"]) for key, (row,) in group.store.values(run, (RANKS,)))

    alike = np.full((len(group.keys), len(pairs)), np.nan)
    places = {key: place for place, key in enumerate(group.keys)}
    streams = [numbered(number, method.run) for number, method in enumerate(methods)]
    for key, rows in groupby(merge(*streams, key=itemgetter(0, 1)), key=itemgetter(0)):
        if key not in places:
            continue
        ranks = {number: row for _, number, row in rows}
        found = metrics.agreement({str(number): [row] for number, row in ranks.items()}).matrix
        order = {number: place for place, number in enumerate(ranks)}
        for place, (a, b) in enumerate(pairs):
            if a in order and b in order:
                alike[places[key], place] = found[order[a], order[b]]
    return [MethodSample(np.nan_to_num(column)[:, None], ~np.isnan(column)) for column in alike.T]


SIGNIFICANT = 0.05
REASONS = 5


@dataclass(frozen=True)
class Table:
    """The numbers of one group: a row for each method, a column for each measure.

    Args:
        about: model, data set, protocol and versions, as stored.
    """

    about: Mapping[str, Any]
    title: str
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: Rows

    def __str__(self) -> str:
        """The table as Markdown."""
        from vitrail.evaluate.bench.forms import render

        return render([self])

    def _repr_html_(self) -> str:
        """The table for notebooks."""
        from vitrail.evaluate.bench.forms import table_html

        return table_html(self)


def tables(path: str | Path, *, seed: int = 0, resamples: int = RESAMPLES) -> list[Table]:
    """Every table of a results file; more resamples of the bootstrap make the intervals smoother."""
    with reading(as_path(path, "a results file")) as store:
        made = [table for group in read_groups(store) for table in tabulate(group, seed=seed, resamples=resamples)]
    if not made:
        raise InputError(f"{path} holds no results yet.")
    return made


def tabulate(group: TableGroup, *, seed: int = 0, resamples: int = RESAMPLES) -> list[Table]:
    """The table of a group, and one of how far its methods agree where that was measured."""
    made = []
    if group.columns:
        by_column = _estimates(group, seed, resamples)
        rows = tuple((m.label, tuple(column[i] for column in by_column)) for i, m in enumerate(group.methods))
        lines = (*notes(group), *not_better(group.columns, rows))
        made.append(Table(group.about, group.title, (*lines, *_skipped(group)), tuple(group.columns), rows))
    columns, rows = agreement(group, seed=seed, resamples=resamples)
    if columns:
        title = f"{group.title}: how far methods agree"
        lines = (*notes(group, alike=True), *_skipped(group))
        made.append(Table(group.about, title, lines, columns, rows))
    return made


def _estimates(group: TableGroup, seed: int, resamples: int) -> list[list[Estimate | None]]:
    """Column by column; those that are made of the same features read them once."""
    made = []
    for _, columns in groupby(group.columns, key=lambda column: (column.needs, column.features)):
        first, *rest = columns
        samples = group.samples(first)
        made += [estimates(column, samples, seed=seed, resamples=resamples) for column in (first, *rest)]
    return made


def notes(group: TableGroup, *, alike: bool = False) -> tuple[str, ...]:
    """Return the settings behind the numbers, and what was left out. `alike`: for a table of how far methods agree."""
    about, protocol, kind = group.about, group.protocol, group.about["data"]["kind"]
    explained = f"{protocol.scalar} of the model's answer" if kind == "answer" else f"class {protocol.target_of(kind)}"
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    said = "rank correlation of the maps of two methods" if alike else conventions(group)
    best = (
        f"; ~ not significantly different from the best (paired bootstrap on shared examples, p >= {SIGNIFICANT:g}). "
        "The best is measured on nearly all examples"
    )
    lines = [
        f"Protocol {protocol.name}: {said}; explained {explained}.",
        f"Model {about['model']['hash']}, data {about['data']['content']}; {about['device']}, perturbed passes in "
        f"{about['dtype']}; {versions}.",
        f"Examples: {len(group.keys)}. In brackets 95 % bootstrap intervals over examples{'' if alike else best}.",
    ]
    return tuple(lines)


def not_better(columns: Sequence[Column], rows: Rows) -> list[str]:
    """Return the methods no better than a row that reads nothing of the model, by column."""
    references = [(name, row) for name, row in rows if name in PRIORS]
    found: list[str] = []
    for place, column in enumerate(columns):
        known = [row[place] for _, row in references]
        values = [one.value for one in known if one is not None]
        if column.higher is None or not values:
            continue
        best = max(values) if column.higher else min(values)
        worse: list[str] = []
        for name, row in rows:
            one = row[place]
            if name not in PRIORS and one is not None and (one.value <= best if column.higher else one.value >= best):
                worse.append(name)
        found += [f"{column.name}: {', '.join(worse)}"] if worse else []
    names = " and ".join(name for name, _ in references)
    return [f"Not better than {names}: {'; '.join(found)}."] if found else []


def conventions(group: TableGroup) -> str:
    """The conventions that play a part in the group's columns."""
    protocol, needs = group.protocol, {name for column in group.columns for name in column.needs}
    levels = f"{len(protocol.levels)} levels {protocol.levels[0]:g} to {protocol.levels[-1]:g}"
    levels = f"beside the guide {protocol.guide}, {levels}" if protocol.guide else levels
    said = {
        "segmentation": f"threshold {protocol.threshold}",
        "voc": "21 classes by the model's likeliest, highest map wins, background under the best of ten thresholds",
        "positive": f"{levels}, fill {protocol.fill}, {protocol.units}, {protocol.judged} hit, area {protocol.area}",
        "text_deletion": f"tokens deleted, levels of {protocol.text_mode}{', absolute' if protocol.absolute else ''}",
        "text_padding": f"tokens replaced by [PAD], levels of {protocol.text_mode}",
        "kendall": f"tau of {protocol.kendall}",
        "token_f1": f"k = {', '.join(map(str, protocol.ks))}",
        "randomisation": "weights randomised from the output down, size of the rank correlation with the trained map",
        "gold_recall": f"the best {protocol.k} % of the tokens of the context",
        "lds": f"{protocol.ablations} random ablations of sentences that nothing was fitted to, sentence scores by the "
        f"{protocol.pool} of their tokens",
        "answer_drop": f"{' or '.join(map(str, protocol.ks))} sentences removed",
        "class_sensitivity": "rank correlation with the map of the likeliest other class",
    }
    return "; ".join(text for name, text in said.items() if name in needs) or "plain"


def _skipped(group: TableGroup) -> list[str]:
    """Return the number of missing results, and the first reasons."""
    methods = [method for method in group.methods if method.label not in PRIORS]  # those lack the same ones
    reasons = sum((Counter(group.store.reasons(method.run)) for method in methods), Counter())
    if not reasons:
        return []
    examples = set().union(*(group.store.examples(method.run, skipped=True) for method in methods))
    shown = [f"{reason} ({times} times)" for reason, times in sorted(reasons.items())[:REASONS]]
    more = f" and {len(reasons) - REASONS} more reasons" if len(reasons) > REASONS else ""
    return [f"Skipped: {reasons.total()} results of {len(examples)} examples: {'; '.join(shown)}{more}."]
