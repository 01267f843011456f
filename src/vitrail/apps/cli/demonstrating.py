"""The command `demo`: the embedded models on the pictures and sentences that come with the package."""

from pathlib import Path

from rich.text import Text

from vitrail.apps.cli.reporting import note, out

IN_TERMINAL = "attcat"


def run_demo(folder: Path) -> None:
    """Run the demo, show what the models said, and name the files."""
    from vitrail.apps.demo import run
    from vitrail.plots import terminal

    note("explaining two pictures and three sentences with two small models of our own training, offline")
    made = run(folder)
    for one in made.pictures:
        out().print(Text.assemble(("picture   ", "bold"), one.title))
    for one in made.sentences:
        (shown,) = (a for a in one.attributions if a.method == IN_TERMINAL)
        out().print(Text.assemble(("sentence  ", "bold"), one.title, f"  ({IN_TERMINAL}: green for, red against)"))
        out().print(terminal(shown, merge=True))
    for path in made.paths:
        out().print(Text(f"wrote {path}"), soft_wrap=True)
