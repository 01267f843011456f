"""Which models, data sets, protocols and methods of a plan fit each other; what fits nothing is refused."""

from collections.abc import Sequence

from vitrail.errors import OptionError
from vitrail.evaluate.bench.builtin import find_entry
from vitrail.evaluate.bench.measures import find_measure
from vitrail.evaluate.bench.opened import open_data, open_model
from vitrail.evaluate.bench.plan import DataSpec, ModelSpec, Plan, Trial
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.data.segmented import VOC as VOC
from vitrail.methods import METHODS

VOC_MASKS = dict(enumerate(VOC))


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
        if trial.named and not any(applies(trial, kind, plan.preset) for kind in kinds.values()):
            raise OptionError(f"{trial.name} explains {' and '.join(METHODS[trial.name].inputs)} only.")
    return pairs


def left_out(plan: Plan) -> tuple[str, ...]:
    """Methods that `all` or `usual` stand for, but that explain none of the data, or have no such preset."""
    kinds = {find_entry(spec.name).kind for spec in plan.data}
    unused = (t.name for t in plan.trials if not t.named and not any(applies(t, kind, plan.preset) for kind in kinds))
    return tuple(dict.fromkeys(unused))


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
    named = {spec.name: (find_entry(spec.name).kind, given(spec)) for spec in specs}
    return ", ".join(f"{name} ({kind} with {', '.join(has) or 'no labels'})" for name, (kind, has) in named.items())


def applies(trial: Trial, kind: str, preset: str) -> bool:
    """Whether a method explains this kind of data; one that nobody named also needs the preset, and any model."""
    entry = METHODS[trial.name]
    fits = trial.named or (entry.models is None and preset in {"recommended", *entry.presets})
    return fits and ("image" if kind == "image" else "text") in entry.inputs


def given(spec: DataSpec) -> tuple[str, ...]:
    """What the data set knows of its examples; `voc classes` where its masks tell PASCAL VOC's classes apart."""
    more = ("voc classes",) if open_data(spec).mask_classes == VOC_MASKS else ()
    return (*find_entry(spec.name).gives, *more)


def metrics_for(protocol: Protocol, spec: DataSpec) -> tuple[str, ...]:
    """What of a protocol can be measured on a data set."""
    entry = find_entry(spec.name)
    labelled = entry.kind == "question" or protocol.target_of(entry.kind) != "label" or "label" in entry.gives
    fitting = [find_measure(name) for name in protocol.metrics]
    known = set(given(spec))
    return tuple(m.name for m in fitting if labelled and entry.kind in m.kinds and m.gives <= known)
