"""What an engine hands to a worker, and what comes back: plain data that can be sent to another machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.evaluate.bench.plan import DataSpec, ModelSpec, Trial
from vitrail.evaluate.bench.protocols import Protocol


@dataclass(frozen=True)
class Job:
    """One method under one protocol, on some examples of a unit.

    Args:
        run: the identity its results are stored under.
        keys: the examples that have no results yet.
    """

    run: str
    trial: Trial
    protocol: Protocol
    metrics: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Unit:
    """A batch of examples of one data set for one model, with all that is to be measured on it.

    Args:
        numbers: the places of the examples in the data set, as its reader counts them.
        skipped: examples of the batch that have all their results already; counted by the progress bar only.
        contents: the hash of each example as the driver read it; a worker that reads another content refuses.
    """

    model: ModelSpec
    data: DataSpec
    keys: tuple[str, ...]
    numbers: tuple[int, ...]
    jobs: tuple[Job, ...]
    skipped: int = 0
    contents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One metric of one example: what it needs of the example as JSON, or why it was left out."""

    run: str
    key: str
    metric: str
    value: Mapping[str, Any] | None
    skipped: str | None = None


@dataclass(frozen=True)
class Finished:
    """The results of a unit."""

    unit: Unit
    rows: tuple[Row, ...]
    seconds: float
