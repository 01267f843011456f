"""The commands `explain` and `compare`: one input, or every image of a folder."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import track

from vitrail.apps.cli.aims import find_targets
from vitrail.apps.cli.opening import open_model
from vitrail.apps.cli.outputs import check_apart, check_file, check_folder, distinct, write
from vitrail.apps.cli.reporting import note
from vitrail.apps.cli.results import Plan, explain_sample
from vitrail.apps.cli.show import show_answer, show_rows
from vitrail.apps.cli.sources import Source, check_source, images_in, sample_of
from vitrail.apps.cli.specs import Spec, applicable, check_specs
from vitrail.errors import InputError, OutputError, VitrailError
from vitrail.methods import METHODS
from vitrail.models.loading import Loaded


@dataclass(frozen=True)
class Request:
    """What a user asked for.

    Args:
        specs: None for all methods that apply.
    """

    source: Source
    model: str
    arch: str | None
    device: str
    specs: Sequence[Spec] | None
    targets: Sequence[str]
    versus: str | None
    preset: str
    output: Path | None

    @property
    def files(self) -> list[str | None]:
        """What may be a file that is read."""
        source = self.source
        return [source.given, source.pair, source.question, source.context, self.model]


def run(request: Request) -> None:
    """Check everything that can be checked, then load the model and explain."""
    folder = request.source.folder
    if folder is not None:
        _check_places(folder, check_folder(request.output), request)
    elif request.output is not None:
        check_file(request.output)
        check_apart([request.output], request.files)
    _check_early(request)
    loaded = open_model(request.model, request.arch, request.device)
    plan = _plan(request, loaded)
    if folder is None:
        _explain_one(request, loaded, plan)
    else:
        _explain_folder(folder, request, loaded, plan)


def _check_places(folder: Path, place: Path, request: Request) -> None:
    """Raise if a picture would be replaced by its map."""
    if place.exists() and place.samefile(folder):
        raise OutputError(f"{place} is the folder of the images themselves: name another folder for the pictures.")
    check_apart([place / name for name in _names(_images(folder)).values()], [*_images(folder), *request.files])


def _images(folder: Path) -> list[Path]:
    """The images of a folder; none where it has none, which is told later."""
    try:
        return images_in(folder)
    except InputError:
        return []


def _check_early(request: Request) -> None:
    """Find a missing input, a wrong preset or option value before the model is loaded."""
    check_source(request.source)
    for spec in request.specs or ():
        check_specs([spec], request.preset, kind=METHODS[spec[0]].inputs[0] if spec[0] in METHODS else "image")


def _plan(request: Request, loaded: Loaded) -> Plan:
    specs = request.specs if request.specs is not None else applicable(request.preset, loaded.kind)
    check_specs(specs, request.preset, loaded.kind)
    targets = find_targets(loaded, request.targets, request.versus)
    return Plan(specs, targets, request.preset, lenient=request.specs is None)


def _explain_one(request: Request, loaded: Loaded, plan: Plan) -> None:
    sample = sample_of(request.source, loaded)
    rows = explain_sample(loaded, sample, plan)
    show_answer(loaded, sample)
    show_rows(rows, patches=request.output is None)
    if request.output is not None:
        for path in write(request.output, rows, sample):
            note(f"wrote {path}")


def _explain_folder(folder: Path, request: Request, loaded: Loaded, plan: Plan) -> None:
    """One picture for each image; those that fail are named at the end."""
    if loaded.kind != "image":
        raise InputError(f"{loaded.name} reads text, but {folder} is a folder, which is read as images.")
    images, place = images_in(folder), check_folder(request.output)
    place.mkdir(exist_ok=True)
    names = _names(images)
    failed: list[str] = []
    for image in track(images, "explaining", console=Console(stderr=True)):
        try:
            sample = sample_of(replace(request.source, given=str(image)), loaded)
            write(place / names[image], explain_sample(loaded, sample, plan), sample)
        except VitrailError as error:
            failed.append(f"failed: {error}")
    note(f"wrote {len(images) - len(failed)} of {len(images)} pictures to {place}")
    for line in failed:
        note(line)
    if failed:
        raise typer.Exit(1)


def _names(images: list[Path]) -> dict[Path, str]:
    """The name of each picture; the image's ending stays in it where two images share a stem."""
    stems = Counter(image.stem.casefold() for image in images)
    names = [image.name if stems[image.stem.casefold()] > 1 else image.stem for image in images]
    return {image: f"{name}.png" for image, name in zip(images, distinct(names), strict=True)}
