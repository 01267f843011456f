"""The words of the command `rewrite`: its help and its options."""

from pathlib import Path
from typing import Annotated

import typer

from vitrail.apps.cli import options
from vitrail.tools.rewrite import STEPS
from vitrail.tools.robustness import AUDIT_STEPS

HELP = """Adversarial robustness audit of your own model.

Pixels follow the gradient until the model sees another class, while a
person sees no change. The result is a PNG of the model's own size that
still does so when it is saved and loaded: open it with --squash.

With a folder of images: how often that succeeds, against the size of
the perturbation. Without --target each picture is rewritten to the
second class the model thinks of.

[bold]Examples[/]

  vitrail rewrite ball.png -m photo -t church -o new.png --sheet sheet.png
  vitrail rewrite ball.png -m photo -t church --linf 4/255 -o new.png
  vitrail rewrite photos/ -m photo -o audit.json
  vitrail rewrite photos/ -m photo --l2 0.5 --l2 1 --l2 2 -o audit.csv
"""
TARGET = Annotated[
    str | None,
    typer.Option("--target", "-t", help="The class to rewrite to, by name or index.", rich_help_panel=options.AIM),
]
SOURCE = Annotated[
    str | None,
    typer.Option(
        "--source",
        help="The class that gives way in all steps; default: whichever is ahead.",
        rich_help_panel=options.AIM,
    ),
]
ETA = Annotated[
    float | None,
    typer.Option(help="The step size; default: the first step is a tenth of a level.", rich_help_panel=options.AIM),
]
COUNT = Annotated[
    int | None,
    typer.Option(
        "--steps", help=f"How many at most: {STEPS}, for a folder {AUDIT_STEPS}.", rich_help_panel=options.AIM
    ),
]
LIKELY = Annotated[float, typer.Option(help="Stop at this probability of the target.", rich_help_panel=options.AIM)]
L2 = Annotated[
    list[str] | None,
    typer.Option(
        "--l2",
        help="The largest Euclidean norm of the change, values from 0 to 1. Repeat it for a folder.",
        rich_help_panel=options.AIM,
        show_default=False,
    ),
]
LINF = Annotated[
    list[str] | None,
    typer.Option(
        "--linf",
        help="The largest change of any value, such as 2/255. Repeat it for a folder.",
        rich_help_panel=options.AIM,
        show_default=False,
    ),
]
SHEET = Annotated[
    Path | None,
    typer.Option(
        help="Original, new picture, amplified difference, trace: .png, .pdf.", rich_help_panel=options.RESULT
    ),
]
DIFFERENCE = Annotated[
    Path | None, typer.Option(help="The amplified difference alone, .png.", rich_help_panel=options.RESULT)
]
OUTPUT = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="The new picture, .png, or its numbers, .json; for a folder the table, .json or .csv.",
        show_default=False,
        rich_help_panel=options.RESULT,
    ),
]
