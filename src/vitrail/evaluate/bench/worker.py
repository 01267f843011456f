"""The worker that measures a unit, and the engines that hand units to workers.

One recording of a batch serves all methods, whose maps are then measured. A worker can be sent to another machine. An
engine takes units and a worker, and yields finished units in the order of completion. Only the driver, which reads what
an engine yields, writes results. So an engine may lose a worker and repeat a unit.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vitrail import targets
from vitrail.api.explainer import Explainer
from vitrail.attribution import Attribution
from vitrail.errors import EngineError, InputError, MissingExtraError, OptionError, VitrailError, one_line, suggest
from vitrail.evaluate import metrics
from vitrail.evaluate.bench.measure import Classes, Measure, Shown
from vitrail.evaluate.bench.measures import MEASURES
from vitrail.evaluate.bench.opened import RunSettings, hash_of, open_data, open_model, own_generators
from vitrail.evaluate.bench.pictures import Pictures, beside_guide
from vitrail.evaluate.bench.plan import Finished, Measurement, ResultRow, Trial, Unit
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.bench.texts import READERS, Batch, Contexts, Texts, explained_contexts, outcomes
from vitrail.storage import is_finite

Work = Callable[[Unit], Finished]
Engine = Callable[[Iterable[Unit], Work], Generator[Finished, None, None]]


@dataclass(frozen=True)
class Cluster:
    """Where an engine of several workers finds them.

    Args:
        address: of a cluster that is running; without it one is started on this machine and ends with the run.
        workers: how many at most; without it one a CPU, or, if the plan's device is cuda, as many as the GPUs hold.
        gpu_share: the part of a GPU that a worker takes, above 0 and at most 1.
    """

    address: str | None = None
    workers: int | None = None
    gpu_share: float = 1.0

    def __post_init__(self) -> None:
        if (self.workers is not None and self.workers < 1) or not 0 < self.gpu_share <= 1:
            raise OptionError(
                f"workers={self.workers}, gpu_share={self.gpu_share}: workers must be at least 1, gpu_share above 0 "
                "and at most 1."
            )


HERE = Cluster()


def local(units: Iterable[Unit], worker: Work) -> Generator[Finished, None, None]:
    """One unit after the other, in this process. Units are asked for only when they are needed."""
    yield from map(worker, units)


def _local(cluster: Cluster) -> Engine:
    if cluster != HERE:
        raise OptionError(
            "the engine local has no workers elsewhere: leave out the options of ray, or use --engine ray."
        )
    return local


def _ray(cluster: Cluster) -> Engine:
    try:
        from vitrail.evaluate.bench.engines_ray import ray_engine
    except ImportError as error:
        raise MissingExtraError("--engine ray needs the package ray: pip install 'vitrail[ray]'") from error
    return partial(ray_engine, cluster=cluster)


ENGINES: dict[str, Callable[[Cluster], Engine]] = {"local": _local, "ray": _ray}


def find_engine(name: str, cluster: Cluster = HERE) -> Engine:
    """The engine of this name; its library is imported only now."""
    if name not in ENGINES:
        raise OptionError(f"there is no engine {name!r}. {suggest(name, ENGINES)}")
    return ENGINES[name](cluster)


@dataclass(eq=False)
class BatchRequest:
    """A batch to be explained for some classes: methods are asked for first, explain it all at once, and are then read.

    Args:
        trials: the methods, and whether each also explains the model with randomised weights.
        found: what each method shows, or why it cannot.
        cascades: what it shows while the weights are randomised, or why it cannot.
    """

    batch: Batch
    classes: Classes
    trials: dict[Trial, bool] = field(default_factory=lambda: defaultdict(bool))
    found: dict[Trial, Shown | str] = field(default_factory=dict)
    cascades: dict[Trial, list[tuple[str, Tensor]] | str] = field(default_factory=dict)

    def make(self, settings: RunSettings) -> None:
        """Everything that was asked for."""
        self.found.update(explained(self.batch, list(self.trials), self.classes, settings.preset))
        left = [trial for trial, randomised in self.trials.items() if randomised]
        self.cascades.update({trial: [] for trial in left})
        parts = metrics.randomised(self.batch.opened.loaded.model, seed=settings.seed) if left else ()
        for part, copy in parts:
            made = explained(self.batch, left, self.classes, settings.preset, copy)
            for trial, shown in made.items():
                steps = self.cascades[trial]
                if isinstance(shown, Shown) and isinstance(steps, list):
                    steps.append((part, shown.scores))
                else:
                    self.cascades[trial] = f"{part} randomised: {shown}"
                    left.remove(trial)
            if not left:
                return


def explained(
    batch: Batch, trials: Sequence[Trial], classes: Classes, preset: str, model: nn.Module | None = None
) -> dict[Trial, Shown | str]:
    """What each method shows, or why it cannot; all from one recording if none of them fails."""
    explainer = batch.opened.explainer if model is None else Explainer(model)
    model = batch.opened.loaded.model if model is None else model
    if isinstance(batch, Contexts):
        found = explained_contexts(batch, trials, preset, model)
        return {trial: _rows_shown(trial, rows) for trial, rows in zip(trials, found, strict=True)}
    target = targets.answer_span() if not classes else targets.logit(classes)
    specs = [(trial.name, {"preset": preset, **trial.options}) for trial in trials]
    found = outcomes(explainer.compare(batch.inputs, specs, target))
    return {trial: _shown(batch, trial, one, classes) for trial, one in zip(trials, found, strict=True)}


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

    def __call__(self, unit: Unit) -> Finished:
        """Everything that a unit asks to be measured."""
        try:
            with own_generators(device=self.settings.device, seed=self.settings.seed):
                return Finished(unit, tuple(_Bench(self.settings, unit).rows()))
        except torch.OutOfMemoryError as error:
            raise OptionError(
                f"{len(unit.keys)} examples of {unit.data.name} do not fit into the memory of {self.settings.device}: "
                "choose a smaller batch (--batch, --forward-batch). What is finished is kept."
            ) from error


class _Bench:
    """One unit at work: batches, explanations and reasons, each made once."""

    def __init__(self, settings: RunSettings, unit: Unit) -> None:
        self.settings, self.unit = settings, unit
        self.opened = open_model(unit.model, settings.device)
        self.examples, self.broken = self._read()
        self.batches: dict[str, tuple[Batch, dict[str, str]]] = {}
        self.parts: dict[tuple[Batch, tuple[int, ...]], Batch] = {}
        self.requests: dict[tuple[Batch, Classes], BatchRequest] = {}

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

    def rows(self) -> list[ResultRow]:
        for job in self.unit.jobs:
            self._ask(job)
        for request in self.requests.values():
            request.make(self.settings)
        return [row for job in self.unit.jobs for row in self._job(job)]

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

    def _request(self, batch: Batch, classes: Classes) -> BatchRequest:
        """The one request for these classes of a batch, which `_some` gives as the same object each time."""
        return self.requests.setdefault((batch, classes), BatchRequest(batch, classes))

    def _ask(self, job: Measurement) -> None:
        """Note what a job wants explained."""
        batch, _ = self._part(job)
        if not batch.keys:
            return
        classes = self._classes(batch, job.protocol)
        for measure in (MEASURES[name] for name in job.metrics):
            self._request(batch, classes).trials[job.trial] |= measure.randomised
            for some, _, others in self._rounds(measure, batch, classes):
                self._request(some, others).trials[job.trial] |= False

    def _job(self, job: Measurement) -> list[ResultRow]:
        """The results of a job, from what was explained."""
        batch, reasons = self._part(job)
        rows = [ResultRow(job.run, key, metric, None, why) for key, why in reasons.items() for metric in job.metrics]
        for metric in job.metrics if batch.keys else ():
            rows += measured(job, metric, batch, self._shown(job, MEASURES[metric], batch))
        return rows

    def _shown(self, job: Measurement, measure: Measure, batch: Batch) -> Shown | str:
        """Everything that a metric needs, or the reason why something is missing."""
        classes = self._classes(batch, job.protocol)
        request = self._request(batch, classes)
        shown = request.found[job.trial]
        if isinstance(shown, str):
            return shown
        others: list[dict[int, Shown]] = [{} for _ in batch.keys]
        for some, rows, wanted in self._rounds(measure, batch, classes):
            other = self._request(some, wanted).found[job.trial]
            if isinstance(other, str):
                return other
            for place, row in enumerate(rows):
                others[row][wanted[place]] = other.take([place])
        cascade = request.cascades[job.trial] if measure.randomised else []
        return cascade if isinstance(cascade, str) else replace(shown, others=tuple(others), cascade=cascade)


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
