"""A folder of images explained into a Parquet data set: `vitrail explain photos/ -o maps/ --format parquet`."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vitrail.apps.cli.screen import note
from vitrail.errors import InputError, OptionError, suggest

if TYPE_CHECKING:
    from vitrail.apps.cli.session import Work
    from vitrail.models.loading import Loaded
    from vitrail.targets import Target

FORMATS = {"pictures": "one picture for each image", "parquet": "a data set of scores, which a later run resumes"}
BATCH = {"cuda": 64}
FEW = 8
"""Images that are explained together, by type of device, and elsewhere."""


def check_format(form: str, *, folder: Path | None, engine: str) -> None:
    """Refuse what does not go together, before anything is loaded."""
    if form not in FORMATS:
        raise OptionError(f"--format {form} is not a choice. {suggest(form, FORMATS)}")
    if form == "parquet" and folder is None:
        raise OptionError("--format parquet is for a folder of images. One explanation: -o scores.npz.")
    if form != "parquet" and engine != "local":
        raise OptionError("--engine is for data sets: --format parquet.")


def explain_data_set(folder: Path, place: Path, loaded: "Loaded", plan: "Work", *, squash: bool, engine: str) -> None:
    """All images of a folder; those that are none are named at the end."""
    from vitrail.evaluate.bench.opened import setup_hash
    from vitrail.many import explain_many, picture_batches

    if loaded.kind != "image":
        raise InputError(f"{loaded.name} reads text, but {folder} is a folder, which is read as images.")
    if len(plan.specs) != 1 or len(plan.targets) > 1:
        raise OptionError("a data set holds one method and one target: name one --method, and one --target at most.")
    ((method, options),) = plan.specs
    images, broken = _readable(folder)
    device = next(loaded.model.parameters()).device.type
    preparation = f"squash={squash} {setup_hash(loaded)}"
    prepare = partial(_inputs, loaded, squash)
    batches = picture_batches(images, prepare, size=BATCH.get(device, FEW), preparation=preparation)
    target = _class_of(plan.targets[0]) if plan.targets else None
    made: Any = {**options, "preset": options.get("preset", plan.preset)}
    found = explain_many(loaded.model, batches, method, target, output=place, engine=engine, **made)
    note(f"{found.inputs} images in {place}, {found.explained} of them explained now")
    for path in broken:
        note(f"left out: {path.name} is no image that can be read")
    if broken:
        raise typer.Exit(1)


def _readable(folder: Path) -> tuple[list[Path], list[Path]]:
    """The images of a folder by their first bytes, and the files that are named like images and are none."""
    from PIL import Image

    from vitrail.models.loading.images import BROKEN, images_in, readable_formats

    images, sound = images_in(folder), []
    for path in images:
        with suppress(*BROKEN), Image.open(path, formats=readable_formats()):
            sound.append(path)
    if not sound:
        raise InputError(f"none of the {len(images)} images of {folder} can be read.")
    return sound, sorted(set(images) - set(sound))


def _class_of(target: "Target | None") -> "Target | int | None":
    """A target as the index of its class, if it is one logit: such explanations are recorded on CUDA."""
    if target is not None and target.name == "logit" and isinstance(target.first, int):
        return target.first
    return target


def _inputs(loaded: "Loaded", squash: bool, image: Any) -> Any:  # noqa: ANN401, FBT001
    return loaded.image(image, squash=squash).inputs
