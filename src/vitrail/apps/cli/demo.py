"""The command `demo`: the embedded models on the pictures and sentences that come with the package."""

from pathlib import Path
from typing import Annotated

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.screen import busy, note, out, reported, show_line

HELP = """Explain two pictures, three sentences and an answer with the embedded models.

It needs no network. The page, the two sheets and the photographs go into
a folder; try the other commands on vitrail-demo/photos.
"""
COLOURS = "  (red speaks for the class, blue against it)"
FOLDER = Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")]


@reported
def command(output: FOLDER = Path("vitrail-demo"), debug: options.Debug = False) -> None:  # noqa: FBT002
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
