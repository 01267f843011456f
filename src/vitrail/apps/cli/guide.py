"""The commands `guide` (a picture stitched to one of another class), `detail` (two classes of an input), `audit`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.options import (
    Source,
    aim_option,
    check_file,
    check_not_replaced,
    check_page,
    check_presets,
    check_source,
    result_option,
)
from vitrail.apps.cli.screen import busy, counted, note, reported, show_line, show_table
from vitrail.errors import InputError, OptionError, OutputError, TargetError, suggest
from vitrail.methods import parse_spec
from vitrail.models.folders import OF_CLASSES, folders_in, require_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitrail.apps.cli.session import ExplainedTarget
    from vitrail.attribution import Attribution
    from vitrail.models.loading import Loaded, Sample
    from vitrail.tools.audit import Audit
    from vitrail.tools.guide import Guided


GUIDE = """Explain a picture with a picture of another class beside it.

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
stitch_option = partial(typer.Option, rich_help_panel="How to stitch")
FIGURES = (".png", ".pdf")
METHOD = "complete_gradient"


@reported
def guide(  # noqa: PLR0913  (one parameter for each option of the command line)
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="The picture to explain.")],
    model: options.Model,
    arch: options.Arch = None,
    guide: Annotated[list[Path] | None, stitch_option(help="A picture of another class; repeat it to average.")] = None,
    layout: Annotated[str, stitch_option(help="beside, stacked or mosaic.")] = "beside",
    side: Annotated[
        str | None, stitch_option(help="Where the original stands: left, right; top, bottom; top_left, ...")
    ] = None,
    size: Annotated[
        str,
        stitch_option(
            help="resize: all fits into the model's size. native: the resolution stays, where positions can be "
            "interpolated."
        ),
    ] = "resize",
    method: options.Method = METHOD,
    target: Annotated[str, options.target_option(help="A class by name or index; none: the predicted.")] = "none",
    preset: options.Preset = "recommended",
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    output: options.Output = None,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Explain beside a guide."""
    source, spec = Source(image, squash=squash), parse_spec(method)
    check_source(source)
    if source.folder is not None:
        raise InputError(f"{source.given} is a folder, but guidance takes one picture.")
    for path in guide or []:
        if not path.is_file():
            raise InputError(f"there is no guide at {path}. Check its name and folder.")
    check_presets([spec], preset)
    check_file(output)
    check_not_replaced([output], [image, model, *(guide or [])])

    from vitrail.api import explain
    from vitrail.apps.cli.session import ExplainedTarget, check_specs, find_targets, open_model, sample_of
    from vitrail.apps.cli.show import WRITERS, present
    from vitrail.evaluate.stitch import SIZES, find_arrangement
    from vitrail.models.loading.images import open_image
    from vitrail.storage import save_figure
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
    name, more = spec[0], {"preset": preset, **spec[1]}
    shown = partial(loaded.image, squash=squash)
    setup = Setup(layout, side, size, name, more, shown, None, loaded.class_name)
    with busy("explaining beside the guide"):
        guides = [open_image(path) for path in guide] if guide else None
        made = guided(loaded.model, sample.inputs, guides, wanted, setup)
    found = average([one.part for one in made])
    names = ", ".join(loaded.class_name(classes[0]) for classes in found.provenance["guidance"]["guides"])
    row = ExplainedTarget(f"{loaded.target_name(found.target)}, guided by {names}", [found])

    def draw(path: Path, rows: "list[ExplainedTarget]", sample: "Sample") -> list[Path]:
        alone = explain(loaded.model, sample.inputs, name, found.target, **more)  # to compare with
        return [save_figure(_sheet(row, made[0], sample, loaded, alone), path)]

    present(loaded, sample, [row], output, WRITERS | dict.fromkeys(FIGURES, draw))


def _sheet(
    row: "ExplainedTarget", first: "Guided", sample: "Sample", loaded: "Loaded", alone: "Attribution"
) -> "Figure":
    """The picture, its map without guidance, the stitched picture with its map, and the part that is kept."""
    from vitrail.plots.pictures import Panel, as_picture, panel_figure, sample_map

    (found,) = row.attributions
    picture, stitched = as_picture(sample.picture), as_picture(loaded.pictures(first.stitched))
    panels = [
        Panel("input", picture=picture),
        Panel("alone", sample_map(alone, 0, picture), signed=alone.signed, picture=picture),
        Panel("stitched", sample_map(first.whole, 0, stitched), signed=first.whole.signed, picture=stitched),
        Panel("guided", sample_map(found, 0, picture), signed=found.signed, picture=picture),
    ]
    return panel_figure([panels], picture, heading=f"{found.label}\n{row.title}", side=2.2)


DETAIL = """Show which details speak for one class, and which for another.

