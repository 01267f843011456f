"""Plain data of a run: `Plan` says what to run, `Unit` is what a worker gets, `Finished` is what it gives back.

Ablations are the switches of a method as its paper sets them. `vtranm`: Table 4 of arXiv:2403.14552; the paper does not
say which block its baseline shows, nor how lengths without directions start, so both readings are run. `gradtoken`:
Table 3 (schemes), Table 4 (heads) and the curve over depth (Neural Networks 2024).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from vitrail.errors import OptionError, suggest
from vitrail.evaluate.bench.protocols import CLASSES, Protocol, find_protocol
from vitrail.methods import METHODS, find_method

Spec = tuple[str, dict[str, Any]]
_BARE: dict[str, Any] = {"length": False, "direction": False, "ffn": False, "initial": "identity"}
_SCHEMES = ("none", "rollout_elementwise", "rollout_matmul", "average_elementwise", "average_matmul")


def vtranm(blocks: int) -> list[Spec]:
    """Baseline; with aggregation (AF); with lengths (L) in both readings; with directions (NECC), the full method."""
    return [
        ("tokentm", {**_BARE, "blocks": "first"}),
        ("tokentm", {**_BARE, "blocks": "last"}),
        ("tokentm", dict(_BARE)),
        ("tokentm", {"direction": False, "initial": "identity"}),
        ("tokentm", {"direction": False}),
        ("tokentm", {}),
    ]


def gradtoken(blocks: int) -> list[Spec]:
    """Every scheme; the plain mean over heads; the full method propagated to every depth above the first."""
    depths = ({"depth": depth} for depth in range(2, blocks))
    options = [*({"scheme": scheme} for scheme in _SCHEMES), {"heads": "mean"}, *depths]
    return [("gradtoken", one) for one in options]


PRIORS_OF: Mapping[str, tuple[str, ...]] = {
    "image": ("random", "centre"),
    **dict.fromkeys(("text", "question", "answer"), ("random", "position")),
}
"""By the kind of data, the rows of its tables that read nothing of the model."""
PRIORS = frozenset(name for names in PRIORS_OF.values() for name in names)
ABLATIONS: dict[str, Callable[[int], list[Spec]]] = {"vtranm": vtranm, "gradtoken": gradtoken}
"""Name -> the variants for a model with so many blocks."""
DTYPES: dict[str, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
CHOICES: Mapping[str, Collection[str]] = {
    "dtype": DTYPES,
    "preset": ("recommended", "paper", "official"),
    "ablation": ABLATIONS,
    "target": CLASSES,
}

NUMBERS: Mapping[str, tuple[int, int]] = {
    "batch": (1, 2**31 - 1),
    "forward_batch": (1, 2**31 - 1),
    "limit": (1, 2**63 - 1),
    "seed": (-(2**63), 2**63 - 1),
}
"""The least and the largest value of each number of a plan."""


@dataclass(frozen=True)
class ModelSpec:
    """A model by the name that `vitrail.models.loading.load` takes."""

    name: str
    arch: str | None = None


@dataclass(frozen=True)
class DataSpec:
    """A data set: its name, its path and the options of its reader."""

    name: str
    path: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    limit: int | None = None


@dataclass(frozen=True)
class Trial:
    """One method with its options.

    Args:
        options: may hold `preset`.
        subset: measured on so many examples only, for methods that run the model very often.
        named: False where it is one of `all` or `usual`, and left out where it does not apply.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    subset: int | None = None
    named: bool = True

    def about(self, preset: str, kind: str) -> dict[str, Any]:
        """Its name, every option with its value, and a label with the options that differ from the recommended ones."""
        if self.name in PRIORS:
            return {"name": self.name, "label": self.name, "options": {"preset": "recommended"}}
        entry, given, read = METHODS[self.name], dict(self.options), "image" if kind == "image" else "text"
        chosen = given.pop("preset", preset)
        options = entry.resolve(chosen, given, read)
        label = entry.label(chosen, options, read)
        about = {"name": self.name, "label": label, "options": {"preset": chosen, **options}}
        return about if entry.code is None else {**about, "code": entry.code}


@dataclass(frozen=True)
class Plan:
    """The work that `run` does; the same plan always means the same work.

    Args:
        protocols: names or protocols of one's own, `find_protocol("chefer").with_(fill="blur")`.
        trials: methods; with an ablation also none.
        ablation: `vtranm` or `gradtoken`; adds that paper's variants.
        metrics: in place of those of the protocols.
        target: in place of the protocols' explained class, `predicted` or `label`.
        limit: at most so many examples of every data set, at even distances.
        batch: examples recorded together.
        forward_batch: perturbed inputs that go through the model together.
        dtype: of the perturbed passes; explanations are always computed in the model's own precision.
        seed: of all that is drawn.
    """

    models: tuple[ModelSpec, ...]
    data: tuple[DataSpec, ...]
    trials: tuple[Trial, ...]
    protocols: tuple[Protocol, ...]
    preset: str = "recommended"
    ablation: str | None = None
    metrics: tuple[str, ...] | None = None
    target: str | None = None
    limit: int | None = None
    batch: int = 16
    forward_batch: int = 64
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("models", "data", "protocols"):
            if not getattr(self, name):
                raise OptionError(f"a plan needs {name}, but none is named.")
        if not self.trials and self.ablation is None:
            raise OptionError("a plan needs methods or an ablation, but none is named.")
        self._check_settings()
        for trial in self.trials:
            find_method(trial.name)

    def _check_settings(self) -> None:
        for name, table in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in table:
                raise OptionError(f"there is no {name} {value!r}. {suggest(value, table)}")
        for name in NUMBERS:
            check_number(name, getattr(self, name))

    def measured(self) -> tuple[Protocol, ...]:
        """The protocols with the plan's own class and metrics."""
        classes = {} if self.target is None else {"target": self.target, "text_target": self.target}
        changed = (protocol.with_(**classes) for protocol in self.protocols)
        return tuple(p if self.metrics is None else replace(p, metrics=self.metrics) for p in changed)


def check_number(name: str, value: object) -> None:
    """Refuse a setting of a plan that is no whole number in its range."""
    least, most = NUMBERS[name]
    unlimited = value is None and name == "limit"
    if not unlimited and (type(value) is not int or not least <= value <= most):
        raise OptionError(f"{name}={value!r}, but it must be a whole number from {least} to {most}.")


def protocols_of(names: tuple[str, ...]) -> tuple[Protocol, ...]:
    """The protocols of these names."""
    return tuple(find_protocol(name) for name in names)


@dataclass(frozen=True)
class Measurement:
    """One method under one protocol, on some examples of a unit.

    Args:
        run: the identity its results are stored under.
        keys: the examples it measures; those of a worker's job have no results yet.
    """

    run: str
    trial: Trial
    protocol: Protocol
    metrics: tuple[str, ...]
    keys: Collection[str]


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
    jobs: tuple[Measurement, ...]
    skipped: int = 0
    contents: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.model.name} on {self.data.name}, examples {self.keys[0]} to {self.keys[-1]}"


@dataclass(frozen=True)
class ResultRow:
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
    rows: tuple[ResultRow, ...]
