"""The options that several commands share, and what completes them in a shell."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

import vitrail
from vitrail.apps.cli.checks import EMBEDDED
from vitrail.methods import DEFAULT_METHOD, METHODS

CLASSES = {
    "photo": (
        "tench", "English springer", "cassette player", "chain saw", "church", "French horn", "garbage truck",
        "gas pump", "golf ball", "parachute",
    ),
    "sentiment": ("negative", "positive"),
}  # fmt: skip
"""The classes of the embedded models, for completion; a test compares them with the models."""


def _completes(words: Iterable[str]) -> Callable[[str], list[str]]:
    known = list(words)
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


def complete_class(ctx: typer.Context, incomplete: str) -> list[str]:
    """The classes of the embedded model that the command line names so far."""
    names = CLASSES.get(str(ctx.params.get("model")), ())
    return [name for name in names if name.casefold().startswith(incomplete.casefold())]


METHOD_NAMES = _completes([DEFAULT_METHOD, *METHODS])
MODEL_NAMES = _completes(EMBEDDED)
PRESET_NAMES = _completes(dict.fromkeys(["recommended", *(p for m in METHODS.values() for p in m.presets)]))
DEVICE_NAMES = _completes(["cpu", "cuda", "mps"])

INPUT, AIM, RESULT = "What to explain", "Model and methods", "Result"

Given = Annotated[
    str | None,
    typer.Argument(
        metavar="INPUT",
        help="An image, a folder of images, a text, a [bold].txt[/] file, or [bold]-[/] for text from stdin.",
        show_default=False,
    ),
]
Pair = Annotated[str | None, typer.Option(help="The second text of a sentence pair.", rich_help_panel=INPUT)]
Question = Annotated[
    str | None,
    typer.Option(help="The question, for a model that answers questions on a text or an image.", rich_help_panel=INPUT),
]
Context = Annotated[
    str | None,
    typer.Option(help="The text the answer is looked for in; INPUT works too.", rich_help_panel=INPUT),
]
Squash = Annotated[
    bool, typer.Option("--squash", help="Resize images without cropping their borders.", rich_help_panel=INPUT)
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="photo, sentiment or lookup (inside the package), a timm name, a Hugging Face id or folder, or a "
        ".safetensors file with --arch.",
        show_default=False,
        rich_help_panel=AIM,
        autocompletion=MODEL_NAMES,
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="photo, sentiment, lookup, a timm name, a Hugging Face id or folder, or a .safetensors file.",
        show_default=False,
        autocompletion=MODEL_NAMES,
    ),
]
Arch = Annotated[
    str | None,
    typer.Option(
        help="The timm architecture of a .safetensors file, such as vit_tiny_patch16_224. The number of classes is "
        "read from the weights.",
        rich_help_panel=AIM,
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help='A name, or a name with options: "gradtoken(scheme=none, depth=2)". May be repeated.',
        show_default=False,
        rich_help_panel=AIM,
        autocompletion=METHOD_NAMES,
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        "-t",
        help="A class by name or index; for a language model the next token; none for what is predicted. May be "
        "repeated: every target is a row of the sheet.",
        show_default=False,
        rich_help_panel=AIM,
        autocompletion=complete_class,
    ),
]
Versus = Annotated[
    str | None,
    typer.Option(
        help="Explain what speaks for the target rather than for this class.",
        rich_help_panel=AIM,
        autocompletion=complete_class,
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        help="recommended, paper, or official (what the authors' code computes).",
        rich_help_panel=AIM,
        autocompletion=PRESET_NAMES,
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.", rich_help_panel=AIM, autocompletion=DEVICE_NAMES)]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="A .png, .pdf or .html picture, or the numbers as .json or .npz (one file for each method and target, "
        "whose names become part of the file's), or - for JSON on stdout. For a folder of images, a folder. "
        "Default: the terminal.",
        show_default=False,
        rich_help_panel=RESULT,
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="For a folder of images: pictures, or parquet, a data set of all scores that a later run resumes.",
        rich_help_panel=RESULT,
    ),
]
Engine = Annotated[
    str, typer.Option("--engine", help="For a data set: local, or ray for several workers.", rich_help_panel=RESULT)
]
Page = Annotated[Path, typer.Option("--output", "-o", help="The page, a .html file.", rich_help_panel=RESULT)]
Method = Annotated[
    str,
    typer.Option(help="A method, with options if you like.", rich_help_panel=AIM, autocompletion=METHOD_NAMES),
]
Signed = Annotated[
    str,
    typer.Option(
        help="A signed method, with options if you like.",
        rich_help_panel=AIM,
        autocompletion=_completes(name for name, entry in METHODS.items() if entry.signed),
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=RESULT)]


def _show_version(wanted: bool) -> bool:  # noqa: FBT001  (typer calls it so)
    if wanted:
        typer.echo(f"vitrail {vitrail.__version__}")
        raise typer.Exit
    return wanted


Version = Annotated[bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)]
