"""Run a plan: identify its runs, give out the units that have no results yet, and store the results.

Models, data sets, protocols and methods that do not fit each other are left out; one that fits no other is an error.
Only the driver writes to the results file.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from vitrail.attribution import versions
from vitrail.capture.recording.forward import find_body
from vitrail.capture.shadow import shadow
from vitrail.errors import OptionError, as_path
from vitrail.evaluate.bench import priors
from vitrail.evaluate.bench.engines import Engine, local
from vitrail.evaluate.bench.measures import MEASURES, find_measure
from vitrail.evaluate.bench.opened import (
    Opened,
    RunSettings,
    find_entry,
    forget,
    hash_of,
    open_data,
    open_model,
    set_hash,
    setup_hash,
    weights_hash,
)
from vitrail.evaluate.bench.plan import (
    ABLATIONS,
    DTYPES,
    PRIORS_OF,
    DataSpec,
    Measurement,
    ModelSpec,
    Plan,
    Trial,
    Unit,
)
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.bench.store import About, Store, identity, writing
from vitrail.evaluate.bench.worker import Worker
from vitrail.evaluate.data.examples import Dataset
from vitrail.evaluate.data.segmented import VOC
from vitrail.methods import METHODS, find_method
from vitrail.methods.options import progress_bar
from vitrail.models.inputs import read_inputs

FURTHER_PACKAGES = ("numpy", "scipy", "pillow", "tokenizers", "torchvision")
"""Beside those of every result: what decodes and resizes pictures, cuts texts into tokens and computes metrics."""


def check_pairs(plan: Plan, device: str) -> list[tuple[ModelSpec, DataSpec]]:
    """The models with the data sets that fit them; refuses a model, data set, protocol or method that fits no other."""
    kinds = {model: open_model(model, device).kind for model in plan.models}
    pairs = [(m, d) for m in plan.models for d in plan.data if kinds[m] == find_entry(d.name).kind]
    for model in plan.models:
        if not any(m == model for m, _ in pairs):
            raise OptionError(f"{model.name} reads {kinds[model]} data, but the data here is {_described(plan.data)}.")
    for spec in plan.data:
        if not any(d == spec for _, d in pairs):
            raise OptionError(f"the data here is {_described([spec])}, which no model of the plan reads.")
    for protocol in plan.measured():
        if not any(metrics_for(protocol, spec) for spec in plan.data):
            labels = any(protocol.target_of(find_entry(spec.name).kind) == "label" for spec in plan.data)
            raise OptionError(
                f"protocol {protocol.name} measures {', '.join(protocol.metrics)}"
                f"{' and explains the label' if labels else ''}, but the data here is {_described(plan.data)}."
            )
    _check_trials(plan, set(kinds.values()))
    return pairs


def _check_trials(plan: Plan, kinds: Set[str]) -> None:
    """Refuse a method that explains no such data, and options it does not have."""
    for trial in plan.trials:
        fitting = [kind for kind in kinds if applies(trial, kind, plan.preset)]
        if trial.named and not fitting:
            find_method(trial.name, "image" if "image" in kinds else "text")  # raises
        for kind in fitting:
            trial.about(plan.preset, kind)  # raises


def left_out(plan: Plan) -> tuple[str, ...]:
    """Methods of `all` or `usual` that cannot explain the data, or lack the preset."""
    kinds = {find_entry(spec.name).kind for spec in plan.data}
    unused = (t.name for t in plan.trials if not t.named and not any(applies(t, kind, plan.preset) for kind in kinds))
    return tuple(dict.fromkeys(unused))


def _described(specs: Sequence[DataSpec]) -> str:
    """Data sets by name with what they hold: `pets (image with label, mask)`."""
    named = {spec.name: (find_entry(spec.name).kind, given(spec)) for spec in specs}
    return ", ".join(f"{name} ({kind} with {', '.join(has) or 'no labels'})" for name, (kind, has) in named.items())


def applies(trial: Trial, kind: str, preset: str) -> bool:
    """Return True if a method explains this kind of data. One not named must have the preset and suit any model."""
    entry = METHODS[trial.name]
    fits = trial.named or (entry.models is None and preset in {"recommended", *entry.presets})
    return fits and ("image" if kind == "image" else "text") in entry.inputs


def given(spec: DataSpec) -> tuple[str, ...]:
    """The annotations of a data set; `voc classes` where its masks hold PASCAL VOC's classes."""
    more = ("voc classes",) if open_data(spec).mask_classes == dict(enumerate(VOC)) else ()
    return (*find_entry(spec.name).gives, *more)


