"""The command `demo`: the embedded models on the pictures and sentences that come with the package."""

from pathlib import Path
from typing import Annotated

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.screen import busy, note, out, reported, show_line

HELP = """Explain two pictures and three sentences with the embedded models.

It needs no network. The page and the two sheets go into a folder.
"""
FOLDER = Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")]


@reported
def command(output: FOLDER = Path("vitrail-demo"), debug: options.Debug = False) -> None:  # noqa: FBT002
    """Run the demo, show what the models said, and name the files."""
    with busy("importing torch"):
        from vitrail.apps.demo import SHOWN, run
        from vitrail.plots import terminal
    with busy("explaining two pictures and three sentences"):
        made = run(output)
    for one in made.pictures:
        show_line(("picture   ", "bold"), one.title)
    for one in made.sentences:
        (shown,) = (a for a in one.attributions if a.method == SHOWN)
        show_line(("sentence  ", "bold"), one.title, "  (green speaks for the class, red against it)")
        out().print(terminal(shown, merge=True))
    for path in made.paths:
        note(f"wrote {path}")
