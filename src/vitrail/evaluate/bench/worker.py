"""The worker that measures a unit: a batch of examples, by some methods, under some protocols.

One recording of a batch serves all methods, whose maps are then measured. A worker can be sent to another machine.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vitrail import targets
from vitrail.api.explainer import Explainer
from vitrail.attribution import Attribution
from vitrail.errors import EngineError, InputError, OptionError, VitrailError, one_line
from vitrail.evaluate import metrics
from vitrail.evaluate.bench import priors
from vitrail.evaluate.bench.measure import Classes, Measure, Shown
from vitrail.evaluate.bench.measures import MEASURES
from vitrail.evaluate.bench.opened import RunSettings, hash_of, open_data, open_model, own_generators
from vitrail.evaluate.bench.pictures import Pictures, beside_guide
from vitrail.evaluate.bench.plan import PRIORS, Finished, Measurement, ResultRow, Trial, Unit
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.bench.texts import READERS, Batch, Contexts, Texts, explained_contexts, outcomes
from vitrail.storage import is_finite

Cascade = list[tuple[str, Tensor]] | str
"""The scores of one method while the weights are randomised, with the part that was last, or why it has none."""


def explained(
    batch: Batch, trials: Sequence[Trial], classes: Classes, preset: str, model: nn.Module | None = None
) -> dict[Trial, Shown | str]:
    """Return the result of each method, or why it has none; all from one recording if none of them fails."""
    explainer = batch.opened.explainer if model is None else Explainer(model)
    model = batch.opened.loaded.model if model is None else model
    if isinstance(batch, Contexts):
        found = explained_contexts(batch, trials, preset, model)
        return {trial: _rows_shown(trial, rows) for trial, rows in zip(trials, found, strict=True)}
    target = targets.answer_span() if not classes else targets.logit(classes)
    methods = [trial for trial in trials if trial.name not in PRIORS]
    specs = [(trial.name, {"preset": preset, **trial.options}) for trial in methods]
    found = outcomes(explainer.compare(batch.inputs, specs, target)) if specs else []
    made = {trial: _shown(batch, trial, one, classes) for trial, one in zip(methods, found, strict=True)}
    return {trial: made.get(trial) or _prior_shown(batch, trial, classes) for trial in trials}


def _prior_shown(batch: Pictures | Texts, trial: Trial, classes: Classes) -> Shown | str:
    """Return the map of a prior, or why it has none."""
    try:
        return priors.shown(trial.name, batch, classes)
    except InputError as error:
        return _reason(trial, error)


def randomised(batch: Batch, trials: Sequence[Trial], classes: Classes, settings: RunSettings) -> dict[Trial, Cascade]:
    """Return the results of each method while the weights are randomised part by part, from the output down."""
    found: dict[Trial, Cascade] = {trial: [] for trial in trials}
    for part, copy in metrics.randomised(batch.opened.loaded.model, seed=settings.seed):
        left = [trial for trial, steps in found.items() if not isinstance(steps, str)]
        if not left:
            break
        for trial, shown in explained(batch, left, classes, settings.preset, copy).items():
            steps = found[trial]
            if isinstance(shown, Shown) and isinstance(steps, list):
                steps.append((part, shown.scores))
            else:
                found[trial] = f"{part} randomised: {shown}"
    return found


def _reason(trial: Trial, error: BaseException) -> str:
    return f"{trial.name}: {one_line(error)}"


def _rows_shown(trial: Trial, rows: Sequence[Tensor | Exception]) -> Shown:
    """Scores of texts of several lengths, zeros after their ends, and why some have none."""
    scores = pad_sequence([torch.zeros(1) if isinstance(one, Exception) else one for one in rows], batch_first=True)
    return Shown(scores, (), failed=tuple(_reason(trial, one) if isinstance(one, Exception) else None for one in rows))


def _shown(batch: Batch, trial: Trial, found: Attribution | VitrailError, classes: Classes) -> Shown | str:
    if isinstance(found, VitrailError):
        return _reason(trial, found)
    scores = found.scores.detach()
    if isinstance(batch, Texts):
        return Shown(scores, classes)
    if found.grid is None:
        return f"{trial.name}: {found.method} gives no grid of patches for this model."
    return Shown(scores, classes, scores.reshape(-1, *found.grid), found.pixels)


@dataclass(frozen=True)
class Worker:
    """Does units; the model it used last stays loaded. Holds plain data only, so it can be pickled."""

    settings: RunSettings

    @property
    def on_cuda(self) -> bool:
        """True if it needs a GPU."""
        return self.settings.device.partition(":")[0] == "cuda"

    def __call__(self, unit: Unit) -> Finished:
        """Everything that a unit asks to be measured."""
        try:
            with own_generators(device=self.settings.device, seed=self.settings.seed):
                bench = _Bench(self.settings, unit)
                return Finished(unit, tuple(row for job in unit.jobs for row in bench.rows(job)))
        except torch.OutOfMemoryError as error:
            raise OptionError(
                f"{len(unit.keys)} examples of {unit.data.name} do not fit into the memory of {self.settings.device}: "
                "choose a smaller batch (--batch, --forward-batch). What is finished is kept."
            ) from error


class _Bench:
    """One unit at work. Batches, their parts and what is shown of them are made once, when they are first needed."""

    def __init__(self, settings: RunSettings, unit: Unit) -> None:
        self.settings, self.unit = settings, unit
        self.opened = open_model(unit.model, settings.device)
        self.examples, self.broken = self._read()
        self.batches: dict[str, tuple[Batch, dict[str, str]]] = {}
        self.parts: dict[tuple[Batch, tuple[int, ...]], Batch] = {}
        self.shown: dict[tuple[Batch, Classes], dict[Trial, Shown | str]] = {}
        self.cascades: dict[tuple[Batch, Classes], dict[Trial, Cascade]] = {}

    def _read(self) -> tuple[list[Any], dict[str, str]]:
        """The examples, and why some cannot be read; raises where one is not what the driver read."""
        unit, good, broken = self.unit, [], {}
        dataset = open_data(unit.data)
        for key, number, expected in zip(unit.keys, unit.numbers, unit.contents, strict=True):
            if hash_of(dataset, number) != expected:  # its results would be stored under another identity
                raise EngineError(
                    f"{key} of {unit.data.name} is not what the driver read: the data changed during the run, "
                    f"or {unit.data.path or 'the package'} holds other data on this machine. What is finished is kept; "
                    "run the same command again once the data stays as it is."
                )
            try:
                good.append(dataset.read(number))
            except InputError as error:
                broken[key] = str(error)
        return good, broken

    def rows(self, job: Measurement) -> list[ResultRow]:
        """The results of one method under one protocol."""
        batch, reasons = self._part(job)
        rows = [ResultRow(job.run, key, metric, None, why) for key, why in reasons.items() for metric in job.metrics]
        for metric in job.metrics if batch.keys else ():
            rows += measured(job, metric, batch, self._needed(job, MEASURES[metric], batch))
        return rows

    def _needed(self, job: Measurement, measure: Measure, batch: Batch) -> Shown | str:
        """Everything that a metric needs, or the reason why something is missing."""
        classes = self._classes(batch, job.protocol)
        shown = self._explain(batch, classes)[job.trial]
        if isinstance(shown, str):
            return shown
        others: list[dict[int, Shown]] = [{} for _ in batch.keys]
        for some, rows, wanted in self._rounds(measure, batch, classes):
            other = self._explain(some, wanted)[job.trial]
            if isinstance(other, str):
                return other
            for place, row in enumerate(rows):
                others[row][wanted[place]] = other.take([place])
        cascade = self._randomise(batch, classes)[job.trial] if measure.randomised else []
        return cascade if isinstance(cascade, str) else replace(shown, others=tuple(others), cascade=cascade)

    def _explain(self, batch: Batch, classes: Classes) -> dict[Trial, Shown | str]:
        """Return the result of each method of the unit for some classes of a batch."""
        place = (batch, classes)
        if place not in self.shown:
            trials = self._trials(batch, lambda job: True)
            self.shown[place] = explained(batch, trials, classes, self.settings.preset)
        return self.shown[place]

    def _randomise(self, batch: Batch, classes: Classes) -> dict[Trial, Cascade]:
        """Return the results of each method that is tested with randomised weights, while they are randomised."""
        place = (batch, classes)
        if place not in self.cascades:
            trials = self._trials(batch, lambda job: any(MEASURES[name].randomised for name in job.metrics))
            self.cascades[place] = randomised(batch, trials, classes, self.settings)
        return self.cascades[place]

    def _trials(self, batch: Batch, fits: Callable[[Measurement], bool]) -> list[Trial]:
        """The methods that are measured on these examples, by jobs that fit."""
        keys = set(batch.keys)
        return list(dict.fromkeys(job.trial for job in self.unit.jobs if keys <= set(job.keys) and fits(job)))

    def _batch(self, protocol: Protocol) -> tuple[Batch, dict[str, str]]:
        if protocol.shown_as not in self.batches:
            batch, broken = READERS[self.opened.kind](self.opened, self.settings, self.examples, protocol)
            if protocol.guide and isinstance(batch, Pictures):
                batch, same = beside_guide(batch, protocol.guide)
                broken = {**broken, **same}
            self.batches[protocol.shown_as] = batch, {**self.broken, **broken}
        return self.batches[protocol.shown_as]

    def _part(self, job: Measurement) -> tuple[Batch, dict[str, str]]:
        """The job's examples that can be explained, and why the others cannot."""
        whole, broken = self._batch(job.protocol)
        reasons = {key: reason for key, reason in broken.items() if key in job.keys}
        labelled = self.opened.kind != "question" and job.protocol.target_of(self.opened.kind) == "label"
        if labelled and not isinstance(whole, Contexts):
            for key, label in zip(whole.keys, whole.labels, strict=True):
                if key in job.keys and label not in range(self.opened.loaded.classes):
                    reasons[key] = f"{key}: the label {label} is no class of {self.opened.loaded.name}."
        rows = [i for i, key in enumerate(whole.keys) if key in job.keys and key not in reasons]
        return self._some(whole, rows), reasons

    def _some(self, batch: Batch, rows: Sequence[int]) -> Batch:
        """Some examples of a batch, the same object each time, since it keeps what was computed of it."""
        place = (batch, tuple(rows))
        if place not in self.parts:
            self.parts[place] = batch if len(rows) == len(batch.keys) else batch.take(rows)
        return self.parts[place]

    def _classes(self, batch: Batch, protocol: Protocol) -> Classes:
        """The explained class of each example; nothing for questions and contexts, whose answer is explained."""
        if isinstance(batch, Contexts) or self.opened.kind == "question":
            return ()
        if protocol.target_of(self.opened.kind) == "label":
            return tuple(label for label in batch.labels if label is not None)
        return tuple(batch.logits.argmax(dim=1).tolist())

    def _rounds(self, measure: Measure, batch: Batch, classes: Classes) -> Iterator[tuple[Batch, list[int], Classes]]:
        """The other classes that a metric wants explained: the first of each example, then the second, and so on."""
        further = measure.further(batch, classes) if measure.further else ()
        for turn in range(max(map(len, further), default=0)):
            rows = [i for i, some in enumerate(further) if len(some) > turn]
            yield self._some(batch, rows), rows, tuple(further[i][turn] for i in rows)


def measured(job: Measurement, metric: str, batch: Batch, shown: Shown | str) -> list[ResultRow]:
    """One metric of one method on a batch; examples that cannot be measured are skipped with the reason."""
    if isinstance(shown, str):
        return [ResultRow(job.run, key, metric, None, shown) for key in batch.keys]
    try:
        values = MEASURES[metric].run(batch, shown, job.protocol)
        rows = []
        for key, value in zip(batch.keys, values, strict=True):
            why = None if is_finite(value) else f"{key}: {metric} is NaN or infinite."
            rows.append(ResultRow(job.run, key, metric, None if why else value, why))
        return rows
    except InputError as error:
        if len(batch.keys) == 1:
            return [ResultRow(job.run, batch.keys[0], metric, None, one_line(error))]
    return [
        row
        for number in range(len(batch.keys))
        for row in measured(job, metric, batch.take([number]), shown.take([number]))
    ]
