"""What a detector looked at for each object that it found: a map over the picture, with the box around the object."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer

from vitrail import targets
from vitrail.api import compare
from vitrail.apps.cli.checks import STDOUT, Source
from vitrail.apps.cli.screen import busy, note, show_table
from vitrail.apps.cli.session import ExplainedTarget, Work
from vitrail.apps.cli.show import WRITERS, strongest
from vitrail.attribution import Attribution
from vitrail.errors import InputError, OutputError
from vitrail.models.loading import Loaded, Sample, find_class
from vitrail.models.loading.images import open_image
from vitrail.plots.streams import boxes_figure
from vitrail.storage import save_figure, to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OBJECTS = 3
"""How many objects are explained where none is named."""
FIGURES = (".png", ".pdf")


@dataclass(frozen=True)
class Found:
    """An object: the query that found it, its class and probability, and its box as shares of width and height."""

    query: int
    label: int
    probability: float
    box: tuple[float, float, float, float]


def explain_boxes(loaded: Loaded, source: Source, wanted: Sequence[str], plan: Work, output: Path | None) -> None:
    """Find objects, explain them, and show or save that."""
    if source.given is None or source.question is not None or source.pair is not None or source.context is not None:
        raise InputError(f"{loaded.name} finds objects in one image: name an image, and no text.")
    sample = loaded.image(open_image(Path(source.given)), squash=source.squash)
    found = objects(loaded, sample, wanted)
    rows = [_row(loaded, sample, one, plan) for one in found]
    if output == STDOUT:
        for row in rows:
            for attribution in row.attributions:
                typer.echo(to_json(attribution))
        return
    lines = [(row.title, f"{one.probability:.3f}", _strongest(row)) for one, row in zip(found, rows, strict=True)]
    show_table(("object", "probability", "strongest patch (row, column)"), lines, "found")
    if output is not None:
        for path in save_rows(output, found, rows, sample):
            note(f"wrote {path}")


def objects(loaded: Loaded, sample: Sample, wanted: Sequence[str]) -> list[Found]:
    """The likeliest objects, or the likeliest of each class that is named."""
    inputs: Any = sample.inputs
    with torch.no_grad():
        out = loaded.model(**inputs)
    logits, boxes = out.logits[0].float(), out.pred_boxes[0].float()
    # Some models have a class for no object, which stands last; others give each class a probability of its own.
    whole = logits.shape[1] == loaded.classes
    shares = logits.sigmoid() if whole else logits.softmax(dim=1)[:, : loaded.classes]
    labels = [find_class(name, loaded.class_names, loaded.classes) for name in wanted]
    if labels:
        pairs = [(int(shares[:, label].argmax()), label) for label in labels]
    else:
        best = shares.amax(dim=1).topk(min(OBJECTS, len(shares))).indices.tolist()
        pairs = [(query, int(shares[query].argmax())) for query in best]
    return [Found(q, c, float(shares[q, c]), tuple(boxes[q].tolist())) for q, c in pairs]  # pyright: ignore[reportArgumentType]


def _row(loaded: Loaded, sample: Sample, one: Found, plan: Work) -> ExplainedTarget:
    title = f"{loaded.class_name(one.label)}, query {one.query}"
    with busy(f"explaining {title}"):
        target = targets.logit(one.label, position=one.query)
        return ExplainedTarget(title, list(compare(loaded.model, sample.inputs, plan.specs, target, plan.preset)))


def map_of(attribution: Attribution) -> Attribution:
    """The stream of the picture."""
    return next((one for one in attribution.streams.values() if one.kind == "image"), attribution)


def _strongest(row: ExplainedTarget) -> str:
    y, x, _ = strongest(map_of(row.attributions[0]))[0]
    return f"{y}, {x}"


def figure(found: Sequence[Found], rows: Sequence[ExplainedTarget], sample: Sample) -> "Figure":
    """One picture for each object and method."""
    panels = [
        (f"{row.title}, {one.probability:.0%} · {attribution.label}", map_of(attribution), one.box)
        for one, row in zip(found, rows, strict=True)
        for attribution in row.attributions
    ]
    return boxes_figure(panels, sample.picture)


def save_rows(path: Path, found: Sequence[Found], rows: list[ExplainedTarget], sample: Sample) -> list[Path]:
    """The files written."""
    try:
        if path.suffix.lower() in FIGURES:
            save_figure(figure(found, rows, sample), path)
            return [path]
        return WRITERS[path.suffix.lower()](path, rows, sample)
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error.strerror or error}") from error
