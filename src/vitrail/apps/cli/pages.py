"""The commands `app`, which serves the page, `demo`, which explains what comes with the package, and `report`."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.options import check_not_replaced, check_page, check_presets
from vitrail.apps.cli.screen import busy, counted, note, out, reported, show_line
from vitrail.errors import InputError, OptionError
from vitrail.methods import DEFAULT_METHOD, parse_spec

HOST = "127.0.0.1"

APP = """Open a web page to look at explanations: pictures and text, many methods side by side.

It starts with the embedded models, offline, and answers on this machine only. Visitors may open no other models than
those you name with [bold]--allow[/].

  vitrail app
  vitrail app --allow vit_tiny_patch16_224.augreg_in21k_ft_in1k --allow ./my-bert
"""
ACCESS, INPUTS = "Who may do what", "What is accepted"
Host = Annotated[str, typer.Option(help="The address to answer on; 0.0.0.0 lets others in.", rich_help_panel=ACCESS)]
Port = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Default: the first free one from 7860 on.", rich_help_panel=ACCESS),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        help="A timm name, Hugging Face id or folder that visitors may open. May be repeated.",
        show_default=False,
        rich_help_panel=ACCESS,
    ),
]
AnyModel = Annotated[
    bool,
    typer.Option(
        "--any-model",
        help="Let visitors open any model, also from folders of this machine and from the hub.",
        rich_help_panel=ACCESS,
    ),
]
Pickled = Annotated[
    bool,
    typer.Option(
        "--pickled-weights",
        help="Also open Hugging Face models without safetensors; torch reads their weights without running code.",
        rich_help_panel=ACCESS,
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        help="A host name of this server, such as that of a proxy in front of it. May be repeated.",
        show_default=False,
        rich_help_panel=ACCESS,
    ),
]
Upload = Annotated[int, typer.Option(min=1, help="Largest upload, in megabytes.", rich_help_panel=INPUTS)]
Pixels = Annotated[int, typer.Option(min=1, help="Largest picture, in million pixels.", rich_help_panel=INPUTS)]
Letters = Annotated[int, typer.Option(min=1, help="Longest text, in characters.", rich_help_panel=INPUTS)]
Browser = Annotated[bool, typer.Option("--browser", help="Open the page in a browser.")]


@reported
def app(  # noqa: PLR0913  (one parameter for each option of the command line)
    host: Host = HOST,
    port: Port = None,
    allow: Allow = None,
    any_model: AnyModel = False,  # noqa: FBT002
    pickled_weights: Pickled = False,  # noqa: FBT002
    allow_host: AllowHost = None,
    max_upload: Upload = 10,
    max_pixels: Pixels = 40,
    max_letters: Letters = 1000,
    browser: Browser = False,  # noqa: FBT002
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
COLOURS = "  (red speaks for the class, blue against it)"
FOLDER = Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")]


@reported
def demo(output: FOLDER = Path("vitrail-demo"), debug: options.Debug = False) -> None:  # noqa: FBT002
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
SOURCE = Annotated[
    Path, typer.Argument(metavar="INPUTS", help="A folder, a .txt file, or results of the bench.", show_default=False)
]
MODEL = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="As for vitrail explain; a bench result needs none.",
        rich_help_panel=options.AIM,
        autocompletion=options.MODEL_NAMES,
    ),
]
CURVES = Annotated[
    bool,
    typer.Option(
        "--curves",
        help="Remove the highest-scored parts step by step, and draw the probability.",
        rich_help_panel=options.RESULT,
    ),
]
LIMIT = Annotated[
    int | None,
    typer.Option(help="Use only this many inputs, evenly spaced.", min=1, rich_help_panel=options.INPUT),
]


@reported
def report(  # noqa: PLR0913  (one parameter for each option of the command line)
    source: SOURCE,
    model: MODEL = None,
    arch: options.Arch = None,
    method: options.Methods = None,
    target: options.Targets = None,
    versus: options.Versus = None,
    preset: options.Preset = "recommended",
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    limit: LIMIT = None,
    curves: CURVES = False,  # noqa: FBT002
    output: options.Page = Path("report.html"),
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Write the page."""
    check_page(output, "a report")
    if not source.exists():
        raise InputError(f"there is no folder or file {source}. Check its name.")
    read = [file for file in source.iterdir() if file.suffix != ".html"] if source.is_dir() else [source]
    check_not_replaced([output], [*(file for file in read if file.is_file()), model])
    if _is_results(source):
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


def _is_results(source: Path) -> bool:
    if not source.is_file():
        return False
    with source.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE
