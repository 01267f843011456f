"""The command `audit`: a labelled folder, and a page of the labels a model doubts."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

import vitrail
from vitrail.apps.cli import options
from vitrail.apps.cli.opening import open_model
from vitrail.apps.cli.outputs import check_apart, check_file
from vitrail.apps.cli.reporting import note, out, reported
from vitrail.apps.cli.specs import check_specs, parse_spec
from vitrail.errors import InputError, OutputError
from vitrail.models.loading import Loaded
from vitrail.tools.audit import Audit
from vitrail.tools.detail import DEFAULT_METHOD

HELP = """Find the pictures of a labelled folder whose label the model doubts.

The folder holds one folder of pictures for each class, named like the
class (golf_ball), its index (574) or its WordNet id (n03445777). The page
ranks pictures by how much likelier the model finds another class, and
pairs of classes by how far apart it sees the two.

[bold]Examples[/]

  vitrail audit photos/ -m photo -o audit.html
  vitrail audit val/ -m weights.safetensors --arch vit_tiny_patch16_224
      --limit 20 -o audit.html
"""
FOLDER = Annotated[Path, typer.Argument(help="Holds a folder of pictures for each class.", show_default=False)]
PAGE = Annotated[Path, typer.Option("--output", "-o", help="The page, a .html file.", rich_help_panel=options.RESULT)]
MOST = Annotated[int, typer.Option(help="So many pictures on the page.", min=0, rich_help_panel=options.RESULT)]
LIMIT = Annotated[
    int | None,
    typer.Option(help="At most so many pictures of a class.", min=1, rich_help_panel=options.INPUT),
]
BATCH = Annotated[int, typer.Option(help="Pictures explained together.", min=1, rich_help_panel=options.AIM)]
METHOD = Annotated[str, typer.Option(help="A signed method, with options if you like.", rich_help_panel=options.AIM)]


@reported
def command(  # noqa: PLR0913  (one parameter for each option of the command line)
    folder: FOLDER,
    model: options.Model,
    arch: options.Arch = None,
    method: METHOD = DEFAULT_METHOD,
    preset: options.Preset = "recommended",
    limit: LIMIT = None,
    batch: BATCH = 16,
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    most: MOST = 60,
    output: PAGE = Path("audit.html"),
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Find the labels a model doubts."""
    check_file(output)
    if output.suffix.lower() != ".html":
        raise OutputError(f"{output} is no .html file, but an audit is a page.")
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}.")
    check_apart([output], [*(inside for inside in folder.iterdir() if inside.is_dir()), model])
    name, more = parse_spec(method)
    check_specs([(name, more)], preset, "image")
    loaded = open_model(model, arch, device)
    if loaded.preprocess is None:
        raise InputError(f"{loaded.name} reads text, but an audit looks at pictures.")
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("looking", total=None)
        found = vitrail.audit(
            loaded.model,
            folder,
            class_names=loaded.class_names or tuple(f"class {i}" for i in range(loaded.classes)),
            preprocess=lambda image: loaded.image(image, squash=squash),
            method=name,
            limit=limit,
            batch=batch,
            watch=lambda done, total: bar.update(task, completed=done, total=total),
            preset=preset,
            **more,
        )
    _show(found, loaded)
    note(f"wrote {found.save(output, most=most)}")


def _show(found: Audit, loaded: Loaded) -> None:
    """The first few of each ranking, and what was left out."""
    from rich.table import Table
    from rich.text import Text

    doubted = sum(one.gap > 0 for one in found.findings)
    out().print(
        f"{found.images} pictures: {found.agreed} are predicted as labelled, {doubted} as another class, "
        f"{len(found.findings) - doubted} as labelled but not clearly"
    )
    table = Table("picture", "label", "", "rival", "", "distance", title="labels the model doubts most")
    for one in found.findings[:5]:
        table.add_row(
            Text(f"{one.path.parent.name}/{one.path.name}"),
            Text(found.name(one.label)), f"{one.label_probability:.2f}",
            Text(found.name(one.rival)), f"{one.rival_probability:.2f}", f"{one.apart:.2f}",
        )  # fmt: skip
    if found.findings:
        out().print(table)
    for name, reason in found.left_out.items():
        note(f"left out the folder {name}: {reason}")
    for name, reason in found.broken.items():
        note(f"could not read {name}: {reason}")
