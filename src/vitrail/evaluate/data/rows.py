"""Rows with named columns from tables of text, Parquet files and Hugging Face `datasets` objects.

Separated files are read record by record, so that a large file is never held in memory.
"""

import csv
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import InputError, MissingExtraError, one_line

if TYPE_CHECKING:
    from pyarrow import Table


def parquet_rows(paths: list[Path]) -> tuple[tuple[str, ...], int, Callable[[int, str], Mapping[str, Any]]]:
    """Columns, number of rows, and the function that reads a row, of files that follow one another."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(f"{paths[0]} is read with pyarrow: pip install 'vitrail[data]'") from error
    tables = []
    for path in paths:
        try:
            tables.append(parquet.read_table(path))
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{path} cannot be read as Parquet: {one_line(error)}") from error
    try:
        table = pyarrow.concat_tables(tables)
    except pyarrow.ArrowException as error:
        raise InputError(f"{paths[0]} and the files beside it have different columns: {one_line(error)}") from error
    return tuple(table.column_names), table.num_rows, partial(_row, table)


def _row(table: "Table", number: int, key: str) -> Mapping[str, Any]:
    return table.slice(number, 1).to_pylist()[0]


MARK = b"\xef\xbb\xbf"  # some programs begin a UTF-8 file with it


def find_records(path: Path, *, quoted: bool) -> array:
    """The first byte of each record, and the end of the file.

    Args:
        quoted: whether line breaks between quotes belong to a record, as in CSV; GLUE's files know no quotes.
    """
    starts, position, inside, opened = array("Q"), 0, False, 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not inside and line.strip():
                    starts.append(position)
                if quoted and line.count(b'"') % 2:
                    inside, opened = not inside, number
                position += len(line)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error
    if inside:
        raise InputError(f"{path} is cut off or damaged: a quote in line {opened} is never closed.")
    starts.append(position)
    return starts


def read_record(path: Path, starts: array, number: int, *, quoted: bool, key: str) -> list[str]:
    """The fields of one record."""
    try:
        with path.open("rb") as file:
            file.seek(starts[number])
            text = file.read(starts[number + 1] - starts[number]).removeprefix(MARK).decode("utf-8").rstrip("\r\n")
        return next(csv.reader(StringIO(text, newline=""))) if quoted else text.split("\t")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{key}: {path} cannot be read here: {one_line(error)}") from error


Source = str | Path | Any
SUFFIXES = (".tsv", ".csv", ".parquet")


@dataclass(frozen=True)
class TableRows:
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


def open_rows(source: Source, *, split: str, headless: tuple[str, ...] = ()) -> TableRows:
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
        return TableRows(_stem(files[0]), str(path), *parquet_rows(files))
    if files[0].suffix not in SUFFIXES:
        raise InputError(f"{files[0]} is not read here: needs a {', '.join(SUFFIXES)} file or a folder of them.")
    return _from_text(files[0], headless)


def read_all(rows: TableRows) -> list[Mapping[str, Any]]:
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


def _from_text(path: Path, headless: tuple[str, ...]) -> TableRows:
    quoted = path.suffix == ".csv"
    starts = find_records(path, quoted=quoted)
    if len(starts) < 2:
        raise InputError(f"{path} is empty.")
    first = read_record(path, starts, 0, quoted=quoted, key="first line")
    bare = bool(headless) and first[0].strip().isdigit()
    columns = headless if bare else tuple(name.strip() for name in first)
    records = starts if bare else starts[1:]
    read = partial(_text_row, path, records, columns, quoted=quoted)
    return TableRows(path.stem, str(path), columns, len(records) - 1, read, headless=bare)


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


def _from_object(source: Any, split: str) -> TableRows:  # noqa: ANN401
    """Rows of a `datasets.Dataset`, or of the split of a `datasets.DatasetDict`; the library itself is not needed."""
    if isinstance(source, Mapping):
        found = [source[name] for name in _names(split) if name in source]
        if not found:
            raise InputError(f"the data set has no split {split}; it has {', '.join(map(str, source))}.")
        source = found[0]
    if not (hasattr(source, "column_names") and hasattr(source, "__getitem__") and hasattr(source, "__len__")):
        raise InputError(f"a data set is a path or a datasets.Dataset, not a {type(source).__name__}.")
    name = str(getattr(source, "split", None) or split)
    return TableRows(
        name, f"the given {type(source).__name__}", tuple(source.column_names), len(source), partial(_item, source)
    )


def _item(source: Any, number: int, key: str) -> Mapping[str, Any]:  # noqa: ANN401
    return source[number]
