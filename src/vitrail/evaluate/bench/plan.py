"""`Plan`: which models, methods, data sets and protocols are to be run, as frozen data."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vitrail.errors import MethodError, OptionError, suggest
from vitrail.evaluate.bench.ablations import ABLATIONS
from vitrail.evaluate.bench.protocols import CLASSES, Protocol, find_protocol
from vitrail.methods import METHODS

DTYPES: dict[str, torch.dtype | None] = {
    "float32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
CHOICES: Mapping[str, Collection[str]] = {
    "dtype": DTYPES,
    "preset": ("recommended", "paper", "official"),
    "ablation": ABLATIONS,
    "target": CLASSES,
}


@dataclass(frozen=True)
class ModelSpec:
    """A model by the name that `vitrail.loading.load` takes."""

    name: str
    arch: str | None = None


@dataclass(frozen=True)
class DataSpec:
    """A data set by name, where it lies, and its reader's options."""

    name: str
    path: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
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
    options: Mapping[str, Any] = field(default_factory=dict)
    subset: int | None = None
    named: bool = True

    def resolved(self, preset: str, kind: str) -> dict[str, Any]:
        """Every option with its value, and the preset they started from."""
        given = dict(self.options)
        chosen = given.pop("preset", preset)
        return {"preset": chosen, **METHODS[self.name].resolve(chosen, given, kind)}

    def label(self, preset: str, kind: str) -> str:
        """The method with the options that differ from the recommended ones."""
        options = self.resolved(preset, kind)
        return METHODS[self.name].label(options.pop("preset"), options, kind)


@dataclass(frozen=True)
class Plan:
    """What `run` does; the same plan always means the same work.

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
        self._check_choices()
        if self.batch < 1 or self.forward_batch < 1:
            raise OptionError(f"batch={self.batch}, forward_batch={self.forward_batch}: both have to be at least 1.")
        for trial in self.trials:
            if trial.name not in METHODS:
                raise MethodError(f"unknown method {trial.name!r}. {suggest(trial.name, METHODS)}")

    def _check_choices(self) -> None:
        for name, table in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in table:
                raise OptionError(f"there is no {name} {value!r}. {suggest(value, table)}")

    def measured(self) -> tuple[Protocol, ...]:
        """The protocols with the plan's own class and metrics."""
        classes = {} if self.target is None else {"target": self.target, "text_target": self.target}
        changed = (protocol.with_(**classes) for protocol in self.protocols)
        return tuple(p if self.metrics is None else p.measuring(self.metrics) for p in changed)


def protocols_of(names: tuple[str, ...]) -> tuple[Protocol, ...]:
    """The protocols of these names."""
    return tuple(find_protocol(name) for name in names)
