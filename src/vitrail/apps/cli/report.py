"""The command `report`: one HTML file of a folder of inputs, or of a results file of the bench."""

from pathlib import Path
from typing import Annotated

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.options import check_apart, check_page, check_presets
from vitrail.apps.cli.screen import counted, note, reported
from vitrail.errors import InputError, OptionError
from vitrail.methods import DEFAULT_METHOD, parse_spec

HELP = """Write one HTML page of a folder of inputs, or of a bench result.

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
def command(  # noqa: PLR0913  (one parameter for each option of the command line)
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
    check_apart([output], [*(file for file in read if file.is_file()), model])
    if _is_results(source):
        if any((model, arch, method, target, versus, squash, limit, curves)):
            raise OptionError(f"{source} holds results of the bench: only -o goes with it.")
        from vitrail.plots import report

        note(f"wrote {report.of_results(source).save(output)}")
        return
    if model is None:
        raise OptionError(f"which model explains {source}? Name it with --model; photo and sentiment are built in.")
    specs = [parse_spec(text, auto=True) for text in method] if method else [(DEFAULT_METHOD, {})]
    check_presets(specs, preset)

    from vitrail.apps.cli.session import check_specs, find_targets, open_model
    from vitrail.plots import report

    loaded = open_model(model, arch, device)
    check_specs(specs, preset, loaded.kind)
    with counted("explaining") as moved:
        made = report.of_inputs(
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
