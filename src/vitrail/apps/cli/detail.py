"""The command `detail`: what speaks for one class rather than another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.checks import Source, check_apart, check_file, check_presets, check_source
from vitrail.apps.cli.screen import busy, note, reported
from vitrail.errors import InputError, OptionError, OutputError, TargetError
from vitrail.methods import METHODS
from vitrail.methods.spec import parse_spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitrail.attribution import Attribution
    from vitrail.models.loading import Loaded, Sample

HELP = """Show which details speak for one class, and which for another.

Without --target and --versus: the first and the second class that the
model thinks of. Red is evidence for the first, blue for the second.

[bold]Examples[/]

  vitrail detail eagle.png -m vit_tiny_patch16_224 -o detail.png
  vitrail detail eagle.png -m vit_tiny_patch16_224 -t kite
      --versus "bald eagle" -o detail.png
  vitrail detail snail.png -m vit_tiny_patch16_224 --top 4 -o matrix.png
  vitrail detail "A dull film with a great cast." -m sentiment
"""
TARGET = Annotated[
    str | None,
    typer.Option("--target", "-t", help="The class in red, by name or index.", rich_help_panel=options.AIM),
]
VERSUS = Annotated[str | None, typer.Option(help="The class in blue.", rich_help_panel=options.AIM)]
FORM = Annotated[
    str,
    typer.Option(
        help="relative_difference (the paper's Eq. 8), difference, ratio, or auto: the first where it is safe, else "
        "the second.",
        rich_help_panel=options.AIM,
    ),
]
METHOD, AUTO = "complete_gradient", "auto"
TOP = Annotated[
    int | None,
    typer.Option(help="A sheet of the most likely classes, each against each.", rich_help_panel=options.RESULT),
]


@reported
def command(  # noqa: PLR0913  (one parameter for each option of the command line)
    model: options.Model,
    given: options.Given = None,
    arch: options.Arch = None,
    target: TARGET = None,
    versus: VERSUS = None,
    form: FORM = AUTO,
    method: options.Signed = METHOD,
    preset: options.Preset = "recommended",
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    top: TOP = None,
    output: options.Output = None,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Contrast two classes."""
    source, (name, more) = Source(given, squash=squash), parse_spec(method)
    _check(source, target, versus, top, output)
    check_apart([output], [given, model])
    check_presets([(name, more)], preset)

    from vitrail.apps.cli.session import ExplainedTarget, check_specs, class_index, open_model, sample_of
    from vitrail.apps.cli.show import present, show_answer
    from vitrail.tools.detail import check_form, detail, detail_matrix

    check_form(form)
    check_specs([(name, more)], preset, METHODS[name].inputs[0])
    loaded = open_model(model, arch, device)
    sample = sample_of(source, loaded)
    first, second = (None if text is None else class_index(loaded, text) for text in (target, versus))
    if first is not None and first == second:
        raise TargetError(f"--target and --versus name the same class, {loaded.class_name(first)}: name two.")
    explaining = {"form": form, "method": name, "preset": preset, **more}
    if top is not None and output is not None:
        show_answer(loaded, sample)
        with busy("explaining every pair of classes"):
            matrix = detail_matrix(loaded.model, sample.inputs, top=top, **explaining)
        _write_matrix(output, loaded, sample, matrix)
        return
    with busy(f"explaining with {name}"):
        found = detail(loaded.model, sample.inputs, first, second, **explaining)
    chosen = found.provenance["detail"]
    note(f"form: {chosen['form']} ({chosen['why']})")
    present(loaded, sample, [ExplainedTarget(_contrast(loaded, found), [found])], output)


def _check(source: Source, target: str | None, versus: str | None, top: int | None, output: Path | None) -> None:
    """Find what is wrong before the model is loaded."""
    check_source(source)
    if source.folder is not None:
        raise InputError(f"{source.given} is a folder, but a contrast is of one input. For a folder: vitrail audit.")
    if top is not None and (target is not None or versus is not None):
        raise OptionError("--top takes the most likely classes: leave out --target and --versus.")
    if top is not None and top < 2:
        raise OptionError(f"--top {top}: a sheet takes 2 classes or more.")
    if output is not None:
        check_file(output)
    if top is not None and (output is None or output.suffix.lower() not in (".png", ".pdf")):
        raise OutputError("--top draws a sheet: name a .png or .pdf file for it with -o.")


def _contrast(loaded: "Loaded", found: "Attribution") -> str:
    """The two classes, each with its colour."""
    first, second = _classes(loaded, found)
    return f"red: {first} · blue: {second}"


def _classes(loaded: "Loaded", found: "Attribution") -> list[str]:
    target = found.target
    both = [c[0] if isinstance(c, tuple) else c for c in (target.first, target.second)]
    return [loaded.class_name(c) for c in both if c is not None]


def _write_matrix(path: Path, loaded: "Loaded", sample: "Sample", matrix: "list[list[Attribution]]") -> None:
    from vitrail.storage import save_figure

    draw = _image_matrix if loaded.kind == "image" else _text_matrix
    note(f"wrote {save_figure(draw(loaded, sample, matrix), path)}")


def _image_matrix(loaded: "Loaded", sample: "Sample", matrix: "list[list[Attribution]]") -> "Figure":
    from vitrail.plots.pictures import Panel, as_picture, panel_figure, sample_map

    picture = as_picture(sample.picture)
    names = [_classes(loaded, row[number])[0] for number, row in enumerate(matrix)]
    rows = [
        [
            Panel(f"blue: {name}", sample_map(cell, 0, picture), signed=cell.signed)
            for name, cell in zip(names, row, strict=True)
        ]
        for row in matrix
    ]
    heading = f"{matrix[0][0].label}\nrow against column; on the diagonal the class alone"
    return panel_figure(rows, picture, row_titles=[f"red: {name}" for name in names], heading=heading)


def _text_matrix(loaded: "Loaded", sample: "Sample", matrix: "list[list[Attribution]]") -> "Figure":
    from vitrail.plots.tokens import SentenceRow, pieces, sentence_figure

    names = [_classes(loaded, row[number])[0] for number, row in enumerate(matrix)]
    groups = [
        (
            f"red: {own}",
            [
                SentenceRow(f"blue: {other}" if other != own else "alone", pieces(cell, 0))
                for other, cell in zip(names, row, strict=True)
            ],
        )
        for own, row in zip(names, matrix, strict=True)
    ]
    return sentence_figure(groups)
