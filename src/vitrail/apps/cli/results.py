"""Attributions of one sample: a row for each target, a column for each method."""

from collections.abc import Sequence
from dataclasses import dataclass

import vitrail
from vitrail import Attribution
from vitrail.apps.cli.aims import title
from vitrail.apps.cli.reporting import note
from vitrail.apps.cli.specs import Spec
from vitrail.errors import MissingTensorError, OptionError
from vitrail.models.loading import Loaded, Sample
from vitrail.targets import Target


@dataclass(frozen=True)
class Plan:
    """What to compute for every sample.

    Args:
        lenient: leave out a method that this model cannot give, since nobody asked for it by name.
    """

    specs: Sequence[Spec]
    targets: Sequence[Target | None]
    preset: str
    lenient: bool = False


@dataclass(frozen=True)
class Row:
    """One target, explained by every method."""

    title: str
    attributions: list[Attribution]


def explain_sample(loaded: Loaded, sample: Sample, plan: Plan) -> list[Row]:
    """Every method for every target."""
    rows = []
    for target in plan.targets:
        found = _attributions(loaded, sample, plan, target)
        rows.append(Row(title(loaded, found[0].target), found))
    return rows


def _attributions(loaded: Loaded, sample: Sample, plan: Plan, target: Target | None) -> list[Attribution]:
    try:
        return list(vitrail.compare(loaded.model, sample.inputs, plan.specs, target, plan.preset))
    except (MissingTensorError, OptionError):
        if not plan.lenient:
            raise
    return _those_that_work(loaded, sample, plan, target)


def _those_that_work(loaded: Loaded, sample: Sample, plan: Plan, target: Target | None) -> list[Attribution]:
    found: list[Attribution] = []
    reason: Exception | None = None
    for spec in plan.specs:
        try:
            found += vitrail.compare(loaded.model, sample.inputs, [spec], target, plan.preset)
        except (MissingTensorError, OptionError) as error:
            note(f"left out {spec[0]}: {error}")
            reason = error
    if not found and reason is not None:
        raise reason
    return found