def metrics_for(protocol: Protocol, spec: DataSpec) -> tuple[str, ...]:
    """Return the metrics of a protocol that can be measured on a data set."""
    entry = find_entry(spec.name)
    labelled = entry.kind == "question" or protocol.target_of(entry.kind) != "label" or "label" in entry.gives
    fitting = [find_measure(name) for name in protocol.metrics]
    known = set(given(spec))
    return tuple(m.name for m in fitting if labelled and entry.kind in m.kinds and m.gives <= known)


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Args:
        done: examples that are finished, of all data sets and models together.
        fresh: those of them that this run computed.
        skipped: results that could not be computed, so far in this run.
        runs: the identities of the runs of this plan, known at the end.
        older: how many other runs of the same names the file holds, known at the end. They were made of another data
            content, model, setting or library version; they are kept, but not gone on with.
        changed: in which parts of their identity those differ.
    """

    done: int
    total: int
    fresh: int
    skipped: int
    what: str
    runs: frozenset[str] = frozenset()
    older: int = 0
    changed: tuple[str, ...] = ()


Watch = Callable[[Progress], None]


def bar_of_run() -> Watch:
    """Return a function that shows the progress of a run as a bar, on a terminal or below the cell of a notebook."""
    bar = progress_bar("bench")
    bar.mininterval = 0.0  # units are few and large

    def show(progress: Progress) -> None:
        bar.total = progress.total
        bar.set_description(progress.what, refresh=False)
        bar.update(progress.done - bar.n)
        if progress.done >= progress.total:
            bar.close()

    return show


def run(plan: Plan, path: str | Path, *, engine: Engine = local, watch: Watch | None = None) -> Progress:
    """Compute what the results file lacks, and say how much that was.

    Args:
        plan: what to run.
        path: the results file; it is made if it is not there, and gone on with if it is.
        engine: what runs the units.
        watch: is called after every unit; None shows a bar if the run takes long.
    """
    if not isinstance(plan, Plan):
        raise OptionError(f"a plan is a vitrail.bench.Plan or what read_plan gives, not {type(plan).__name__}.")
    watch = watch or bar_of_run()
    forget()
    here = plan.device if engine is local else "cpu"  # workers elsewhere may have a GPU that this machine lacks
    pairs = check_pairs(plan, here)
    settings = RunSettings(plan.device, DTYPES[plan.dtype], plan.forward_batch, plan.preset, plan.seed)
    progress = Progress(0, sum(len(_chosen(plan, spec)[1]) for _, spec in pairs), 0, 0, "")
    runs: set[str] = set()
    with (
        writing(as_path(path, "a results file")) as store,
        closing(engine(_units(plan, store, pairs, here, runs), Worker(settings))) as results,  # also after errors
    ):
        for finished in results:
            store.add(finished.rows)
            unit = finished.unit
            progress = replace(
                progress,
                done=progress.done + unit.skipped + len(unit.keys),
                fresh=progress.fresh + len(unit.keys),
                skipped=progress.skipped + sum(row.skipped is not None for row in finished.rows),
                what=f"{unit.model.name} · {unit.data.name}",
            )
            watch(progress)
        progress = _ended(progress, store, runs)
    watch(progress)
    return progress


def _ended(progress: Progress, store: Store, runs: Set[str]) -> Progress:
    """All examples are done, also those that were there already; and what else the file holds under the same names."""
    known = store.runs()
    mine = {_names(known[run]): known[run] for run in runs}
    older = [about for run, about in known.items() if run not in runs and _names(about) in mine and store.metrics(run)]
    changed = {part for about in older for part, x in mine[_names(about)].items() if about.get(part) != x}
    return replace(
        progress, done=progress.total, runs=frozenset(runs), older=len(older), changed=tuple(sorted(changed))
    )


def _names(about: About) -> tuple[str, str, str, str]:
    return about["model"]["name"], about["data"]["name"], about["protocol"]["name"], about["method"]["label"]


def _chosen(plan: Plan, spec: DataSpec) -> tuple[Dataset[Any], Dataset[Any]]:
    """All examples, and those the plan takes of them."""
    whole = open_data(spec)
    limit = spec.limit or plan.limit
    return whole, whole if limit is None else whole.spread(limit)


def _units(
    plan: Plan, store: Store, pairs: Sequence[tuple[ModelSpec, DataSpec]], here: str, runs: set[str]
) -> Iterator[Unit]:
    """The batches that lack results, made as they are asked for; notes the runs that they belong to."""
    passed = 0
    models, contents = cache(partial(_about_model, here)), cache(partial(_content, plan, store))
    for model, spec in pairs:
        _, chosen = _chosen(plan, spec)
        hashes, data = contents(spec)
        common = {
            "model": models(model),
            "data": data,
            "versions": versions(FURTHER_PACKAGES),
            "device": plan.device.partition(":")[0],
            "dtype": plan.dtype,
            "seed": plan.seed,
        }
        every = _measurements(plan, store, open_model(model, here), spec, common, chosen)
        runs.update(one.run for one in every)
        for start in range(0, len(chosen), plan.batch):
            part = chosen[start : start + plan.batch]
            asked = part.keys
            jobs = tuple(job for one in every if (job := _lacking(store, one, asked)) is not None)
            wanted = {key for job in jobs for key in job.keys}
            passed += len(asked) - len(wanted)
            if wanted:
                left = [pair for pair in zip(asked, part.order, strict=True) if pair[0] in wanted]
                keys, numbers = zip(*left, strict=True)
                yield Unit(model, spec, keys, numbers, jobs, passed, tuple(hashes[key] for key in keys))
                passed = 0


def _about_model(here: str, model: ModelSpec) -> About:
    """Return the name, architecture and hashes of a model for the identity of a run."""
    loaded = open_model(model, here).loaded
    hashes = {"hash": weights_hash(loaded.model), "setup": setup_hash(loaded)}
    return {"name": Path(model.name).name, "arch": model.arch, **hashes}


def _content(plan: Plan, store: Store, spec: DataSpec) -> tuple[dict[str, str], About]:
    """The hashes of the chosen examples, and what the data set is in the identity of a run."""
    whole, chosen = _chosen(plan, spec)
    kind, options = find_entry(spec.name).kind, dict(spec.options)
    about = {"name": spec.name, "kind": kind, "options": options, "set": set_hash(whole)}
    hashes = {key: hash_of(whole, number) for key, number in zip(chosen.keys, chosen.order, strict=True)}
    numbers = dict(zip(whole.keys, whole.order, strict=True))
    version = store.data_version(
        identity(about), hashes, lambda key: hash_of(whole, numbers[key]) if key in numbers else None
    )
    return hashes, {**about, "content": version}


def _lacking(store: Store, whole: Measurement, keys: Sequence[str]) -> Measurement | None:
    """Return the part of a measurement that has no results yet on these examples."""
    asked = [key for key in keys if key in whole.keys]
    done = store.done(whole.run, asked)
    metrics = tuple(metric for metric in whole.metrics if any((key, metric) not in done for key in asked))
    left = tuple(key for key in asked if any((key, metric) not in done for metric in metrics))
    return replace(whole, metrics=metrics, keys=left) if left else None


def _measurements(
    plan: Plan, store: Store, opened: Opened, spec: DataSpec, common: About, chosen: Dataset[Any]
) -> list[Measurement]:
    """Every method under every protocol on all its examples, each once, with the identity of its results."""
    found: dict[str, Measurement] = {}
    every = frozenset(chosen.keys)
    for protocol in plan.measured():
        metrics = metrics_for(protocol, spec)
        if not metrics:
            continue
        of_priors = priors.measures(metrics, MEASURES)
        asked = [(trial, metrics) for trial in _trials(plan, opened)]
        asked += [(Trial(name), of_priors) for name in PRIORS_OF[opened.kind] if of_priors]
        for trial, wanted in asked:
            method = trial.about(plan.preset, opened.kind)
            run = store.add_run({**common, "protocol": protocol.table(), "method": method})
            keys = every if trial.subset is None else frozenset(chosen.spread(trial.subset).keys)
            found.setdefault(run, Measurement(run, trial, protocol, wanted, keys))
    return list(found.values())


def _trials(plan: Plan, opened: Opened) -> list[Trial]:
    more: list[Trial] = []
    if plan.ablation is not None:
        with shadow(opened.loaded.model) as own:
            blocks = len(find_body(own, None, read_inputs(opened.loaded.example().inputs)).blocks)
        more = [Trial(name, options) for name, options in ABLATIONS[plan.ablation](blocks)]
    return [trial for trial in (*plan.trials, *more) if applies(trial, opened.kind, plan.preset)]
