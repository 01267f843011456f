"""Where results are written, checked before any work is done."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail import Attribution
from vitrail.apps.cli.results import Row
from vitrail.errors import OutputError, suggest
from vitrail.models.loading import Sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Writer = Callable[[Path, list[Row], Sample], list[Path]]


def check_file(path: Path) -> None:
    """Raise unless a file of a known kind can be written here."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder: name a file in it, ending in {', '.join(WRITERS)}.")
    if path.suffix.lower() not in WRITERS:
        raise OutputError(f"{path} has no known ending. {suggest(path.suffix, WRITERS)}")
    check_writable(path)


def check_folder(path: Path | None) -> Path:
    """The folder that takes one picture for each image; it need not be there yet."""
    if path is None:
        raise OutputError("a folder of images needs a folder for the pictures: -o FOLDER.")
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path} is a file, but a folder of images needs a folder for the pictures.")
    if not path.exists() and path.suffix.lower() in WRITERS:
        raise OutputError(f"{path} names a file, but a folder of images needs a folder for the pictures.")
    check_writable(path)
    return path


def check_apart(outputs: Iterable[Path | None], inputs: Iterable[Path | str | None]) -> None:
    """Raise if a result would replace what it is made of, or another result, under whatever name or link.

    Args:
        outputs: the files that will be written.
        inputs: the files that are read. A folder stands for the files right inside it.
    """
    written = [path for path in outputs if path is not None]
    _check_distinct(written)
    there = [path for path in written if path.exists()]
    if not there:
        return
    read = {_place(file): file for given in inputs if given is not None for file in _files(given)}
    for path in there:
        if (same := read.get(_place(path))) is not None:
            what = "the input itself" if same == path else f"the same file as the input {same}"
            raise OutputError(f"{path} is {what}: the result would replace it. Choose another name with -o.")


def _check_distinct(paths: Sequence[Path]) -> None:
    seen: set[str] = set()
    for path in paths:
        name = str(path.resolve()).casefold()
        if name in seen:
            raise OutputError(f"{path} is named for two results: give each a file of its own.")
        seen.add(name)


def _files(given: Path | str) -> Iterator[Path]:
    """The files that something named on the command line may stand for; a text or a model's name is none."""
    try:
        path = Path(given)
        found = path.iterdir() if path.is_dir() else iter((path,))
        yield from (file for file in found if file.is_file())
    except (OSError, ValueError):  # a text that is no path: too long, or with a NUL
        return


def _place(path: Path) -> tuple[int, int]:
    """What all names and links of one file share."""
    found = path.stat()
    return found.st_dev, found.st_ino


def check_writable(path: Path) -> None:
    """Raise unless a file can be written here."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise OutputError(f"{path} cannot be written: there is no folder {parent}.")
    target = path if path.exists() else parent
    if not os.access(target, os.W_OK):
        raise OutputError(f"{path} cannot be written: no permission to write to {target}.")


def write(path: Path, rows: list[Row], sample: Sample) -> list[Path]:
    """The files written: one, or one for each method and target where a file holds one attribution."""
    try:
        return WRITERS[path.suffix.lower()](path, rows, sample)
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error.strerror or error}") from error


def draw(rows: list[Row], sample: Sample) -> "Figure":
    """The one picture, or the sheet of all."""
    from vitrail.plots import comparison_sheet, plot_attribution

    if len(rows) == 1 and len(rows[0].attributions) == 1:
        (only,) = rows[0].attributions
        separator = " · " if sample.picture is None else "\n"
        return plot_attribution(only, sample.picture, title=f"{only.label}{separator}{rows[0].title}")
    titles = [row.title for row in rows]
    return comparison_sheet([row.attributions for row in rows], sample.picture, row_titles=titles)


def _figure(path: Path, rows: list[Row], sample: Sample) -> list[Path]:
    from vitrail.storage import save_figure

    save_figure(draw(rows, sample), path)
    return [path]


def _page(path: Path, rows: list[Row], sample: Sample) -> list[Path]:
    """One page with every picture or sentence under the name of its target."""
    from vitrail.plots.page import document, to_html
    from vitrail.storage import write_bytes

    body: list[str] = []
    for row in rows:
        body.append(f"<h2>{escape(row.title)}</h2>")
        body += [to_html(attribution, sample.picture, index=0) for attribution in row.attributions]
    title = ", ".join(row.title for row in rows)
    return [write_bytes(path, document(title, "\n".join(body)).encode())]


def _data(path: Path, rows: list[Row], sample: Sample) -> list[Path]:
    """One file for each attribution; with several, target and method become part of the name."""
    from vitrail.storage import save

    pairs = [(row, attribution) for row in rows for attribution in row.attributions]
    if len(pairs) == 1:
        return [save(pairs[0][1], path)]
    stems = distinct([_stem(path, row, attribution, several=len(rows) > 1) for row, attribution in pairs])
    return [save(one, path.with_stem(stem)) for (_, one), stem in zip(pairs, stems, strict=True)]


def distinct(names: Sequence[str]) -> list[str]:
    """The names, those that are taken with a number behind them; large and small letters count as the same."""
    taken = {name.casefold() for name in names}
    first: set[str] = set()
    found: list[str] = []
    for name in names:
        own = name
        if name.casefold() in first:
            own = next(new for n in count(2) if (new := f"{name}-{n}").casefold() not in taken)
        first.add(name.casefold())
        taken.add(own.casefold())
        found.append(own)
    return found


def _stem(path: Path, row: Row, attribution: Attribution, *, several: bool) -> str:
    parts = [path.stem, *([row.title] if several else []), attribution.label]
    return "-".join(re.sub(r"[^\w.=]+", "_", part).strip("_") for part in parts)


WRITERS: dict[str, Writer] = {".png": _figure, ".pdf": _figure, ".html": _page, ".json": _data, ".npz": _data}
