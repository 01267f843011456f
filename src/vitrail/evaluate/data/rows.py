"""Rows with named columns, whatever they are stored in: tables of text, Parquet, Hugging Face `datasets` objects."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.errors import InputError
from vitrail.evaluate.data.parquet import parquet_rows
from vitrail.evaluate.data.separated import find_records, read_record

Source = str | Path | Any
SUFFIXES = (".tsv", ".csv", ".parquet")


@dataclass(frozen=True)
class Rows:
    """Rows that are read one by one.

    Args:
        name: what the keys of the examples begin with.
        read: from a row's number and the key for its errors to its values by column.
    """

    name: str
    source: str
    columns: tuple[str, ...]
    size: int
    read: Callable[[int, str], Mapping[str, Any]]
    headless: bool = False

    def key(self, number: int) -> str:
        """The key of a row: where it is from and its number, from 0."""
        return f"{self.name}-{number}"

    def column(self, names: Sequence[str]) -> str:
        """The first of some names that is a column."""
        for name in names:
            if name in self.columns:
                return name
        raise InputError(
            f"{self.source} has no column {' or '.join(names)}; its columns are {', '.join(self.columns) or 'none'}."
        )


def open_rows(source: Source, *, split: str, headless: tuple[str, ...] = ()) -> Rows:
    """The rows of a file, of a split's file in a folder, or of an object of the library `datasets`.

    Args:
        headless: the columns of a CSV file that begins with a number instead of names.
    """
    if not isinstance(source, str | Path):
        return _from_object(source, split)
    path = Path(source)
    files = _split_files(path, split) if path.is_dir() else [path]
    if not files[0].is_file():
        raise InputError(f"there is no data set at {files[0]}.")
    if files[0].suffix == ".parquet":
        return Rows(_stem(files[0]), str(path), *parquet_rows(files))
    if files[0].suffix not in SUFFIXES:
        raise InputError(f"{files[0]} is not read here: needs a {', '.join(SUFFIXES)} file or a folder of them.")
    return _from_text(files[0], headless)


def read_all(rows: Rows) -> list[Mapping[str, Any]]:
    """Every row of a short table."""
    return [rows.read(number, rows.key(number)) for number in range(rows.size)]


def _split_files(folder: Path, split: str) -> list[Path]:
    for name in _names(split):
        for suffix in SUFFIXES:
            if (folder / f"{name}{suffix}").is_file():
                return [folder / f"{name}{suffix}"]
        if parts := sorted(folder.glob(f"{name}-*-of-*.parquet")):
            return parts
    raise InputError(f"{folder} has no file {split} with one of the endings {', '.join(SUFFIXES)}.")


def _names(split: str) -> tuple[str, ...]:
    """A split as GLUE names it and as the Hugging Face hub does."""
    return (split, split.replace("dev", "validation"))


def _stem(path: Path) -> str:
    return path.stem.split("-")[0] if "-of-" in path.stem else path.stem


def _from_text(path: Path, headless: tuple[str, ...]) -> Rows:
    quoted = path.suffix == ".csv"
    starts = find_records(path, quoted=quoted)
    if len(starts) < 2:
        raise InputError(f"{path} is empty.")
    first = read_record(path, starts, 0, quoted=quoted, key="first line")
    bare = bool(headless) and first[0].strip().isdigit()
    columns = headless if bare else tuple(name.strip() for name in first)
    records = starts if bare else starts[1:]
    read = partial(_text_row, path, records, columns, quoted=quoted)
    return Rows(path.stem, str(path), columns, len(records) - 1, read, headless=bare)


def _text_row(
    path: Path,
    starts: array,
    columns: tuple[str, ...],
    number: int,
    key: str,
    *,
    quoted: bool,
) -> Mapping[str, str]:
    fields = read_record(path, starts, number, quoted=quoted, key=key)
    if len(fields) != len(columns):
        raise InputError(f"{key}: {path} has {len(fields)} columns in this row, but {len(columns)} in its first.")
    return dict(zip(columns, fields, strict=True))


def _from_object(source: Any, split: str) -> Rows:  # noqa: ANN401
    """Rows of a `datasets.Dataset`, or of the split of a `datasets.DatasetDict`; the library itself is not needed."""
    if isinstance(source, Mapping):
        found = [source[name] for name in _names(split) if name in source]
        if not found:
            raise InputError(f"the data set has no split {split}; it has {', '.join(map(str, source))}.")
        source = found[0]
    if not (hasattr(source, "column_names") and hasattr(source, "__getitem__") and hasattr(source, "__len__")):
        raise InputError(f"a data set is a path or a datasets.Dataset, not a {type(source).__name__}.")
    name = str(getattr(source, "split", None) or split)
    return Rows(
        name, f"the given {type(source).__name__}", tuple(source.column_names), len(source), partial(_item, source)
    )


def _item(source: Any, number: int, key: str) -> Mapping[str, Any]:  # noqa: ANN401
    return source[number]
