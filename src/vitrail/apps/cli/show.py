"""Explanations on the terminal, in a pipe and in files."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from vitrail.apps.cli.options import STDOUT, distinct
from vitrail.apps.cli.screen import note, out, show_line, show_table
from vitrail.apps.cli.session import ExplainedTarget, Prediction, predict
from vitrail.attribution import Attribution
from vitrail.errors import OutputError
from vitrail.models.loading import Loaded, Sample
from vitrail.plots import comparison_sheet, plot_attribution, terminal
from vitrail.plots.page import attribution_block, document, render
from vitrail.plots.tokens import pieces
from vitrail.storage import save, save_figure, to_json, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES = 5
PATCHES = 5
PAGE_STYLE = "main{font-family:system-ui,sans-serif;max-width:60em;margin:1em auto}h2{margin:.4em .7em}"
UNSURE = 0.7
"""Below this probability a demonstration model says which classes it knows."""


def show_answer(loaded: Loaded, sample: Sample) -> None:
    """What the model said: its first five classes or next tokens, or the answer to a question."""
    said = predict(loaded, sample)
    if said.answer is not None:
        show_line(("answer ", "bold"), said.answer)
        return
    rows = [(loaded.class_name(index), index, f"{value:.3f}") for index, value in said.likeliest(CLASSES)]
    show_table(("class", "index", "probability"), rows, "next token" if loaded.task == "causal" else "prediction")
    warn_if_unsure(loaded, said)


def warn_if_unsure(loaded: Loaded, said: Prediction) -> None:
    """Say which classes a demonstration model knows, where it is unsure."""
    if loaded.demonstration and loaded.class_names and said.likeliest(1)[0][1] < UNSURE:
        names = ", ".join(loaded.class_names)
        note(
            f"note: {loaded.name} is unsure. This demonstration model knows {loaded.classes} classes ({names}). For "
            f"your own {loaded.kind}s pass another model with --model."
        )


def show_rows(rows: list[ExplainedTarget], *, patches: bool) -> None:
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


def _show_numbers(rows: list[ExplainedTarget], *, patches: bool) -> None:
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
    scores, wide = attribution.scores[0], attribution.grid[1]
    order = scores.abs().argsort(descending=True)[:PATCHES].tolist()
    return [(i // wide, i % wide, float(scores[i])) for i in order]


def present(loaded: Loaded, sample: Sample, rows: list[ExplainedTarget], output: Path | None) -> None:
    """The answer and the explanation of one sample."""

    def show() -> None:
        show_answer(loaded, sample)
        show_rows(rows, patches=output is None)

    present_rows(sample, rows, output, show, WRITERS)


def present_rows(
    sample: Sample,
    rows: list[ExplainedTarget],
    output: Path | None,
    show: Callable[[], None],
    writers: Mapping[str, "Writer"],
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


def write(
    path: Path, rows: list[ExplainedTarget], sample: Sample, writers: "Mapping[str, Writer] | None" = None
) -> list[Path]:
    """The files written: one, or one for each method and target where a file holds one attribution."""
    try:
        return (writers or WRITERS)[path.suffix.lower()](path, rows, sample)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error.strerror or error}") from error


def draw(rows: list[ExplainedTarget], sample: Sample) -> "Figure":
    """The one picture, or the sheet of all."""
    if len(rows) == 1 and len(rows[0].attributions) == 1:
        (only,) = rows[0].attributions
        separator = " · " if sample.picture is None else "\n"
        return plot_attribution(only, sample.picture, title=f"{only.label}{separator}{rows[0].heading}")
    titles = [row.heading for row in rows]
    return comparison_sheet([row.attributions for row in rows], sample.picture, row_titles=titles)


def _figure(path: Path, rows: list[ExplainedTarget], sample: Sample) -> list[Path]:
    save_figure(draw(rows, sample), path)
    return [path]


def _page(path: Path, rows: list[ExplainedTarget], sample: Sample) -> list[Path]:
    """One page with every picture or sentence under the name of its target."""
    parts = [
        (row.heading, [attribution_block(one, sample.picture, index=0) for one in row.attributions]) for row in rows
    ]
    body = render("apps/cli/maps.html", parts=parts, links=False)
    return [write_bytes(path, document(", ".join(row.title for row in rows), body, style=PAGE_STYLE).encode())]


def _data(path: Path, rows: list[ExplainedTarget], sample: Sample) -> list[Path]:
    """One file for each attribution; with several, target and method become part of the name."""
    pairs = [(row, attribution) for row in rows for attribution in row.attributions]
    if len(pairs) == 1:
        return [save(pairs[0][1], path)]
    stems = distinct([_stem(path, row, attribution, several=len(rows) > 1) for row, attribution in pairs])
    return [save(one, path.with_stem(stem)) for (_, one), stem in zip(pairs, stems, strict=True)]


def _stem(path: Path, row: ExplainedTarget, attribution: Attribution, *, several: bool) -> str:
    parts = [path.stem, *([row.title] if several else []), attribution.label]
    return "-".join(re.sub(r"[^\w.=]+", "_", part).strip("_") for part in parts)


Writer = Callable[[Path, list[ExplainedTarget], Sample], list[Path]]
WRITERS: dict[str, Writer] = {
    ".png": _figure,
    ".pdf": _figure,
    ".html": _page,
    ".json": _data,
    ".npz": _data,
}
