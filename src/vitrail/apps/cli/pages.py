"""The commands `app`, `demo` and `report`, which make pages, and `methods` and `doctor`, which print what is known."""

import re
import webbrowser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from vitrail.apps.cli import options
from vitrail.apps.cli.options import check_not_replaced, check_page, check_presets
from vitrail.apps.cli.screen import busy, counted, note, out, reported, show_line, show_table
from vitrail.errors import InputError, OptionError
from vitrail.methods import DEFAULT_METHOD, METHODS, ByKind, Method, find_method, parse_spec

if TYPE_CHECKING:
    from vitrail.tools.doctor import Examination, LayerCheck


HOST = "127.0.0.1"

APP = """Open a web page to look at explanations: pictures and text, many methods side by side.

It starts with the embedded models, offline, and answers on this machine only. Visitors may open no other models than
those you name with [bold]--allow[/].

  vitrail app
  vitrail app --allow vit_tiny_patch16_224.augreg_in21k_ft_in1k --allow ./my-bert
"""
access_option = partial(typer.Option, rich_help_panel="Who may do what")
limit_option = partial(typer.Option, min=1, rich_help_panel="What is accepted")


@reported
def app(  # noqa: PLR0913  (one parameter for each option of the command line)
    host: Annotated[str, access_option(help="The address to answer on; 0.0.0.0 lets others in.")] = HOST,
    port: Annotated[
        int | None, access_option(min=1, max=65535, help="Default: the first free one from 7860 on.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        access_option(help="A timm name, Hugging Face id or folder that visitors may open. May be repeated."),
    ] = None,
    any_model: Annotated[  # noqa: FBT002
        bool,
        access_option(
            "--any-model", help="Let visitors open any model, also from folders of this machine and from the hub."
        ),
    ] = False,
    pickled_weights: Annotated[  # noqa: FBT002
        bool,
        access_option(
            "--pickled-weights",
            help="Also open Hugging Face models without safetensors; torch reads their weights without running code.",
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        access_option(help="A host name of this server, such as that of a proxy in front of it. May be repeated."),
    ] = None,
    max_upload: Annotated[int, limit_option(help="Largest upload, in megabytes.")] = 10,
    max_pixels: Annotated[int, limit_option(help="Largest picture, in million pixels.")] = 40,
    max_letters: Annotated[int, limit_option(help="Longest text, in characters.")] = 1000,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in a browser.")] = False,  # noqa: FBT002
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Serve the page until it is ended."""
    from vitrail.apps.web import LOOPBACK, MEGABYTE, MEGAPIXEL, Limits, Settings, server

    limits = Limits(upload=max_upload * MEGABYTE, pixels=max_pixels * MEGAPIXEL, letters=max_letters)
    names, allowed = tuple(allow_host or ()), tuple(allow or ())
    settings = Settings(host, port, allowed, any_model, pickled_weights, names, limits, alone=True)
    with busy("getting the page ready"):
        made, listening = server(settings)
    name, number = listening.getsockname()[:2]
    address = f"http://{f'[{name}]' if ':' in name else name}:{number}"
    if host not in LOOPBACK:
        note("warning: others on the network can use this page; there is no password.")
    note(f"the page is at {address}; the models load meanwhile; press Ctrl+C to end it")
    if browser:
        webbrowser.open(address)
    made.run([listening])


DEMO = """Explain two pictures, three sentences and an answer with the embedded models.

It needs no network. The page, the two sheets and the photographs go into
a folder; try the other commands on vitrail-demo/photos.
"""
SMALLEST_SHARE = 0.005
"""A smaller share of an answer would be shown as 0 %."""
COLOURS = "  (red speaks for the class, blue against it)"


@reported
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")] = Path("vitrail-demo"),
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Run the demo, show what the models said, and name the files."""
    with busy("importing torch"):
        from vitrail.apps.demo import QUESTION, SHOWN, numbered, run
        from vitrail.plots import terminal
    with busy("explaining two pictures, three sentences and an answer"):
        made = run(output)
    for one in made.pictures:
        show_line(("picture   ", "bold"), one.title)
    for one in made.sentences:
        (shown,) = (a for a in one.attributions if a.method == SHOWN)
        show_line(("sentence  ", "bold"), one.title, COLOURS if out().is_terminal else "")
        out().print(terminal(shown, merge=True) if out().is_terminal else numbered(shown), soft_wrap=True)
    show_line(("answer    ", "bold"), f"{QUESTION} {made.answer.text}")
    for cited in made.answer.cite(2)[0]:
        if cited.score < SMALLEST_SHARE:
            continue
        show_line("          ", f"{cited.score:4.0%}  {cited.passage.text.strip()}")
    for path in made.paths:
        note(f"wrote {path}")


REPORT = """Write one HTML page of a folder of inputs, or of a bench result.

The page opens from disk and fetches nothing, so it can be sent. It shows
what the model said, every method's map side by side, how far methods
agree, and where all comes from; broken files are listed. INPUTS is a
folder of pictures, a .txt file with a sentence on each line, a folder of
.txt files, or what [bold]vitrail bench run[/] wrote.

[bold]Examples[/]

  vitrail report photos/ -m photo --method gae --method attcat --curves
  vitrail report sentences.txt -m sentiment --method attcat -o films.html
  vitrail report results.db -o bench.html
"""
SQLITE = b"SQLite format 3\x00"


@reported
def report(  # noqa: PLR0913  (one parameter for each option of the command line)
    source: Annotated[Path, typer.Argument(metavar="INPUTS", help="A folder, a .txt file, or results of the bench.")],
    model: Annotated[
        str | None, options.model_option(help="As for vitrail explain; a bench result needs none.")
    ] = None,
    arch: options.Arch = None,
    method: options.Methods = None,
    target: options.Targets = None,
    versus: options.Versus = None,
    preset: options.Preset = "recommended",
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    limit: Annotated[int | None, options.input_option(help="Use only this many inputs, evenly spaced.", min=1)] = None,
    curves: Annotated[  # noqa: FBT002
        bool,
        options.result_option(
            "--curves", help="Remove the highest-scored parts step by step, and draw the probability."
        ),
    ] = False,
    output: options.Page = Path("report.html"),
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Write the page."""
    check_page(output, "a report")
    if not source.exists():
        raise InputError(f"there is no folder or file {source}. Check its name.")
    read = [file for file in source.iterdir() if file.suffix != ".html"] if source.is_dir() else [source]
    check_not_replaced([output], [*(file for file in read if file.is_file()), model])
    if source.is_file() and _begins_with(source, SQLITE):
        if any((model, arch, method, target, versus, squash, limit, curves)):
            raise OptionError(f"{source} holds results of the bench: only -o goes with it.")
        from vitrail.plots.report import of_results

        note(f"wrote {of_results(source).save(output)}")
        return
    if model is None:
        raise OptionError(f"which model explains {source}? Name it with --model; photo and sentiment are built in.")
    specs = [parse_spec(text, auto=True) for text in method] if method else [(DEFAULT_METHOD, {})]
    check_presets(specs, preset)

    from vitrail.apps.cli.session import check_specs, find_targets, open_model
    from vitrail.plots.report import of_inputs

    loaded = open_model(model, arch, device)
    check_specs(specs, preset, loaded.kind)
    with counted("explaining") as moved:
        made = of_inputs(
            loaded,
            source,
            specs,
            targets=find_targets(loaded, target or [], versus),
            preset=preset,
            curves=curves,
            squash=squash,
            limit=limit,
            watch=moved,
        )
    for name, reason in made.broken.items():
        note(f"left out {name}: {reason}")
    note(f"wrote {made.save(output)}: {len(made.entries)} of {len(made.entries) + len(made.broken)} inputs explained")


def _begins_with(path: Path, start: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(start)) == start


METHODS_HELP = "List the methods, or the options and presets of one."
COLUMNS = ("paper", "explains", "class-specific", "signed", "passes", "presets")


@reported
def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method, for its options and presets.", autocompletion=options.METHOD_NAMES)
    ] = None,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Print all methods, or everything about one."""
    if name is None:
        _show_all()
    else:
        _show_one(find_method(name))


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
    """Return the row of a method in the list."""
    specific = "yes" if method.class_specific else "no"
    signed = "yes" if method.signed else f"with {_options(method.signed_by)}" if method.signed_by else "no"
    kinds = separator.join(method.inputs) if method.models is None else method.models
    return [method.paper, kinds, specific, signed, method.cost, separator.join(method.presets)]


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
    presets = dict.fromkeys(["recommended", *method.presets])
    rows = [(name, _options(method.preset(name)) or "nothing") for name in presets]
    show_table(("preset", "differs from the defaults in"), rows, "presets")
    show_line(method.about)


def option_docs(method: Method) -> dict[str, str]:
    """Return the description of each option in the docstring's Args block, each on one line."""
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


def _cells(row: "LayerCheck") -> tuple[object, ...]:
    width = "unknown" if row.head_width is None else row.head_width
    error = "not seen" if row.error is None else f"{row.error:.1e}"
    size, verdict = f"{row.queries} x {row.keys}", "ok" if row.passed else "WRONG"
    return row.index, row.heads, row.key_value_heads, width, size, row.seam, error, verdict