Without --target and --versus: the first and the second class that the
model thinks of. Red is evidence for the first, blue for the second.

[bold]Examples[/]

  vitrail detail eagle.png -m vit_tiny_patch16_224 -o detail.png
  vitrail detail eagle.png -m vit_tiny_patch16_224 -t kite
      --versus "bald eagle" -o detail.png
  vitrail detail snail.png -m vit_tiny_patch16_224 --top 4 -o matrix.png
  vitrail detail "A dull film with a great cast." -m sentiment
"""


@reported
def detail(  # noqa: PLR0913  (one parameter for each option of the command line)
    model: options.Model,
    given: options.Given = None,
    arch: options.Arch = None,
    target: Annotated[str | None, aim_option("--target", "-t", help="The class in red, by name or index.")] = None,
    versus: Annotated[str | None, aim_option(help="The class in blue.")] = None,
    form: Annotated[
        str,
        aim_option(
            help="relative_difference (the paper's Eq. 8), difference, ratio, or auto: the first where it is safe, "
            "else the second."
        ),
    ] = "auto",
    method: options.Signed = METHOD,
    preset: options.Preset = "recommended",
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    top: Annotated[int | None, result_option(help="A sheet of the most likely classes, each against each.")] = None,
    output: options.Output = None,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Contrast two classes."""
    source, (name, more) = Source(given, squash=squash), parse_spec(method)
    _check_detail(source, target, versus, top, output)
    check_not_replaced([output], [given, model])
    check_presets([(name, more)], preset)

    from vitrail.apps.cli.session import ExplainedTarget, check_specs, class_index, open_model, sample_of
    from vitrail.apps.cli.show import present, show_answer
    from vitrail.storage import save_figure
    from vitrail.tools.guide import check_form, detail, detail_matrix

    check_form(form)
    check_specs([(name, more)], preset)
    loaded = open_model(model, arch, device)
    sample = sample_of(source, loaded)
    first, second = (None if text is None else class_index(loaded, text) for text in (target, versus))
    if first is not None and first == second:
        raise TargetError(f"--target and --versus name the same class, {loaded.class_name(first)}: name two.")
    explaining = {"form": form, "method": name, "preset": preset, **more}
    if top is not None and output is not None:
        show_answer(loaded, sample)
        with busy("explaining every pair of classes"):
            matrix = detail_matrix(loaded.model, sample.inputs, top=top, **explaining)
        names = [_classes(loaded, row[number])[0] for number, row in enumerate(matrix)]
        drawn = _image_matrix(names, matrix, sample) if loaded.kind == "image" else _text_matrix(names, matrix)
        note(f"wrote {save_figure(drawn, output)}")
        return
    with busy(f"explaining with {name}"):
        found = detail(loaded.model, sample.inputs, first, second, **explaining)
    chosen, (red, blue) = found.provenance["detail"], _classes(loaded, found)
    note(f"form: {chosen['form']} ({chosen['why']})")
    present(loaded, sample, [ExplainedTarget(f"red: {red} · blue: {blue}", [found])], output)


