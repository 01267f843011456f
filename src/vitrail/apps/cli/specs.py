"""Methods as a user writes them: `gae`, `gradtoken(scheme=none, depth=2)`."""

from collections.abc import Sequence
from typing import Any

from vitrail.api import DEFAULT_METHOD, PREFERRED
from vitrail.errors import MethodError, OptionError, suggest
from vitrail.methods import METHODS
from vitrail.methods.option_text import parse_call, read_options

Spec = tuple[str, dict[str, Any]]


def parse_spec(text: str, *, auto: bool = False) -> Spec:
    """The method and its options, each of the option's type.

    Args:
        auto: whether `auto` may be named, which stands for the best method that applies and takes its options.
    """
    name, texts = parse_call(text, "a method")
    if name == DEFAULT_METHOD and not auto:
        raise MethodError(f"{DEFAULT_METHOD} is for vitrail explain, compare and report: name a method here.")
    if name not in METHODS and name != DEFAULT_METHOD:
        raise MethodError(f"unknown method {name!r}. {suggest(name, METHODS)}")
    entry = METHODS[PREFERRED[0] if name == DEFAULT_METHOD else name]

    def kinds(option: str) -> Sequence[type]:
        return (str,) if option == "preset" else entry.kinds_of(option)

    return name, read_options(texts, kinds, [*entry.options, "preset"], name)


def check_specs(specs: Sequence[Spec], preset: str, kind: str) -> None:
    """Raise if a method cannot be built for this kind of input, before the model runs."""
    for name, given in specs:
        if name == DEFAULT_METHOD:  # which one that is depends on the model
            continue
        entry, options = METHODS[name], dict(given)
        if kind not in entry.inputs:
            raise MethodError(f"{name} explains {' and '.join(entry.inputs)}, but the input is {kind}.")
        entry.build(**entry.resolve(options.pop("preset", preset), options, kind))


def applicable(preset: str, kind: str) -> list[Spec]:
    """Every method that one recording is enough for, explains this kind of input and has the preset."""
    found = []
    for name, entry in METHODS.items():
        quick = entry.kind == "recording" and entry.models is None
        if quick and kind in entry.inputs and preset in {"recommended", *entry.presets}:
            found.append((name, {}))
    if not found:
        raise OptionError(f"no method has a preset {preset!r}. {suggest(preset, PRESETS)}")
    return found


PRESETS = ("recommended", "fine", "paper", "official", "lxt")
