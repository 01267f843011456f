"""What a model that writes text looked at: its whole answer, and the words of it that are named."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from vitrail import targets
from vitrail.api import compare
from vitrail.apps.cli.checks import STDOUT, Source, read_text
from vitrail.apps.cli.screen import busy, note, out, show_line, show_table
from vitrail.apps.cli.session import ExplainedTarget, Work
from vitrail.apps.cli.show import PAGE_STYLE, PATCHES, WRITERS, strongest
from vitrail.attribution import Attribution
from vitrail.errors import InputError, OutputError, TargetError
from vitrail.models.loading import Loaded, Sample
from vitrail.models.loading.images import open_image
from vitrail.models.loading.writing import answer_ids, answer_text, answer_words
from vitrail.plots import terminal
from vitrail.plots.page import attribution_block, document, render
from vitrail.plots.streams import named_tokens, streams_sheet
from vitrail.plots.tokens import pieces
from vitrail.storage import save_figure, to_json, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = (".png", ".pdf")


def explain_writing(loaded: Loaded, source: Source, wanted: Sequence[str], plan: Work, output: Path | None) -> None:
    """Let the model write, explain what it wrote, and show or save that."""
    with busy("writing"):
        sample = written(source, loaded)
    rows = explained(loaded, sample, wanted, plan)
    if output == STDOUT:
        for row in rows:
            for attribution in row.attributions:
                typer.echo(to_json(attribution))
        return
    show_line(("answer ", "bold"), answer_text(loaded, sample))
    for row in rows:
        for attribution in row.attributions:
            _show(row.title, attribution)
    if output is not None:
        for path in save_rows(output, rows, sample):
            note(f"wrote {path}")


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
        if one.kind == "image":
            lines = [(y, x, f"{score:.3g}") for y, x, score in strongest(one)[:PATCHES]]
            show_table(("row", "column", "score"), lines, f"{one.label} · {heading}: strongest patches")
        elif one.tokens is not None and out().is_terminal:
            show_line((one.label, "bold"), f" · {heading}")
            out().print(terminal(one))
        elif one.tokens is not None:
            lines = [(one.label, heading, p.raw, f"{p.value:.6g}") for p in pieces(one, 0)]
            show_table(("method", "target", "token", "score"), lines)


def save_rows(path: Path, rows: list[ExplainedTarget], sample: Sample) -> list[Path]:
    """The files written: a sheet of all streams, a page with one part for each word, or the numbers."""
    try:
        if path.suffix.lower() in FIGURES:
            save_figure(sheet(rows, sample), path)
            return [path]
        if path.suffix.lower() == ".html":
            return [write_bytes(path, page(rows, sample).encode())]
        return WRITERS[path.suffix.lower()](path, rows, sample)
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error.strerror or error}") from error


def sheet(rows: list[ExplainedTarget], sample: Sample) -> "Figure":
    """Every stream of every row."""
    named = [(f"{row.title} · {one.label}", one) for row in rows for one in row.attributions]
    return streams_sheet(named, sample.picture, sound=sample.sound)


def page(rows: list[ExplainedTarget], sample: Sample) -> str:
    """One part for each row, with links from the words to them."""
    parts = [(row.title, [attribution_block(one, sample.picture, index=0) for one in row.attributions]) for row in rows]
    return document(rows[0].title, render("apps/cli/maps.html", parts=parts, links=True), style=PAGE_STYLE)