def _check_detail(source: Source, target: str | None, versus: str | None, top: int | None, output: Path | None) -> None:
    """Find what is wrong before the model is loaded."""
    check_source(source)
    if source.folder is not None:
        raise InputError(f"{source.given} is a folder, but a contrast explains one input. For a folder: vitrail audit.")
    if top is not None and (target is not None or versus is not None):
        raise OptionError("--top takes the most likely classes: leave out --target and --versus.")
    if top is not None and top < 2:
        raise OptionError(f"--top {top}: a sheet takes 2 classes or more.")
    check_file(output)
    if top is not None and (output is None or output.suffix.lower() not in FIGURES):
        raise OutputError("--top draws a sheet: name a .png or .pdf file for it with -o.")


def _classes(loaded: "Loaded", found: "Attribution") -> list[str]:
    """The names of the class in red and of the one in blue, if there is one."""
    both = [c[0] if isinstance(c, tuple) else c for c in (found.target.first, found.target.second)]
    return [loaded.class_name(c) for c in both if c is not None]


def _image_matrix(names: list[str], matrix: "list[list[Attribution]]", sample: "Sample") -> "Figure":
    from vitrail.plots.pictures import Panel, as_picture, panel_figure, sample_map

    picture = as_picture(sample.picture)
    rows = [
        [
            Panel(f"blue: {name}", sample_map(cell, 0, picture), signed=cell.signed)
            for name, cell in zip(names, row, strict=True)
        ]
        for row in matrix
    ]
    heading = f"{matrix[0][0].label}\nrow against column; on the diagonal the class alone"
    return panel_figure(rows, picture, row_titles=[f"red: {name}" for name in names], heading=heading)


def _text_matrix(names: list[str], matrix: "list[list[Attribution]]") -> "Figure":
    from vitrail.plots.tokens import SentenceRow, pieces, sentence_figure

    groups = []
    for own, row in zip(names, matrix, strict=True):
        titles = ["alone" if other == own else f"blue: {other}" for other in names]
        cells = [SentenceRow(title, pieces(cell, 0)) for title, cell in zip(titles, row, strict=True)]
        groups.append((f"red: {own}", cells))
    return sentence_figure(groups)


AUDIT = """Find the pictures of a labelled folder whose label the model doubts.

The folder holds one folder of pictures for each class, named like the
class (golf_ball), its index (574) or its WordNet id (n03445777). The page
ranks pictures by how much likelier the model finds another class, and
pairs of classes by how far apart it sees the two.

[bold]Examples[/]

  vitrail audit photos/ -m photo -o audit.html
  vitrail audit val/ -m weights.safetensors --arch vit_tiny_patch16_224
      --limit 20 -o audit.html
"""


@reported
def audit(  # noqa: PLR0913  (one parameter for each option of the command line)
    folder: Annotated[Path, typer.Argument(help="Holds a folder of pictures for each class.")],
    model: options.Model,
    arch: options.Arch = None,
    method: options.Signed = METHOD,
    preset: options.Preset = "recommended",
    limit: Annotated[int | None, options.input_option(help="Largest number of pictures of a class.", min=1)] = None,
    batch: Annotated[int, aim_option(help="Pictures explained together.", min=1)] = 16,
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    most: Annotated[int, result_option(help="Number of pictures on the page.", min=0)] = 60,
    output: options.Page = Path("audit.html"),
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Find the labels a model doubts."""
    check_page(output, "an audit")
    require_folder(folder, OF_CLASSES)
    check_not_replaced([output], [*folders_in(folder), model])
    name, more = parse_spec(method)
    check_presets([(name, more)], preset)

    from vitrail.apps.cli.session import check_specs, open_model
    from vitrail.tools import audit as tool

    check_specs([(name, more)], preset, "image")
    loaded = open_model(model, arch, device)
    if loaded.preprocess is None:
        raise InputError(f"{loaded.name} reads text, but an audit looks at pictures.")
    with counted("explaining") as moved:
        found = tool.audit(
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
    _show_audit(found)
    note(f"wrote {found.save(output, most=most)}")


def _show_audit(found: "Audit") -> None:
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
