"""The runs of a results file that may stand in one table: same model, data, protocol and versions."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.bench.bootstrap import Sample
from vitrail.bench.columns import Column, columns_of
from vitrail.bench.measures import MEASURES
from vitrail.bench.protocols import Protocol
from vitrail.bench.store import Store

Results = dict[str, dict[str, Any]]  # example -> metric -> value


@dataclass(frozen=True, eq=False)
class Method:
    """The results of one method.

    Args:
        skipped: example and metric -> why there is no result.
    """

    label: str
    results: Results
    skipped: dict[tuple[str, str], str]


@dataclass(frozen=True, eq=False)
class Group:
    """Methods that were measured in the same way on the same data."""

    about: dict[str, Any]
    protocol: Protocol
    methods: Sequence[Method]

    @property
    def title(self) -> str:
        """Model, data set and protocol."""
        return f"{self.about['model']['name']} on {self.about['data']['name']}, protocol {self.protocol.name}"

    @property
    def keys(self) -> list[str]:
        """Every example that some method has a result for."""
        return sorted({key for method in self.methods for key in method.results})

    @property
    def columns(self) -> list[Column]:
        """The numbers that can be made of the results."""
        found = {metric for m in self.methods for by in m.results.values() for metric in by}
        found |= {metric for m in self.methods for _, metric in m.skipped}
        return columns_of(self.protocol, [name for name in MEASURES if name in found])

    def samples(self, column: Column, keys: Sequence[str]) -> list[Sample]:
        """The features of every method at these examples."""
        return [_sample(method, column, keys) for method in self.methods]


def _sample(method: Method, column: Column, keys: Sequence[str]) -> Sample:
    empty: dict[str, Any] = {}
    rows = [tuple(method.results.get(key, empty).get(name) for name in column.needs) for key in keys]
    present = np.array([all(value is not None for value in row) for row in rows], dtype=bool)
    known = [row for row, there in zip(rows, present, strict=True) if there]
    if not known:
        return Sample(np.zeros((len(keys), 1)), present)
    found = column.features(known)
    features = np.zeros((len(keys), found.shape[1]))
    features[present] = found
    return Sample(features, present)


def read_groups(store: Store) -> Iterator[Group]:
    """The groups of a results file, one at a time, in an order that does not depend on when they were made."""
    members: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for run, about in store.runs().items():
        common = {name: x for name, x in about.items() if name != "method"}
        place = (common["model"]["name"], common["data"]["name"], common["protocol"]["name"], common)
        members.setdefault(json.dumps(place, sort_keys=True), []).append((about, run))
    for _, some in sorted(members.items()):
        group = _group(store, some)
        if group.methods:
            yield group


def _group(store: Store, members: list[tuple[dict[str, Any], str]]) -> Group:
    about = {name: x for name, x in members[0][0].items() if name != "method"}
    methods = [_method(store, one["method"]["label"], run) for one, run in members]
    some = sorted((m for m in methods if m.results or m.skipped), key=lambda m: m.label)
    return Group(about, read_protocol(about["protocol"]), some)


def _method(store: Store, label: str, run: str) -> Method:
    results: Results = {}
    skipped: dict[tuple[str, str], str] = {}
    for example, metric, value, reason in store.results(run):
        if reason is None:
            results.setdefault(example, {})[metric] = value
        else:
            skipped[(example, metric)] = reason
    return Method(label, results, skipped)


def read_protocol(table: dict[str, Any]) -> Protocol:
    """The protocol that a run was made under."""
    fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in table.items()}
    return Protocol(metrics=(), **fields)
