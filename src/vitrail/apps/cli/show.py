"""Explanations on the terminal, in a pipe and in files; also of parts of an output.

Parts of an output are objects that a detector found and words that a model wrote.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer
from torch import Tensor

from vitrail import targets
from vitrail.apps.cli.options import STDOUT, Source, distinct, read_text
from vitrail.apps.cli.screen import busy, note, out, show_line, show_table
from vitrail.apps.cli.session import ExplainedTarget
from vitrail.attribution import Attribution
from vitrail.capture.outputs import read_output
from vitrail.errors import InputError, OutputError, TargetError
from vitrail.models.loading import Loaded, Sample, find_class
from vitrail.models.loading.huggingface import answer_ids, answer_text, answer_words
from vitrail.models.loading.images import open_image
from vitrail.plots import comparison_sheet, plot_attribution, terminal
from vitrail.plots.figures import named_tokens, stream_label, streams_sheet
from vitrail.plots.page import attribution_block, document, render
from vitrail.plots.pictures import Panel, as_picture, panel_figure, sample_map
from vitrail.plots.tokens import join_runs, pieces
from vitrail.storage import save, save_figure, to_json, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Rows = list[ExplainedTarget]
Writer = Callable[[Path, Rows, Sample], list[Path]]
ExplainInputs = Callable[..., Iterable[Attribution]]
"""Takes inputs and `target=`, gives the maps of all methods."""
CLASSES = 5
PATCHES = 5
PAGE_STYLE = "main{font-family:system-ui,sans-serif;max-width:60em;margin:1em auto}h2{margin:.4em .7em}"
UNSURE = 0.7
"""Below this probability a demonstration model says which classes it knows."""


def show_answer(loaded: Loaded, sample: Sample) -> None:
    """Print the model's prediction: its first five classes or next tokens, or the answer to a question."""
    given = sample.inputs
    with torch.no_grad():
        if isinstance(given, Tensor):
            output = read_output(loaded.model(given))
        else:
            output = read_output(loaded.model(**{n: x for n, x in given.items() if n != "special_tokens_mask"}))
    logits = output.logits[0].float()
    if output.span:
        start, end = (int(i) for i in logits.argmax(dim=0))
        words = loaded.tokenizer.decode(given["input_ids"][0, start : end + 1])  # pyright: ignore
        show_line(("answer ", "bold"), words if start <= end else "none: the end it predicts lies before the start")
        return
    best = (logits[-1] if logits.ndim == 2 else logits).softmax(dim=0).topk(min(CLASSES, logits.shape[-1]))
    found = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    rows = [(loaded.class_name(index), index, f"{value:.3f}") for index, value in found]
    show_table(("class", "index", "probability"), rows, "next token" if loaded.task == "causal" else "prediction")
    if loaded.demonstration and loaded.class_names and found[0][1] < UNSURE:
        names = ", ".join(loaded.class_names)
        note(
            f"note: {loaded.name} is unsure. This demonstration model knows {loaded.classes} classes ({names}). For "
            f"your own {loaded.kind}s pass another model with --model."
        )


def show_rows(rows: Rows, *, patches: bool) -> None:
    """Every text with its tokens shaded; for images the strongest patches, if they are asked for."""
    if not out().is_terminal:
        _show_numbers(rows, patches=patches)
        return
    for row in rows:
        for attribution in row.attributions:
            if attribution.kind == "text":
                show_line((attribution.label, "bold"), f" · {row.title}")
                out().print(terminal(attribution))
        if patches and row.attributions[0].kind == "image":
            columns = ("method", *(f"{place}." for place in range(1, PATCHES + 1)))
            cells = [(a.label, *(f"{y}, {x}: {score:.2g}" for y, x, score in strongest(a))) for a in row.attributions]
            show_table(columns, cells, f"strongest patches for {row.title} (row, column: score)")


