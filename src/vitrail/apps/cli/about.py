"""The commands `methods`, the table of methods, and `doctor`, what was found in a model."""

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from vitrail.apps.cli import options
from vitrail.apps.cli.screen import busy, out, reported, show_line, show_table
from vitrail.errors import MethodError, suggest
from vitrail.methods import METHODS, ByKind, Method

if TYPE_CHECKING:
    from vitrail.tools.doctor import Examination, LayerCheck


METHODS_HELP = "List the methods, or the options and presets of one."
NAME = Annotated[
    str | None,
    typer.Argument(help="A method, for its options and presets.", autocompletion=options.METHOD_NAMES),
]
COLUMNS = ("paper", "explains", "class-specific", "signed", "passes", "presets")


@reported
def methods(name: NAME = None, debug: options.Debug = False) -> None:  # noqa: FBT002
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
    show_line(method.about)


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


DOCTOR = """Test on your model, with a dummy input, that what is recorded is what it computed.

For every attention layer A·v is computed again and compared with the
layer's own output, and the logits must be equal bit for bit with and
without recording. The exit code is 1 if anything differs.
"""


@reported
def doctor(
    model: options.ModelArgument,
    arch: options.Arch = None,
    device: options.Device = "cpu",
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Examine the model and print the report; exit code 1 if it fails."""
    from vitrail.apps.cli.session import open_model
    from vitrail.tools.doctor import examine, structure

    loaded = open_model(model, arch, device)
    inputs = loaded.example().inputs
    with busy("comparing every layer with what the model computes"):
        report = examine(loaded.model, inputs)
        found = structure(loaded.model, inputs)
    out().print(str(found), markup=False, highlight=False, soft_wrap=True)
    show_report(report)
    if not report.passed:
        raise typer.Exit(1)


def show_report(report: "Examination") -> None:
    """Print what was found and whether it holds."""
    grid = "none" if report.grid is None else f"{report.grid[0]} x {report.grid[1]} patches"
    facts = {
        "family": f"{report.family} ({report.model_class})",
        "attention layers": len(report.rows),
        "prefix tokens": report.prefix,
        "grid": grid,
        "readout": report.readout,
    }
    show_table(("property", "found"), list(facts.items()))
    columns = ("layer", "heads", "key/value heads", "head width", "queries x keys", "seam", "error of A·v", "verdict")
    show_table(columns, [_cells(row) for row in report.rows])
    show_line(f"logits with and without recording: {'equal bit for bit' if report.same_logits else 'they DIFFER'}")
    failed = [str(row.index) for row in report.rows if not row.passed]
    layers = f"layers {', '.join(failed)} do not match" if failed else "every layer matches"
    show_line(f"{'passed' if report.passed else 'FAILED'}: {layers}, tolerance {report.rows[0].tolerance:g}")


def _cells(row: "LayerCheck") -> list[str]:
    return [
        str(row.index),
        str(row.heads),
        str(row.key_value_heads),
        "unknown" if row.head_width is None else str(row.head_width),
        f"{row.queries} x {row.keys}",
        row.seam,
        "not seen" if row.error is None else f"{row.error:.1e}",
        "ok" if row.passed else "WRONG",
    ]
