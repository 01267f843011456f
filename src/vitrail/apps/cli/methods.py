"""The command `methods`: the table of methods as a page to read."""

import re
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from vitrail.apps.cli import options
from vitrail.apps.cli.screen import out, reported, show_line, show_table
from vitrail.errors import MethodError, suggest
from vitrail.methods import METHODS, ByKind, Method

HELP = "List the methods, or the options and presets of one."
NAME = Annotated[
    str | None,
    typer.Argument(help="A method, for its options and presets.", autocompletion=options.METHOD_NAMES),
]
COLUMNS = ("paper", "explains", "class-specific", "signed", "passes", "presets")


@reported
def command(name: NAME = None, debug: options.Debug = False) -> None:  # noqa: FBT002
    """Print all methods, or everything about one."""
    if name is None:
        _show_all()
    elif name in METHODS:
        _show_one(METHODS[name])
    else:
        raise MethodError(f"unknown method {name!r}. {suggest(name, METHODS)}")


def _show_all() -> None:
    screen = out()
    if not screen.is_terminal:
        show_table(("name", *COLUMNS), [(name, *_row(method)) for name, method in METHODS.items()])
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("name", no_wrap=True, style="bold")
    for column in COLUMNS:
        table.add_column(column.replace("-", "-\n"), min_width=22 if column == "paper" else None)
    for name, method in METHODS.items():
        table.add_row(name, *map(Text, _row(method, separator=",\n")))
    screen.print(table)
    screen.print("Every method also has the preset recommended, the default. One in full: vitrail methods NAME")


def _row(method: Method, separator: str = ", ") -> list[str]:
    """What the list says of a method."""
    specific = "yes" if method.class_specific else "no"
    kinds = separator.join(method.inputs) if method.models is None else method.models
    return [method.paper, kinds, specific, _signed(method), method.cost, separator.join(method.presets)]


def _signed(method: Method) -> str:
    if method.signed or not method.signed_by:
        return "yes" if method.signed else "no"
    return f"with {_options(method.signed_by)}"


def _show_one(method: Method) -> None:
    show_line((method.name, "bold"), f" · {method.summary}")
    only = f" · {method.models} only" if method.models else ""
    show_line(f"{method.paper} · {method.cost} · {' and '.join(method.inputs)}{only}")
    docs = option_docs(method)
    if method.options:
        rows = [(option, _value(default), docs.get(option, "")) for option, default in method.options.items()]
        show_table(("option", "default", "meaning"), rows, "options")
    else:
        show_line("It has no options.")
    rows = [(name, _options(method.preset(name)) or "nothing") for name in presets(method)]
    show_table(("preset", "differs from the defaults in"), rows, "presets")


def presets(method: Method) -> list[str]:
    """The names of all presets a method has."""
    return list(dict.fromkeys(["recommended", *method.presets]))


def option_docs(method: Method) -> dict[str, str]:
    """What the docstring's Args block says of each option, each on one line."""
    _, _, block = method.doc.partition("Args:\n")
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
