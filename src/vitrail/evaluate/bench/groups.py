"""The runs of a results file that may stand in one table: same model, data, protocol and versions.

Rows are read as they are needed and turned into numbers some at a time, so that no more is ever held in memory than the
features of one column for the methods of one group.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from vitrail.evaluate.bench.bootstrap import Sample
from vitrail.evaluate.bench.column import Column
from vitrail.evaluate.bench.columns import columns_of
from vitrail.evaluate.bench.measures import MEASURES
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.bench.store import Store

AT_ONCE = 256
STAND_INS = {"classes": {"voc": "PASCAL VOC"}}
"""Reader's option and value -> the data set that another one stands in for."""


@dataclass(frozen=True)
class Method:
    """A method and the identity of its results."""

    label: str
    run: str


@dataclass(frozen=True, eq=False)
class Group:
    """Methods that were measured in the same way on the same data, in an open results file."""

    store: Store
    about: dict[str, Any]
    protocol: Protocol
    methods: Sequence[Method]

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
        """What was measured, in the order of the table of metrics."""
        found = set().union(*(self.store.metrics(method.run) for method in self.methods))
        return [name for name in MEASURES if name in found]

    @cached_property
    def columns(self) -> list[Column]:
        """The numbers that can be made of the results."""
        return columns_of(self.protocol, self.metrics)

    def values(self, method: Method, metric: str) -> Iterator[Any]:
        """What is stored of each example, one after the other."""
        return (value for _, (value,) in self.store.values(method.run, (metric,)))

    def samples(self, column: Column) -> list[Sample]:
        """The features of every method at the group's examples."""
        places = {key: place for place, key in enumerate(self.keys)}
        return [_sample(self.store, method, column, places) for method in self.methods]


def _sample(store: Store, method: Method, column: Column, places: dict[str, int]) -> Sample:
    features, present = np.zeros((len(places), 1)), np.zeros(len(places), dtype=bool)
    # A run that is still being written may have examples that were not there when the group was read.
    rows = (row for row in store.values(method.run, column.needs) if row[0] in places)
    while some := list(islice(rows, AT_ONCE)):
        found = column.features([values for _, values in some])
        if not present.any():
            features = np.zeros((len(places), found.shape[1]))
        where = [places[key] for key, _ in some]
        features[where], present[where] = found, True
    return Sample(features, present)


def read_groups(store: Store) -> Iterator[Group]:
    """The groups of a results file, one at a time, in an order that does not depend on when they were made."""
    members: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for run, about in store.runs().items():
        shared = common(about)
        place = (shared["model"]["name"], shared["data"]["name"], shared["protocol"]["name"], shared)
        members.setdefault(json.dumps(place, sort_keys=True), []).append((about, run))
    for _, some in sorted(members.items()):
        group = _group(store, some)
        if group.methods:
            yield group


def common(about: Mapping[str, Any]) -> dict[str, Any]:
    """What the runs of one table have in common: all but the method."""
    return {name: x for name, x in about.items() if name != "method"}


def _group(store: Store, members: list[tuple[dict[str, Any], str]]) -> Group:
    about = common(members[0][0])
    methods = [Method(one["method"]["label"], run) for one, run in members if store.metrics(run)]
    return Group(store, about, read_protocol(about["protocol"]), sorted(methods, key=lambda m: m.label))


def read_protocol(table: dict[str, Any]) -> Protocol:
    """The protocol that a run was made under."""
    fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in table.items()}
    return Protocol(metrics=(), **fields)
