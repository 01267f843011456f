"""The command `transfer`: attention maps that follow the gradient of the target, step by step."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.checks import Source, check_apart, check_file, check_source
from vitrail.apps.cli.screen import busy, note, reported, show_table
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.models.loading import Loaded
    from vitrail.tools.transfer import Transfer

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
        "--target",
        "-t",
        help="A class by name or index; none for what is predicted.",
        rich_help_panel=options.AIM,
        autocompletion=options.complete_class,
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
ENDINGS = (".png", ".pdf", ".svg", ".gif", ".json")
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
        check_file(path, ENDINGS)
    check_apart(output or [], [given, pair, model])

    from vitrail.apps.cli.session import find_targets, open_model, sample_of
    from vitrail.apps.cli.show import show_answer
    from vitrail.tools.transfer import transfer

    loaded = open_model(model, arch, device)
    sample = sample_of(source, loaded)
    (aim,) = find_targets(loaded, [] if target is None else [target], None)
    with busy("following the gradient"):
        film = transfer(
            loaded.model, sample.inputs, aim,
            eta=eta, steps=steps, direction=direction, gradient=gradient, renormalise=renormalise,
        )  # fmt: skip
    show_answer(loaded, sample)
    name = loaded.target_name(film.target)
    _show(loaded, film, name)
    for path in output or []:
        note(f"wrote {film.save(path, sample.picture, title=f'attention transfer: {name}')}")


def _show(loaded: "Loaded", film: "Transfer", name: str) -> None:
    """The target's logit and probability at each step, and what is predicted instead."""
    first = film.target.first
    index = first[0] if isinstance(first, tuple) else None
    rows = []
    for step in range(len(film)):
        best = int(film.logits[step, 0].argmax())
        likely = "" if index is None else f"{float(film.probabilities[step, 0, index]):.3f}"
        rows.append((step, f"{float(film.scalar[step, 0]):.3f}", likely, loaded.class_name(best)))
    show_table(("step", "logit", "probability", "prediction"), rows, f"attention transfer: {name}")
    if not film.logits[0].equal(film.clean):
        note(f"the unchanged maps give the model's own logits to {film.deviation:.1g}")
