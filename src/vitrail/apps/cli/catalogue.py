"""The command `methods`: the table of methods as a page to read."""

import inspect
import re
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from vitrail.apps.cli.reporting import out
from vitrail.errors import MethodError, suggest
from vitrail.methods import METHODS, ByKind, Method


def show_methods(name: str | None) -> None:
    """Print all methods, or everything about one."""
    if name is None:
        _show_all()
    elif name in METHODS:
        _show_one(METHODS[name])
    else:
        raise MethodError(f"unknown method {name!r}. {suggest(name, METHODS)}")


def _show_all() -> None:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("name", no_wrap=True, style="bold")
    for column in ("paper", "explains", "class-\nspecific", "signed", "passes", "presets"):
        table.add_column(column, min_width=22 if column == "paper" else None)
    for name, method in METHODS.items():
        specific = "yes" if method.class_specific else "no"
        kinds = ",\n".join(method.inputs) if method.models is None else method.models
        listed = ",\n".join(method.presets)
        table.add_row(name, Text(method.paper), kinds, specific, _signed(method), method.cost, listed)
    out().print(table)
    out().print("Every method also has the preset recommended, the default. One in full: vitrail methods NAME")


def _signed(method: Method) -> str:
    if method.signed or not method.signed_by:
        return "yes" if method.signed else "no"
    return f"with {_options(method.signed_by)}"


def _show_one(method: Method) -> None:
    screen = out()
    screen.print(Text.assemble((method.name, "bold"), f" · {method.summary}"))
    only = f" · {method.models} only" if method.models else ""
    screen.print(Text(f"{method.paper} · {method.cost} · {' and '.join(method.inputs)}{only}"))
    docs = option_docs(method)
    if method.options:
        table = Table("option", "default", "meaning", title="options")
        for option, default in method.options.items():
            table.add_row(Text(option, style="bold"), Text(_value(default)), Text(docs.get(option, "")))
        screen.print(table)
    else:
        screen.print("It has no options.")
    table = Table("preset", "differs from the defaults in", title="presets")
    for name in presets(method):
        table.add_row(name, Text(_options(method.preset(name)) or "nothing"))
    screen.print(table)


def presets(method: Method) -> list[str]:
    """The names of all presets a method has."""
    return list(dict.fromkeys(["recommended", *method.presets]))


def option_docs(method: Method) -> dict[str, str]:
    """What the docstring's Args block says of each option, each on one line."""
    _, _, block = (inspect.getdoc(method.build) or "").partition("Args:\n")
    entries = re.split(r"^ {4}(\w+): ", block, flags=re.MULTILINE)[1:]
    return {
        name: " ".join(text.split("\n\n")[0].split()) for name, text in zip(entries[::2], entries[1::2], strict=True)
    }


def _options(values: Any) -> str:  # noqa: ANN401
    return ", ".join(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: object) -> str:
    if isinstance(value, ByKind):
        return f"{_value(value.image)} for images, {_value(value.text)} for text"
    return str(value).lower() if isinstance(value, bool) else str(value)