def _show_numbers(rows: Rows, *, patches: bool) -> None:
    """One line for each token or strongest patch, with its score."""
    every = [(row.title, attribution) for row in rows for attribution in row.attributions]
    if every[0][1].kind == "text":
        typer.echo("")
        lines = [(a.label, title, p.raw, f"{p.value:.6g}") for title, a in every for p in pieces(a, 0)]
        show_table(("method", "target", "token", "score"), lines)
    elif patches:
        typer.echo("")
        lines = [(a.label, title, y, x, f"{s:.6g}") for title, a in every for y, x, s in strongest(a)]
        show_table(("method", "target", "row", "column", "score"), lines)


def strongest(attribution: Attribution) -> list[tuple[int, int, float]]:
    """Row, column and score of the strongest patches of the first sample, counted from the top left."""
    assert attribution.grid is not None
    wide = attribution.grid[1]
    return [(one.position // wide, one.position % wide, one.score) for one in attribution.top(PATCHES)]


def present(
    loaded: Loaded, sample: Sample, rows: Rows, output: Path | None, writers: Mapping[str, Writer] | None = None
) -> None:
    """The answer and the explanation of one sample."""

    def show() -> None:
        show_answer(loaded, sample)
        show_rows(rows, patches=output is None)

    present_rows(sample, rows, output, show, writers or WRITERS)


def present_rows(
    sample: Sample, rows: Rows, output: Path | None, show: Callable[[], None], writers: Mapping[str, Writer]
) -> None:
    """JSON alone if the output is stdout, else the screen and, if named, a file."""
    if output == STDOUT:
        for row in rows:
            for attribution in row.attributions:
                typer.echo(to_json(attribution))
        return
    show()
    if output is not None:
        for path in write(output, rows, sample, writers):
            note(f"wrote {path}")


def write(path: Path, rows: Rows, sample: Sample, writers: Mapping[str, Writer] | None = None) -> list[Path]:
    """The files written: one, or one for each method and target where a file holds one attribution."""
    try:
        return (writers or WRITERS)[path.suffix.lower()](path, rows, sample)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error.strerror or error}") from error


def _below(sample: Sample) -> Any:  # noqa: ANN401
    """Return what maps are drawn over: None for the photograph that they know themselves."""
    return None if sample.seen is not None else sample.picture


def _figure(path: Path, rows: Rows, sample: Sample) -> list[Path]:
    """The one picture, or the sheet of all."""
    if len(rows) == 1 and len(rows[0].attributions) == 1:
        (only,) = rows[0].attributions
        separator = " · " if sample.picture is None else "\n"
        drawn = plot_attribution(only, _below(sample), title=f"{only.label}{separator}{rows[0].heading}")
    else:
        titles = [row.heading for row in rows]
        drawn = comparison_sheet([row.attributions for row in rows], _below(sample), row_titles=titles)
    return [save_figure(drawn, path)]


def _page(path: Path, rows: Rows, sample: Sample, *, links: bool = False) -> list[Path]:
    """One page with every picture or sentence under the name of its target.

    Args:
        links: put links to the parts at the top, for the words of an answer; the first row is the whole answer.
    """
    headings = [row.title if links else row.heading for row in rows]
    blocks = [[attribution_block(one, _below(sample), index=0) for one in row.attributions] for row in rows]
    body = render("apps/cli/maps.html", parts=list(zip(headings, blocks, strict=True)), links=links)
    title = rows[0].title if links else ", ".join(row.title for row in rows)
    return [write_bytes(path, document(title, body, style=PAGE_STYLE).encode())]


def _data(path: Path, rows: Rows, sample: Sample) -> list[Path]:
    """One file for each attribution; with several, target and method become part of the name."""
    pairs = [(row, attribution) for row in rows for attribution in row.attributions]
    if len(pairs) == 1:
        return [save(pairs[0][1], path)]
    stems = []
    for row, attribution in pairs:
        parts = [path.stem, *([row.title] if len(rows) > 1 else []), attribution.label]
        stems.append("-".join(re.sub(r"[^\w.=]+", "_", part).strip("_") for part in parts))
    return [save(one, path.with_stem(stem)) for (_, one), stem in zip(pairs, distinct(stems), strict=True)]


WRITERS: dict[str, Writer] = {".png": _figure, ".pdf": _figure, ".html": _page, ".json": _data, ".npz": _data}


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


def explain_boxes(
    loaded: Loaded, source: Source, wanted: Sequence[str], explain: ExplainInputs, output: Path | None
) -> None:
    """Find objects, explain them, and show or save that."""
    if source.given is None or source.question is not None or source.pair is not None or source.context is not None:
        raise InputError(f"{loaded.name} finds objects in one image: name an image, and no text.")
    sample = loaded.image(open_image(Path(source.given)), squash=source.squash)
    found, rows = objects(loaded, sample, wanted), []
    for one in found:
        title = f"{loaded.class_name(one.label)}, query {one.query}"
        with busy(f"explaining {title}"):
            target = targets.logit(one.label, position=one.query)
            rows.append(ExplainedTarget(title, [*explain(sample.inputs, target=target)]))

    def show() -> None:
        lines = []
        for one, row in zip(found, rows, strict=True):
            y, x, _ = strongest(map_of(row.attributions[0]))[0]
            lines.append((row.title, f"{one.probability:.3f}", f"{y}, {x}"))
        show_table(("object", "probability", "strongest patch (row, column)"), lines, "found")

    def save(path: Path, rows: Rows, sample: Sample) -> list[Path]:
        return [save_figure(figure(found, rows, sample), path)]

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


def map_of(attribution: Attribution) -> Attribution:
    """The stream of the picture."""
    return next((one for one in attribution.streams.values() if one.kind == "image"), attribution)


def figure(found: Sequence[Found], rows: Sequence[ExplainedTarget], sample: Sample) -> "Figure":
    """One picture for each object and method."""
    picture = as_picture(sample.picture)
    panels = []
    for one, row in zip(found, rows, strict=True):
        for attribution in row.attributions:
            shown, title = map_of(attribution), f"{row.title}, {one.probability:.0%} · {attribution.label}"
            panels.append(Panel(title, sample_map(shown, 0, picture), signed=shown.signed, box=one.box))
    return panel_figure([panels], picture, side=3.0)


def explain_writing(
    loaded: Loaded, source: Source, wanted: Sequence[str], explain: ExplainInputs, output: Path | None
) -> None:
    """Let the model write, explain what it wrote, and show or save that."""
    with busy("writing"):
        sample = written(source, loaded)
    rows = explain_words(loaded, sample, wanted, explain)

    def show() -> None:
        show_line(("answer ", "bold"), answer_text(loaded, sample))
        for row in rows:
            for attribution in row.attributions:
                _show(row.title, attribution)

    page = partial(_page, links=True)
    present_rows(sample, rows, output, show, WRITERS | dict.fromkeys(FIGURES, _save_sheet) | {".html": page})


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


GIVEN = {"text": "a text", "sound": "a .wav file", "picture": "an image", "question": "an image and --question TEXT"}


def explain_words(loaded: Loaded, sample: Sample, wanted: Sequence[str], explain: ExplainInputs) -> Rows:
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
            found = explain(sample.inputs, target=target)
        rows.append(ExplainedTarget(title, [named_tokens(one, loaded.tokenizer) for one in found]))
    return rows


def _show(title: str, attribution: Attribution) -> None:
    """Texts with their tokens shaded, pictures by their strongest patches."""
    for name, one in (attribution.streams or {"": attribution}).items():
        heading = f"{name} · {title}".removeprefix(" · ")
        label = stream_label(attribution)
        if one.kind == "image":
            lines = [(y, x, f"{score:.3g}") for y, x, score in strongest(one)]
            show_table(("row", "column", "score"), lines, f"{label} · {heading}: strongest patches")
        elif one.tokens is not None and out().is_terminal:
            show_line((label, "bold"), f" · {heading}")
            out().print(terminal(one))
        elif one.tokens is not None:
            lines = [(label, heading, p.raw, f"{p.value:.6g}") for p in join_runs(pieces(one, 0))]
            show_table(("method", "target", "token", "score"), lines)


def _save_sheet(path: Path, rows: Rows, sample: Sample) -> list[Path]:
    """Every stream of every row in one figure."""
    named = [(f"{row.title} · {stream_label(one)}", one) for row in rows for one in row.attributions]
    return [save_figure(streams_sheet(named, sample.picture, sound=sample.sound), path)]
