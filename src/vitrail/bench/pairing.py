"""Which models, data sets, protocols and methods of a plan fit each other; what fits nothing is refused."""

from collections.abc import Sequence

from vitrail.bench.builtin import find_entry
from vitrail.bench.measures import find_measure
from vitrail.bench.opened import open_model
from vitrail.bench.plan import DataSpec, ModelSpec, Plan, Trial
from vitrail.bench.protocols import Protocol
from vitrail.errors import OptionError
from vitrail.methods import METHODS


def check_pairs(plan: Plan, device: str) -> list[tuple[ModelSpec, DataSpec]]:
    """The models with the data sets that fit them; refuses what has no partner at all."""
    kinds = {model: open_model(model, device).kind for model in plan.models}
    pairs = [(m, d) for m in plan.models for d in plan.data if kinds[m] == find_entry(d.name).kind]
    for model in plan.models:
        if not any(m == model for m, _ in pairs):
            raise OptionError(f"{model.name} reads {kinds[model]} data, but the data here is {_described(plan.data)}.")
    for spec in plan.data:
        if not any(d == spec for _, d in pairs):
            raise OptionError(f"the data here is {_described([spec])}, which no model of the plan reads.")
    _check_protocols(plan)
    for trial in plan.trials:
        if not any(explains(trial, kind) for kind in kinds.values()):
            raise OptionError(f"{trial.name} explains {' and '.join(METHODS[trial.name].inputs)} only.")
    return pairs


def _check_protocols(plan: Plan) -> None:
    for protocol in plan.measured():
        if not any(metrics_for(protocol, spec) for spec in plan.data):
            labels = any(protocol.target_of(find_entry(spec.name).kind) == "label" for spec in plan.data)
            raise OptionError(
                f"protocol {protocol.name} measures {', '.join(protocol.metrics)}"
                f"{' and explains the label' if labels else ''}, but the data here is {_described(plan.data)}."
            )


def _described(specs: Sequence[DataSpec]) -> str:
    """Data sets by name with what they hold: `pets (image with label, mask)`."""
    entries = {spec.name: find_entry(spec.name) for spec in specs}
    return ", ".join(f"{name} ({e.kind} with {', '.join(e.gives) or 'no labels'})" for name, e in entries.items())


def explains(trial: Trial, kind: str) -> bool:
    """Whether a method explains this kind of data."""
    return ("image" if kind == "image" else "text") in METHODS[trial.name].inputs


def metrics_for(protocol: Protocol, spec: DataSpec) -> tuple[str, ...]:
    """What of a protocol can be measured on a data set."""
    entry = find_entry(spec.name)
    labelled = entry.kind == "question" or protocol.target_of(entry.kind) != "label" or "label" in entry.gives
    fitting = [find_measure(name) for name in protocol.metrics]
    return tuple(m.name for m in fitting if labelled and m.kind == entry.kind and m.gives <= set(entry.gives))
