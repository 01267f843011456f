"""Methods as a user writes them: `gae`, `gradtoken(scheme=none, depth=2)`."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from vitrail.defaults import DEFAULT_METHOD
from vitrail.errors import MethodError, OptionError, suggest
from vitrail.methods import METHODS

Spec = tuple[str, dict[str, Any]]
SHAPE = re.compile(r"\s*([^\s()]+)\s*(?:\((.*)\)\s*)?", re.DOTALL)
SWITCHES = {"true": True, "yes": True, "false": False, "no": False}


def _switch(text: str) -> bool:
    return SWITCHES[text.lower()]


READERS: dict[type, tuple[Callable[[str], Any], str]] = {
    bool: (_switch, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "a word"),
}
"""By an option's type, how its value is read and what it is called."""


def parse_spec(text: str) -> Spec:
    """The method and its options, each of the option's type."""
    match = SHAPE.fullmatch(text)
    if match is None:
        raise OptionError(f"{text!r} is not a method: write a name, or name(option=value, option=value).")
    name, inside = match.group(1), match.group(2) or ""
    if name not in METHODS:
        raise MethodError(f"unknown method {name!r}. {suggest(name, METHODS)}")
    options: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in inside.split(","))):
        option, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not option or not value:
            raise OptionError(f"{part!r} in {text!r} is not an option: write option=value, separated by commas.")
        if option in options:
            raise OptionError(f"{text!r} gives the option {option!r} twice.")
        options[option] = _value(name, option, value.strip("'\""))
    return name, options


def _value(method: str, option: str, text: str) -> Any:  # noqa: ANN401
    entry = METHODS[method]
    if option not in {*entry.options, "preset"}:
        raise OptionError(f"{method} has no option {option!r}. {suggest(option, entry.options)}")
    kinds = (str,) if option == "preset" else entry.kinds_of(option)
    read, meaning = next((READERS[kind] for kind in kinds if kind in READERS), READERS[str])
    try:
        return read(text)
    except (ValueError, KeyError) as error:
        raise OptionError(f"{option}={text!r} of {method} is not {meaning}.") from error


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
