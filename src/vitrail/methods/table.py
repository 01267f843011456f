"""What the table knows of a method, and how options and presets become a walk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vitrail.errors import OptionError, suggest
from vitrail.methods.option_text import declared, load, module_doc, types_of

if TYPE_CHECKING:  # these import torch, and the table is read without it
    from vitrail.models.inputs import Inputs
    from vitrail.relevance import Walk
    from vitrail.relevance.runner import RerunMethod

PACKAGE = "vitrail.methods"


@dataclass(frozen=True)
class ByKind:
    """An option whose value differs between images and text."""

    image: Any
    text: Any


Preset = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Method:
    """One line of the table.

    Args:
        built_by: `module:function` inside `vitrail.methods`; see `build`.
        presets: by name, the options in which a preset differs from the defaults of `build`. `recommended` is
            `paper` unless it says otherwise; `official` is there only where the authors released code.
        signed: whether scores below zero mean evidence against the target.
        signed_by: option values that make an unsigned method signed.
        prepare_by: `module:function` of what has to be done to the inputs before the model runs, if anything.
        cost: how many forward and backward passes it takes, in words.
        inputs: what it explains.
        models: the only models it explains, in words; None where it is not bound to a kind of model.
        kind: how it works: `recording` walks over recorded layers, `rules` overrides the backward pass, `rerun` runs
            the model several times.
    """

    name: str
    built_by: str
    paper: str
    presets: Mapping[str, Preset]
    signed: bool = False
    signed_by: Mapping[str, Any] = field(default_factory=dict)
    class_specific: bool = True
    cost: str = "1 forward + 1 backward"
    prepare_by: str | None = None
    inputs: tuple[str, ...] = ("image", "text")
    models: str | None = None
    kind: str = "recording"

    @property
    def build(self) -> "Callable[..., Walk | RerunMethod]":
        """The function that takes the options as keywords and gives the walk or the procedure."""
        return load(f"{PACKAGE}.{self.built_by}")

    def prepare(self, inputs: "Inputs", options: Mapping[str, Any]) -> "Inputs":
        """The inputs as the method runs the model on them."""
        return inputs if self.prepare_by is None else load(f"{PACKAGE}.{self.prepare_by}")(inputs, options)

    @property
    def doc(self) -> str:
        """The docstring of `build`: a summary, and an Args block with a line for each option."""
        return declared(f"{PACKAGE}.{self.built_by}").doc

    @property
    def about(self) -> str:
        """The docstring of the method's file: the paper, and which names stand for its symbols."""
        return module_doc(f"{PACKAGE}.{self.built_by}")

    @property
    def summary(self) -> str:
        """What it computes, in one line."""
        return self.doc.splitlines()[0]

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its default."""
        return dict(declared(f"{PACKAGE}.{self.built_by}").defaults)

    def kinds_of(self, option: str) -> tuple[type, ...]:
        """The types an option takes."""
        return types_of(f"{PACKAGE}.{self.built_by}")[option]

    def preset(self, name: str) -> Preset:
        """The options of a preset."""
        presets = {"recommended": self.presets.get("paper", {}), **self.presets}
        if name not in presets:
            reason = " Its authors released no code." if name == "official" else ""
            raise OptionError(f"{self.name} has no preset {name!r}.{reason} {suggest(name, presets)}")
        return presets[name]

    def resolve(self, preset: str, given: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """All options: the defaults, changed by the preset, changed by those given."""
        for name, value in given.items():
            if name not in self.options:
                raise OptionError(f"{self.name} has no option {name!r}. {suggest(name, self.options)}")
            kinds = self.kinds_of(name)
            if not _fits(value, kinds):
                wanted = " or ".join(kind.__name__ for kind in kinds)
                raise OptionError(f"{self.name}'s option {name} takes {wanted}, not {value!r}.")
        chosen = {**self.options, **self.preset(preset), **given}
        return {name: getattr(x, kind) if isinstance(x, ByKind) else x for name, x in chosen.items()}

    def label(self, preset: str, options: Mapping[str, Any], kind: str) -> str:
        """The method with what differs from the recommended options, or with its preset where that says it shorter."""
        usual = self.resolve("recommended", {}, kind)
        apart = {n: v for n, v in options.items() if usual.get(n, v) != v}
        if preset in self.presets:
            own = self.resolve(preset, {}, kind)
            within = {"preset": preset, **{n: v for n, v in options.items() if own.get(n, v) != v}}
            apart = within if len(within) < len(apart) else apart
        return f"{self.name}({', '.join(f'{n}={v}' for n, v in apart.items())})" if apart else self.name

    def is_signed(self, options: Mapping[str, Any]) -> bool:
        """Whether scores below zero mean evidence against the target, with these options."""
        return self.signed or any(options.get(name) == value for name, value in self.signed_by.items())


def _fits(value: object, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of the types; a whole number is a real one, but yes and no are no numbers."""
    if isinstance(value, (bool, int, float, str)):
        return type(value) in kinds or (type(value) is int and float in kinds)
    return isinstance(value, kinds)
