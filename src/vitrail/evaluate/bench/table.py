"""Tables of results, with what decides their numbers and what was left out."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from vitrail.errors import InputError
from vitrail.evaluate.bench.agreement import agreement
from vitrail.evaluate.bench.bootstrap import RESAMPLES, Estimate, estimates
from vitrail.evaluate.bench.column import Column
from vitrail.evaluate.bench.groups import Group, read_groups
from vitrail.evaluate.bench.store import reading

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
    rows: tuple[tuple[str, tuple[Estimate | None, ...]], ...]


def tables(path: str | Path, *, seed: int = 0, resamples: int = RESAMPLES) -> list[Table]:
    """Every table of a results file.

    Args:
        path: the results file.
        seed: of the bootstrap.
        resamples: of the bootstrap; more make the intervals smoother.
    """
    with reading(Path(path)) as store:
        groups = read_groups(store)
        made = [table for group in groups for table in tabulate(group, seed=seed, resamples=resamples)]
    if not made:
        raise InputError(f"{path} holds no results yet.")
    return made


def tabulate(group: Group, *, seed: int = 0, resamples: int = RESAMPLES) -> list[Table]:
    """The table of a group, and one of how far its methods agree where that was measured."""
    made = []
    if group.columns:
        by_column = _estimates(group, seed, resamples)
        labels = [method.label for method in group.methods]
        rows = tuple((label, tuple(column[i] for column in by_column)) for i, label in enumerate(labels))
        made.append(Table(group.about, group.title, notes(group), tuple(group.columns), rows))
    columns, rows = agreement(group, seed=seed, resamples=resamples)
    if columns:
        made.append(
            Table(group.about, f"{group.title}: how far methods agree", notes(group, alike=True), columns, rows)
        )
    return made


def _estimates(group: Group, seed: int, resamples: int) -> list[list[Estimate | None]]:
    """Column by column; those that are made of the same features read them once."""
    if not group.keys:
        return [[None] * len(group.methods)] * len(group.columns)
    made = []
    for _, columns in groupby(group.columns, key=lambda column: (column.needs, column.features)):
        first, *rest = columns
        samples = group.samples(first)
        made += [estimates(column, samples, seed=seed, resamples=resamples) for column in (first, *rest)]
    return made


def notes(group: Group, *, alike: bool = False) -> tuple[str, ...]:
    """What decides the numbers: protocol, model, versions; and what was left out.

    Args:
        alike: for the table of how far methods agree.
    """
    about, protocol = group.about, group.protocol
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    said = "rank correlation of the maps of two methods" if alike else conventions(group)
    paired = (
        "."
        if alike
        else f"; ~ not told from the best (paired bootstrap on shared examples, p >= {SIGNIFICANT:g}). The best is "
        "measured on nearly all examples."
    )
    lines = [
        f"Protocol {protocol.name}: {said}; explained class {protocol.target_of(about['data']['kind'])}.",
        f"Model {about['model']['hash']}, data {about['data']['content']}; {about['device']}, perturbed passes in "
        f"{about['dtype']}; {versions}.",
        f"Examples: {len(group.keys)}. In brackets 95 % bootstrap intervals over examples{paired}",
    ]
    return (*lines, *_skipped(group))


def conventions(group: Group) -> str:
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
        "class_sensitivity": "rank correlation with the map of the likeliest other class",
    }
    return "; ".join(text for name, text in said.items() if name in needs) or "plain"


def _skipped(group: Group) -> list[str]:
    """How many results are missing, and the first reasons."""
    reasons: dict[str, int] = {}
    for method in group.methods:
        for reason, count in group.store.reasons(method.run).items():
            reasons[reason] = reasons.get(reason, 0) + count
    if not reasons:
        return []
    examples = set().union(*(group.store.examples(method.run, skipped=True) for method in group.methods))
    count = sum(reasons.values())
    shown = [f"{reason} ({times} times)" for reason, times in sorted(reasons.items())[:REASONS]]
    more = f" and {len(reasons) - REASONS} more reasons" if len(reasons) > REASONS else ""
    return [f"Skipped: {count} results of {len(examples)} examples: {'; '.join(shown)}{more}."]
