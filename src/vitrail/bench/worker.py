"""The worker: one recording of a batch serves all methods, whose maps are then measured. It can be sent elsewhere."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vitrail import targets
from vitrail.attribution import Attribution
from vitrail.bench.batches import READERS, Batch
from vitrail.bench.measures import MEASURES
from vitrail.bench.opened import open_data, open_model
from vitrail.bench.plan import Trial
from vitrail.bench.protocols import Protocol
from vitrail.bench.settings import Settings
from vitrail.bench.shown import Shown
from vitrail.bench.texts import Texts
from vitrail.bench.units import Finished, Job, Row, Unit
from vitrail.errors import InputError, OptionError, VitrailError
from vitrail.explain import compare

Classes = tuple[int, ...]


@dataclass(frozen=True)
class Worker:
    """Does units; the model it used last stays loaded. Holds plain data only, so it can be pickled."""

    settings: Settings

    def __call__(self, unit: Unit) -> Finished:
        """Everything that a unit asks to be measured."""
        started = time.perf_counter()
        torch.manual_seed(self.settings.seed)
        try:
            rows = _Bench(self.settings, unit).rows()
        except torch.OutOfMemoryError as error:
            raise OptionError(
                f"{len(unit.keys)} examples of {unit.data.name} do not fit into the memory of {self.settings.device}: "
                "choose a smaller batch (--batch, --forward-batch). What is finished is kept."
            ) from error
        return Finished(unit, tuple(rows), time.perf_counter() - started)


class _Bench:
    """One unit at work: batches, explanations and reasons, each made once."""

    def __init__(self, settings: Settings, unit: Unit) -> None:
        self.settings, self.unit = settings, unit
        self.opened = open_model(unit.model, settings.device)
        self.examples, self.broken = self._read()
        self.batches: dict[str, tuple[Batch, dict[str, str]]] = {}
        self.parts: dict[tuple[str, tuple[str, ...]], Batch] = {}
        self.found: dict[tuple[Any, ...], Shown | str] = {}

    def _read(self) -> tuple[list[Any], dict[str, str]]:
        dataset = open_data(self.unit.data)
        good, broken = [], {}
        for key, number in zip(self.unit.keys, self.unit.numbers, strict=True):
            try:
                good.append(dataset.read(number))
            except InputError as error:
                broken[key] = str(error)
        return good, broken

    def rows(self) -> list[Row]:
        self._explain_all()
        return [row for job in self.unit.jobs for row in self._job(job)]

    def _batch(self, protocol: Protocol) -> tuple[Batch, dict[str, str]]:
        if protocol.view not in self.batches:
            batch, broken = READERS[self.opened.kind](self.opened, self.settings, self.examples, protocol.view)
            self.batches[protocol.view] = batch, {**self.broken, **broken}
        return self.batches[protocol.view]

    def _part(self, job: Job) -> tuple[Batch, dict[str, str]]:
        """The job's examples that can be explained, and why the others cannot."""
        whole, broken = self._batch(job.protocol)
        reasons = {key: reason for key, reason in broken.items() if key in job.keys}
        if job.protocol.target_of(self.opened.kind) == "label" and self.opened.kind != "question":
            for key, label in zip(whole.keys, whole.labels, strict=True):
                if key in job.keys and not (label is not None and 0 <= label < self.opened.loaded.classes):
                    reasons[key] = f"{key}: the label {label} is no class of {self.opened.loaded.name}."
        wanted = tuple(key for key in whole.keys if key in job.keys and key not in reasons)
        place = (job.protocol.view, wanted)
        if place not in self.parts:
            same = wanted == whole.keys
            self.parts[place] = whole if same else whole.take([whole.keys.index(key) for key in wanted])
        return self.parts[place], reasons

    def _classes(self, batch: Batch, protocol: Protocol) -> Classes:
        """The explained class of each example; nothing for questions, whose answer is explained."""
        if self.opened.kind == "question":
            return ()
        if protocol.target_of(self.opened.kind) == "label":
            return tuple(label for label in batch.labels if label is not None)
        return tuple(batch.logits.argmax(dim=1).tolist())

    def _explain_all(self) -> None:
        """Every explanation that some job needs, methods with the same examples and classes together."""
        wanted: dict[tuple[str, tuple[str, ...], Classes], tuple[Batch, dict[str, Trial]]] = {}
        for job in self.unit.jobs:
            batch, _ = self._part(job)
            if not batch.keys:
                continue
            classes = self._classes(batch, job.protocol)
            several = any(MEASURES[name].classes for name in job.metrics)
            for some in [classes, *([other_classes(classes)] if several else [])]:
                _, trials = wanted.setdefault((job.protocol.view, batch.keys, some), (batch, {}))
                trials[trial_id(job.trial)] = job.trial
        for (view, keys, classes), (batch, trials) in wanted.items():
            for name, shown in explained(batch, list(trials.values()), classes, self.settings.preset).items():
                self.found[(view, keys, classes, name)] = shown

    def _job(self, job: Job) -> list[Row]:
        batch, reasons = self._part(job)
        skipped = [Row(job.run, key, metric, None, why) for key, why in reasons.items() for metric in job.metrics]
        if not batch.keys:
            return skipped
        classes = self._classes(batch, job.protocol)
        place = (job.protocol.view, batch.keys)
        shown = self.found[(*place, classes, trial_id(job.trial))]
        for metric in job.metrics:
            given = shown
            if MEASURES[metric].classes and isinstance(shown, Shown):
                other = self.found[(*place, other_classes(classes), trial_id(job.trial))]
                given = other if isinstance(other, str) else Shown(**{**vars(shown), "other": other.scores})
            skipped += measured(job, metric, batch, given)
        return skipped


