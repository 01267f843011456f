"""The command `transfer`: attention maps that follow the gradient of the target, step by step."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table
from rich.text import Text

from vitrail.apps.cli import options
from vitrail.apps.cli.aims import find_targets, title
from vitrail.apps.cli.opening import open_model
from vitrail.apps.cli.outputs import check_apart, check_writable
from vitrail.apps.cli.reporting import note, out, reported
from vitrail.apps.cli.show import show_answer
from vitrail.apps.cli.sources import Source, check_source, sample_of
from vitrail.errors import InputError, OutputError, suggest
from vitrail.models.loading import Loaded
from vitrail.tools.transfer import WRITERS, Transfer, transfer

HELP = """Let the attention maps follow the gradient of a class, and watch.

The maps are the only parameters; the model is not changed. By default
the class is descended, as in the paper: attention leaves it, and moves
to what speaks for other classes. Each step is explained by
complete_gradient: red for the class, blue against it; every map has
its own scale.

[bold]Examples[/]

  vitrail transfer zebra.png -m vit_tiny_patch16_224 -t zebra
      -o strip.png -o film.gif
  vitrail transfer zebra.png -m vit_tiny_patch16_224 -t zebra
      --direction toward --renormalise --steps 30 -o film.gif
  vitrail transfer "A dull film with a great cast." -m sentiment -o film.gif
"""
TARGET = Annotated[
    str | None,
    typer.Option(
        "--target", "-t", help="A class by name or index; none for what is predicted.", rich_help_panel=options.AIM
    ),
]
ETA = Annotated[float, typer.Option(help="The learning rate of the maps.", rich_help_panel=options.AIM)]
STEPS = Annotated[int, typer.Option(help="How many updates.", rich_help_panel=options.AIM)]
DIRECTION = Annotated[
    str,
    typer.Option(help="away (the class is descended, as in the paper) or toward.", rich_help_panel=options.AIM),
]
GRADIENT = Annotated[
    str,
    typer.Option(
        help="What the explanations differentiate: the full graph, or maps as leaf tensors.",
        rich_help_panel=options.AIM,
    ),
]
RENORMALISE = Annotated[
    bool,
    typer.Option(
        "--renormalise",
        help="After each update, cut negative attention off and let rows add up to one.",
        rich_help_panel=options.AIM,
    ),
]
OUTPUT = Annotated[
    list[Path] | None,
    typer.Option(
        "--output",
        "-o",
        help="A strip of steps as .png, .pdf or .svg, all steps as .gif, the numbers as .json. May be repeated.",
        show_default=False,
        rich_help_panel=options.RESULT,
    ),
]


@reported
def command(  # noqa: PLR0913  (one parameter for each option of the command line)
    model: options.Model,
    given: options.Given = None,
    arch: options.Arch = None,
    target: TARGET = None,
    eta: ETA = 4e-4,
    steps: STEPS = 10,
    direction: DIRECTION = "away",
    gradient: GRADIENT = "full",
    renormalise: RENORMALISE = False,  # noqa: FBT002
    pair: options.Pair = None,
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    output: OUTPUT = None,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Follow the gradient with the attention maps."""
    source = Source(given, pair=pair, squash=squash)
    check_source(source)
    if source.folder is not None:
        raise InputError(f"{given} is a folder, but a film is of one input.")
    for path in output or []:
        check_ending(path)
    check_apart(output or [], [given, pair, model])
    loaded = open_model(model, arch, device)
    sample = sample_of(source, loaded)
    (aim,) = find_targets(loaded, [] if target is None else [target], None)
    film = transfer(
        loaded.model, sample.inputs, aim,
        eta=eta, steps=steps, direction=direction, gradient=gradient, renormalise=renormalise,
    )  # fmt: skip
    show_answer(loaded, sample)
    name = title(loaded, film.target)
    out().print(_table(loaded, film, name))
    for path in output or []:
        note(f"wrote {film.save(path, sample.picture, title=f'attention transfer: {name}')}")


def check_ending(path: Path) -> None:
    """Raise unless a film can be written here."""
    if path.suffix.lower() not in WRITERS:
        raise OutputError(f"{path} has no known ending. {suggest(path.suffix, WRITERS)}")
    check_writable(path)


def _table(loaded: Loaded, film: Transfer, name: str) -> Table:
    """The target's logit and probability at each step, and what is predicted instead."""
    table = Table("step", "logit", "probability", "prediction", title=f"attention transfer: {name}")
    first = film.target.first
    index = first[0] if isinstance(first, tuple) else None
    for step in range(len(film)):
        best = int(film.logits[step, 0].argmax())
        likely = "" if index is None else f"{float(film.probabilities[step, 0, index]):.3f}"
        table.add_row(str(step), f"{float(film.scalar[step, 0]):.3f}", likely, Text(loaded.class_name(best)))
    if not torch.equal(film.logits[0], film.clean):
        note(f"the unchanged maps give the model's own logits to {film.deviation:.1g}")
    return table
