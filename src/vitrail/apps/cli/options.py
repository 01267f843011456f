"""The words of the command line, shared by its commands."""

from pathlib import Path
from typing import Annotated

import typer

import vitrail

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
    str | None, typer.Option(help="The question, for a question-answering model.", rich_help_panel=INPUT)
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
        help="photo or sentiment (inside the package), a timm name, a Hugging Face id or folder, or a .safetensors "
        "file with --arch.",
        show_default=False,
        rich_help_panel=AIM,
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A timm name, a Hugging Face id or folder, or a .safetensors file.", show_default=False
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
    ),
]
Versus = Annotated[
    str | None,
    typer.Option(help="Explain what speaks for the target rather than for this class.", rich_help_panel=AIM),
]
Preset = Annotated[
    str,
    typer.Option(help="recommended, paper, or official (what the authors' code computes).", rich_help_panel=AIM),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.", rich_help_panel=AIM)]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="A .png, .pdf or .html picture, or the numbers as .json or .npz (one file for each method and target, "
        "whose names become part of the file's). For a folder of images, a folder. Default: the terminal.",
        show_default=False,
        rich_help_panel=RESULT,
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=RESULT)]


def _show_version(wanted: bool) -> bool:  # noqa: FBT001  (typer calls it so)
    if wanted:
        typer.echo(f"vitrail {vitrail.__version__}")
        raise typer.Exit
    return wanted


Version = Annotated[bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)]
