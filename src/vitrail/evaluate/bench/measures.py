"""The metrics of the bench by their names; `measure` says what a metric is."""

from collections.abc import Sequence

from vitrail.errors import OptionError, suggest
from vitrail.evaluate import MEASURE_PLACES
from vitrail.evaluate.bench.measure import Column, Measure
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.methods.option_text import load

MEASURES: dict[str, Measure] = {name: load(f"vitrail.evaluate.bench.{place}") for name, place in MEASURE_PLACES.items()}


def find_measure(name: str) -> Measure:
    """The metric of this name."""
    if name not in MEASURES:
        raise OptionError(f"there is no metric {name!r}. {suggest(name, MEASURES)}")
    return MEASURES[name]


def columns_of(protocol: Protocol, metrics: Sequence[str]) -> list[Column]:
    """The columns that can be made of these metrics, in the order of the metrics."""
    made = [column for name in metrics for column in MEASURES[name].columns(protocol)]
    return [column for column in made if set(column.needs) <= set(metrics)]
