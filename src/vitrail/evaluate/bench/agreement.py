"""How like each other the maps of two methods are: the mean over examples of their rank correlation."""

from collections.abc import Iterator
from dataclasses import replace
from heapq import merge
from itertools import combinations, groupby
from operator import itemgetter

import numpy as np

from vitrail.evaluate import metrics
from vitrail.evaluate.bench.bootstrap import Estimate, Sample, estimates
from vitrail.evaluate.bench.column import Column, Values
from vitrail.evaluate.bench.groups import Group, Method

RANKS = "ranks"
Rows = tuple[tuple[str, tuple[Estimate | None, ...]], ...]


def _single(values: Values) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def agreement(group: Group, *, seed: int, resamples: int) -> tuple[tuple[Column, ...], Rows]:
    """A column and a row for each method that has ranks; neither more nor less agreement is better."""
    methods = [method for method in group.methods if RANKS in group.store.metrics(method.run)]
    columns = tuple(Column(method.label, (RANKS,), None, _single) for method in methods)
    pairs = list(combinations(range(len(methods)), 2))
    samples = _samples(group, methods, pairs) if group.keys and pairs else []
    found = (
        estimates(Column("agreement", (RANKS,), None, _single), samples, seed=seed, resamples=resamples)
        if samples
        else []
    )
    cells = {pair: one and replace(one, best=False, p=None) for pair, one in zip(pairs, found, strict=False)}
    rows = (
        (m.label, tuple(cells.get((min(a, b), max(a, b))) for b in range(len(methods)))) for a, m in enumerate(methods)
    )
    return columns, tuple(rows)


def _samples(group: Group, methods: list[Method], pairs: list[tuple[int, int]]) -> list[Sample]:
    """Of every two methods their correlation at each example; no more than that is held."""
    alike = np.full((len(group.keys), len(pairs)), np.nan)
    places = {key: place for place, key in enumerate(group.keys)}
    for key, ranks in _by_example(group, methods):
        if key not in places:
            continue
        found = metrics.agreement({str(number): [row] for number, row in ranks.items()}).matrix
        order = {number: place for place, number in enumerate(ranks)}
        for place, (a, b) in enumerate(pairs):
            if a in order and b in order:
                alike[places[key], place] = found[order[a], order[b]]
    return [Sample(np.nan_to_num(column)[:, None], ~np.isnan(column)) for column in alike.T]


def _by_example(group: Group, methods: list[Method]) -> Iterator[tuple[str, dict[int, list[int]]]]:
    """Example after example, the ranks of every method that has them."""
    streams = [_numbered(group, number, method.run) for number, method in enumerate(methods)]
    for key, rows in groupby(merge(*streams, key=itemgetter(0, 1)), key=itemgetter(0)):
        yield key, {number: ranks for _, number, ranks in rows}


def _numbered(group: Group, number: int, run: str) -> Iterator[tuple[str, int, list[int]]]:
    return ((key, number, row["ranks"]) for key, (row,) in group.store.values(run, (RANKS,)))
