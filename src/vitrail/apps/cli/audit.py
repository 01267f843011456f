"""The command `audit`: from a labelled folder to a page of labels that the model doubts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.guide import METHOD
from vitrail.apps.cli.options import check_apart, check_page, check_presets
from vitrail.apps.cli.screen import counted, note, reported, show_line, show_table
from vitrail.errors import InputError
from vitrail.methods import parse_spec

if TYPE_CHECKING:
    from vitrail.tools.audit import Audit

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
MOST = Annotated[int, typer.Option(help="Number of pictures on the page.", min=0, rich_help_panel=options.RESULT)]
LIMIT = Annotated[
    int | None,
    typer.Option(help="Largest number of pictures of a class.", min=1, rich_help_panel=options.INPUT),
]
BATCH = Annotated[int, typer.Option(help="Pictures explained together.", min=1, rich_help_panel=options.AIM)]


@reported
def command(  # noqa: PLR0913  (one parameter for each option of the command line)
    folder: FOLDER,
    model: options.Model,
    arch: options.Arch = None,
    method: options.Signed = METHOD,
    preset: options.Preset = "recommended",
    limit: LIMIT = None,
    batch: BATCH = 16,
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    most: MOST = 60,
    output: options.Page = Path("audit.html"),
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Find the labels a model doubts."""
    check_page(output, "an audit")
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}.")
    check_apart([output], [*(inside for inside in folder.iterdir() if inside.is_dir()), model])
    name, more = parse_spec(method)
    check_presets([(name, more)], preset)

    from vitrail.apps.cli.session import check_specs, open_model
    from vitrail.tools.audit import audit

    check_specs([(name, more)], preset, "image")
    loaded = open_model(model, arch, device)
    if loaded.preprocess is None:
        raise InputError(f"{loaded.name} reads text, but an audit looks at pictures.")
    with counted("explaining") as moved:
        found = audit(
            loaded.model,
            folder,
            class_names=loaded.class_names or tuple(f"class {i}" for i in range(loaded.classes)),
            preprocess=lambda image: loaded.image(image, squash=squash),
            method=name,
            limit=limit,
            batch=batch,
            watch=moved,
            preset=preset,
            **more,
        )
    _show(found)
    note(f"wrote {found.save(output, most=most)}")


def _show(found: "Audit") -> None:
    """The first few of each ranking, and what was left out."""
    doubted = sum(one.gap > 0 for one in found.findings)
    show_line(
        f"{found.images} pictures: {found.agreed} are predicted as labelled, {doubted} as another class, "
        f"{len(found.findings) - doubted} as labelled but not clearly"
    )
    columns = ("picture", "label", "probability", "rival", "its probability", "distance")
    rows = [
        (
            f"{one.path.parent.name}/{one.path.name}",
            found.name(one.label), f"{one.label_probability:.2f}",
            found.name(one.rival), f"{one.rival_probability:.2f}", f"{one.apart:.2f}",
        )
        for one in found.findings[:5]
    ]  # fmt: skip
    if rows:
        show_table(columns, rows, "labels the model doubts most")
    for name, reason in found.left_out.items():
        note(f"left out the folder {name}: {reason}")
    for name, reason in found.broken.items():
        note(f"could not read {name}: {reason}")
