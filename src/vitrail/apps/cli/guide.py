"""The command `guide`: a picture explained beside a picture of another class."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.checks import Source, check_apart, check_file, check_presets, check_source
from vitrail.apps.cli.screen import busy, note, reported
from vitrail.errors import InputError, OptionError, suggest
from vitrail.methods.spec import Spec, parse_spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from vitrail.apps.cli.session import ExplainedTarget
    from vitrail.attribution import Attribution
    from vitrail.models.loading import Loaded, Sample
    from vitrail.tools.guide import Guided

HELP = """Explain a picture with a picture of another class beside it.

Where a picture shows one object, signed maps have nothing to contrast it
with. The guide gives them that; the map of your picture alone is kept.
Without --guide: of two pictures in the package, the one that your model
is surest of and that shows another class.

[bold]Examples[/]

  vitrail guide cat.png -m vit_tiny_patch16_224 -o map.png
  vitrail guide cat.png -m vit_tiny_patch16_224 --guide zebra.png -t tabby
  vitrail guide cat.png -m photo --layout stacked --side bottom
  vitrail guide cat.png -m vit_tiny_patch16_224 --size native
"""
STITCH = "How to stitch"
FIGURES = (".png", ".pdf")
IMAGE = Annotated[str, typer.Argument(metavar="IMAGE", help="The picture to explain.", show_default=False)]
GUIDES = Annotated[
    list[Path] | None,
    typer.Option("--guide", help="A picture of another class; repeat it to average.", rich_help_panel=STITCH),
]
LAYOUT = Annotated[str, typer.Option(help="beside, stacked or mosaic.", rich_help_panel=STITCH)]
SIDE = Annotated[
    str | None,
    typer.Option(help="Where the original stands: left, right; top, bottom; top_left, ...", rich_help_panel=STITCH),
]
SIZE = Annotated[
    str,
    typer.Option(
        help="resize: all fits into the model's size. native: the resolution stays, where positions can be "
        "interpolated.",
        rich_help_panel=STITCH,
    ),
]
METHOD = "complete_gradient"
TARGET = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        help="A class by name or index; none: the predicted.",
        rich_help_panel=options.AIM,
        autocompletion=options.complete_class,
    ),
]


@reported
def command(  # noqa: PLR0913  (one parameter for each option of the command line)
    image: IMAGE,
    model: options.Model,
    arch: options.Arch = None,
    guide: GUIDES = None,
    layout: LAYOUT = "beside",
    side: SIDE = None,
    size: SIZE = "resize",
    method: options.Method = METHOD,
    target: TARGET = "none",
    preset: options.Preset = "recommended",
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    output: options.Output = None,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Explain beside a guide."""
    source, spec = Source(image, squash=squash), parse_spec(method)
    _check(source, guide or [], spec, preset, output)
    check_apart([output], [image, model, *(guide or [])])

    from vitrail.apps.cli.session import ExplainedTarget, check_specs, find_targets, open_model, sample_of
    from vitrail.apps.cli.show import present, show_answer, show_rows
    from vitrail.evaluate.stitch import SIZES, find_arrangement
    from vitrail.tools.guide import Setup, average, guided

    find_arrangement(layout, side)
    if size not in SIZES:
        raise OptionError(f"there is no size {size!r}. {suggest(size, SIZES)}")
    check_specs([spec], preset, "image")
    loaded = open_model(model, arch, device)
    if loaded.kind != "image":
        raise InputError(f"{loaded.name} reads text, but guidance stitches pictures. For text: vitrail detail.")
    sample = sample_of(source, loaded)
    (wanted,) = find_targets(loaded, [target], None)
    shown = partial(loaded.image, squash=squash)
    setup = Setup(layout, side, size, spec[0], {"preset": preset, **spec[1]}, shown, None, loaded.class_name)
    with busy("explaining beside the guide"):
        made = guided(loaded.model, sample.inputs, _opened(guide), wanted, setup)
    found = average([one.part for one in made])
    row = ExplainedTarget(f"{loaded.target_name(found.target)}, guided by {_names(loaded, found)}", [found])
    if output is None or output.suffix.lower() not in FIGURES:
        present(loaded, sample, [row], output)
        return
    show_answer(loaded, sample)
    show_rows([row], patches=False)
    note(f"wrote {_write(output, row, made[0], sample, loaded, _alone(loaded, sample, found, spec, preset))}")


def _check(source: Source, guides: Sequence[Path], spec: Spec, preset: str, output: Path | None) -> None:
    """Find what is wrong before the model is loaded."""
    check_source(source)
    if source.folder is not None:
        raise InputError(f"{source.given} is a folder, but guidance takes one picture.")
    for path in guides:
        if not path.is_file():
            raise InputError(f"there is no guide at {path}. Check its name and folder.")
    check_presets([spec], preset)
    if output is not None:
        check_file(output)


def _opened(guides: Sequence[Path] | None) -> list[object] | None:
    from vitrail.models.loading.images import open_image

    return [open_image(path) for path in guides] if guides else None


def _names(loaded: "Loaded", found: "Attribution") -> str:
    return ", ".join(loaded.class_name(classes[0]) for classes in found.provenance["guidance"]["guides"])


def _alone(loaded: "Loaded", sample: "Sample", found: "Attribution", spec: Spec, preset: str) -> "Attribution":
    """The same method and target on the picture alone, to compare with."""
    from vitrail.api import explain

    name, more = spec
    return explain(loaded.model, sample.inputs, name, found.target, **{"preset": preset, **more})


def _write(
    path: Path, row: "ExplainedTarget", first: "Guided", sample: "Sample", loaded: "Loaded", alone: "Attribution"
) -> Path:
    from vitrail.storage import save_figure

    return save_figure(_sheet(row, first, sample, loaded, alone), path)


def _sheet(
    row: "ExplainedTarget", first: "Guided", sample: "Sample", loaded: "Loaded", alone: "Attribution"
) -> "Figure":
    """The picture, its map without guidance, the stitched picture with its map, and the part that is kept."""
    from vitrail.plots.pictures import Panel, as_picture, panel_figure, sample_map

    (found,) = row.attributions
    picture, stitched = as_picture(sample.picture), as_picture(_in_colours(first.stitched, loaded))
    panels = [
        Panel("input", picture=picture),
        Panel("alone", sample_map(alone, 0, picture), signed=alone.signed, picture=picture),
        Panel("stitched", sample_map(first.whole, 0, stitched), signed=first.whole.signed, picture=stitched),
        Panel("guided", sample_map(found, 0, picture), signed=found.signed, picture=picture),
    ]
    return panel_figure([panels], picture, heading=f"{found.label}\n{row.title}", side=2.2)


def _in_colours(stitched: "Tensor", loaded: "Loaded") -> "Tensor":
    """The stitched input as a picture in 0..1."""
    from vitrail.evaluate.bench.opened import affine

    shift, scale = affine(loaded)
    return ((stitched - shift.to(stitched)) / scale.to(stitched)).clamp(0, 1)
