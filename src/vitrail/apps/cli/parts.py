"""Explanations of parts of an output: objects that a detector found, words that a model wrote.

An object is shown as a map over the picture with the box around it, words by the streams of tokens they rest on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitrail import targets
from vitrail.api import compare
from vitrail.apps.cli.options import Source, read_text
from vitrail.apps.cli.screen import busy, out, show_line, show_table
from vitrail.apps.cli.session import ExplainedTarget, Work
from vitrail.apps.cli.show import PAGE_STYLE, PATCHES, WRITERS, present_rows, strongest
from vitrail.attribution import Attribution
from vitrail.errors import InputError, TargetError
from vitrail.models.loading import Loaded, Sample, find_class
from vitrail.models.loading.huggingface import answer_ids, answer_text, answer_words
from vitrail.models.loading.images import open_image
from vitrail.plots import terminal
from vitrail.plots.figures import named_tokens, stream_label, streams_sheet
from vitrail.plots.page import attribution_block, document, render
from vitrail.plots.pictures import Panel, as_picture, panel_figure, sample_map
from vitrail.plots.tokens import join_runs, pieces
from vitrail.storage import save_figure, write_bytes

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

    def show() -> None:
        lines = [(row.title, f"{one.probability:.3f}", _strongest(row)) for one, row in zip(found, rows, strict=True)]
        show_table(("object", "probability", "strongest patch (row, column)"), lines, "found")

    def save(path: Path, rows: list[ExplainedTarget], sample: Sample) -> list[Path]:
        save_figure(figure(found, rows, sample), path)
        return [path]

    present_rows(sample, rows, output, show, WRITERS | dict.fromkeys(FIGURES, save))


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
    picture = as_picture(sample.picture)
    panels = []
    for one, row in zip(found, rows, strict=True):
        for attribution in row.attributions:
            shown, title = map_of(attribution), f"{row.title}, {one.probability:.0%} · {attribution.label}"
            panels.append(Panel(title, sample_map(shown, 0, picture), signed=shown.signed, box=one.box))
    return panel_figure([panels], picture, side=3.0)


def explain_writing(loaded: Loaded, source: Source, wanted: Sequence[str], plan: Work, output: Path | None) -> None:
    """Let the model write, explain what it wrote, and show or save that."""
    with busy("writing"):
        sample = written(source, loaded)
    rows = explained(loaded, sample, wanted, plan)

    def show() -> None:
        show_line(("answer ", "bold"), answer_text(loaded, sample))
        for row in rows:
            for attribution in row.attributions:
                _show(row.title, attribution)

    present_rows(sample, rows, output, show, WRITERS | dict.fromkeys(FIGURES, _save_sheet) | {".html": _save_page})


def written(source: Source, loaded: Loaded) -> Sample:
    """The source that is named, and what the model wrote for it."""
    for name, value in {"pair": source.pair, "context": source.context}.items():
        if value is not None:
            raise InputError(f"--{name} does not apply to {loaded.name}, which writes text about a {loaded.source}.")
    if source.given is None:
        raise InputError(f"there is nothing to explain: {loaded.name} is given {GIVEN[loaded.source or 'text']}.")
    if (source.question is None) == (loaded.source == "question"):
        what = "give --question TEXT" if source.question is None else "leave out --question"
        raise InputError(f"{loaded.name} is given {GIVEN[loaded.source or 'text']}: {what}.")
    assert loaded.write is not None
    if loaded.source == "text":
        return loaded.write(read_text(source.given))
    if loaded.source == "sound":
        return loaded.write(Path(source.given))
    image = open_image(Path(source.given))
    return loaded.write(image) if source.question is None else loaded.write(image, read_text(source.question))


GIVEN = {
    "text": "a text",
    "sound": "a .wav file",
    "picture": "an image",
    "question": "an image and --question TEXT",
}


def explained(loaded: Loaded, sample: Sample, wanted: Sequence[str], plan: Work) -> list[ExplainedTarget]:
    """The whole answer, then the words of it that are named; `all` stands for every word."""
    known = answer_words(loaded, sample)
    if not known:
        raise TargetError(f"{loaded.name} wrote no word, only the tokens {answer_ids(sample)}.")
    chosen = [("the answer", (known[0][1][0], known[-1][1][1]))]
    for name in wanted:
        found = known if name == "all" else [one for one in known if one[0].casefold() == name.strip().casefold()]
        if not found:
            raise TargetError(f"{name!r} is no word of the answer, which is: {' '.join(text for text, _ in known)}.")
        chosen += found
    rows = []
    for title, (start, stop) in chosen:
        with busy(f"explaining {title}"):
            target = targets.continuation(start, stop)
            found = compare(loaded.model, sample.inputs, plan.specs, target, plan.preset)
        rows.append(ExplainedTarget(title, [named_tokens(one, loaded.tokenizer) for one in found]))
    return rows


def _show(title: str, attribution: Attribution) -> None:
    """Texts with their tokens shaded, pictures by their strongest patches."""
    for name, one in (attribution.streams or {"": attribution}).items():
        heading = f"{name} · {title}".removeprefix(" · ")
        label = stream_label(attribution)
        if one.kind == "image":
            lines = [(y, x, f"{score:.3g}") for y, x, score in strongest(one)[:PATCHES]]
            show_table(("row", "column", "score"), lines, f"{label} · {heading}: strongest patches")
        elif one.tokens is not None and out().is_terminal:
            show_line((label, "bold"), f" · {heading}")
            out().print(terminal(one))
        elif one.tokens is not None:
            lines = [(label, heading, p.raw, f"{p.value:.6g}") for p in join_runs(pieces(one, 0))]
            show_table(("method", "target", "token", "score"), lines)


def _save_sheet(path: Path, rows: list[ExplainedTarget], sample: Sample) -> list[Path]:
    """Every stream of every row in one figure."""
    named = [(f"{row.title} · {stream_label(one)}", one) for row in rows for one in row.attributions]
    save_figure(streams_sheet(named, sample.picture, sound=sample.sound), path)
    return [path]


def _save_page(path: Path, rows: list[ExplainedTarget], sample: Sample) -> list[Path]:
    """One part for each row, with links from the words to them."""
    parts = [(row.title, [attribution_block(one, sample.picture, index=0) for one in row.attributions]) for row in rows]
    body = render("apps/cli/maps.html", parts=parts, links=True)
    return [write_bytes(path, document(rows[0].title, body, style=PAGE_STYLE).encode())]