def measured(job: Job, metric: str, batch: Batch, shown: Shown | str) -> list[Row]:
    """One metric of one method on a batch; examples that cannot be measured are skipped with the reason."""
    if isinstance(shown, str):
        return [Row(job.run, key, metric, None, shown) for key in batch.keys]
    try:
        values = MEASURES[metric].run(batch, shown, job.protocol)
        return [Row(job.run, key, metric, value) for key, value in zip(batch.keys, values, strict=True)]
    except InputError as error:
        if len(batch.keys) == 1:
            return [Row(job.run, batch.keys[0], metric, None, _one_line(error))]
    return [
        row
        for number in range(len(batch.keys))
        for row in measured(job, metric, batch.take([number]), shown.take([number]))
    ]


def explained(batch: Batch, trials: Sequence[Trial], classes: Classes, preset: str) -> dict[str, Shown | str]:
    """What each method shows, or why it cannot; all from one recording if none of them fails."""
    target = targets.answer_span() if not classes else targets.logit(classes)
    try:
        together = compare(
            batch.opened.loaded.model, batch.inputs, [(t.name, t.options) for t in trials], target, preset
        )
        return {trial_id(t): _shown(batch, a, classes) for t, a in zip(trials, together, strict=True)}
    except VitrailError as error:
        if len(trials) == 1:
            return {trial_id(trials[0]): f"{trials[0].name}: {_one_line(error)}"}
    alone: dict[str, Shown | str] = {}
    for trial in trials:
        alone |= explained(batch, [trial], classes, preset)
    return alone


def _shown(batch: Batch, attribution: Attribution, classes: Classes) -> Shown:
    scores = attribution.scores.detach()
    if isinstance(batch, Texts):
        return Shown(scores, classes)
    if attribution.grid is None:
        raise InputError(f"{attribution.method} gives no grid of patches for this model.")
    return Shown(scores, classes, scores.reshape(-1, *attribution.grid), attribution.pixels)


def other_classes(classes: Classes) -> Classes:
    """For each class another one, as AttCAT's code chooses it: the one before, 1 for class 0."""
    return tuple(c - 1 if c > 0 else 1 for c in classes)


def trial_id(trial: Trial) -> str:
    """What tells two methods of a plan apart."""
    return f"{trial.name}{sorted(trial.options.items())}"


def _one_line(error: Mapping[str, Any] | BaseException) -> str:
    return " ".join(str(error).split())
