"""Files of data sets: folders, files inside archives, which are not unpacked to disk, pickles, and tables.

Whatever is not as it should be raises an InputError of one line. Pickled tables may hold numbers, strings, plain
containers and 8-bit arrays only: a pickle names functions to call, so `pickle.load` would run what its author wrote.
Here each name is looked up in a table of four harmless replacements. Rows with named columns come from tables of text,
Parquet files and Hugging Face `datasets` objects; separated files are read record by record, so that a large file is
never held in memory.
"""

import csv
import json
import pickle
import struct
import tarfile
import zipfile
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import InputError, MissingExtraError, as_path, one_line
from vitrail.models.texts import read_text

if TYPE_CHECKING:
    from pyarrow import Table


def require_file(path: Path, what: str) -> Path:
    """The path, if it is a file."""
    path = as_path(path, what)
    if not path.is_file():
        raise InputError(f"{path} is no file, but {what} is." if path.exists() else f"there is no {what} at {path}.")
    return path


def first_of(paths: Iterable[Path], what: str, *, within: Path) -> Path:
    """The first path that exists."""
    tried = list(paths)
    for path in tried:
        if path.exists():
            return path
    names = " or ".join(str(path.relative_to(within)) for path in tried)
    raise InputError(f"there is no {what} in {within}: looked for {names}.")


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Return the content of a JSON file."""
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {one_line(error)}") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank, stripped."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def require_inside(names: Iterable[str], source: Path) -> None:
    """Raise if a table names a file outside of the folder that its files lie in."""
    for name in names:
        path = PurePosixPath(str(name).replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or PureWindowsPath(str(name)).drive:
            raise InputError(f"{source} names the file {str(name)[:80]!r}, which lies outside of its folder.")


LOCAL_HEADER = 30
ENCRYPTED = 0x1
MOST_BYTES = 400_000_000
"""The largest file that is read from an archive. Those of the published sets have at most 155 MB."""
MOST_TIMES = 100
"""How many times its packed size a large file may have. Pictures are packed already: theirs is about 1."""
SMALL = 1_000_000
"""Up to this size a file may be packed by any factor."""


@dataclass(frozen=True)
class Member:
    """One file of a zip archive.

    It opens the archive anew for each reading, at its own place: so it can go to other threads and processes, and
    the archive's long list of contents is read only once.
    """

    archive: Path
    name: str
    header: int
    packed: int
    size: int
    crc: int
    deflated: bool

    def __str__(self) -> str:
        return f"{self.archive}/{self.name}"

    def read_bytes(self) -> bytes:
        """Its bytes, checked against the archive's checksum."""
        try:
            with self.archive.open("rb") as file:
                file.seek(self.header)
                name, extra = struct.unpack("<26x2H", file.read(LOCAL_HEADER))
                file.seek(name + extra, 1)
                data = file.read(self.packed)
            # One byte more than announced is enough to notice that more is inside.
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, self.size + 1) if self.deflated else data
        except (OSError, struct.error, zlib.error) as error:
            raise InputError(f"{self} cannot be read: {one_line(error)}") from error
        if zlib.crc32(data) != self.crc:
            raise InputError(f"{self} is damaged: its checksum differs from the archive's.")
        return data


def zip_members(path: Path) -> list[Member]:
    """The files of a zip archive, by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = sorted((i for i in archive.infolist() if not i.is_dir()), key=lambda info: info.filename)
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} cannot be read as a zip archive: {one_line(error)}") from error
    found, deflated = [], {zipfile.ZIP_STORED: False, zipfile.ZIP_DEFLATED: True}
    for info in infos:
        name, packed, size = info.filename, info.compress_size, info.file_size
        if info.compress_type not in deflated or info.flag_bits & ENCRYPTED:
            raise InputError(f"{path}: {name} is encrypted or packed in a way that is not read here; repack it.")
        _check_unpacked(f"{path}: {name}", size, packed)
        found.append(Member(path, name, info.header_offset, packed, size, info.CRC, deflated[info.compress_type]))
    return found


def _check_unpacked(what: str, size: int, packed: int) -> None:
    """Refuse what would fill the memory, by its announced size."""
    if size > MOST_BYTES:
        raise InputError(f"{what} has {size:,} bytes unpacked; at most {MOST_BYTES:,} are read.")
    if size > max(SMALL, MOST_TIMES * packed):
        raise InputError(f"{what} has {size:,} bytes unpacked and {packed:,} packed: more than {MOST_TIMES} times.")


def tar_files(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The wanted files of a tar archive, by their last name; those that are not there are left out."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for info in archive:
                _check_unpacked(str(path), info.offset_data + info.size, path.stat().st_size)
                name = PurePosixPath(info.name).name
                if name in wanted and info.isfile() and (file := archive.extractfile(info)):
                    found[name] = file.read()
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"{path} cannot be read as a tar archive: {one_line(error)}") from error
    return found


class _Kind:
    """Stands in for numpy.dtype."""

    def __init__(self, code: str | bytes, *_rest: object) -> None:
        self.code = as_text(code)

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which bytes do not have."""


class _Array:
    """Stands in for numpy.ndarray."""

    value: np.ndarray | None = None

    def __init__(self, *_args: object) -> None:
        pass

    def __setstate__(self, state: tuple) -> None:
        _version, shape, kind, columns_first, raw = state
        if not isinstance(kind, _Kind) or kind.code != "u1" or columns_first:
            raise pickle.UnpicklingError("it holds an array that is not of plain bytes")
        self.value = np.frombuffer(raw, dtype=np.uint8).reshape(shape)


def _encode(text: str, encoding: str) -> bytes:
    """Stands in for _codecs.encode, by which Python 3 writes bytes for Python 2."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:  # noqa: ANN401
        if (module_name, global_name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which data does not need")
        return ADMITTED[module_name, global_name]


def read_pickled_table(data: bytes, where: object) -> dict[str, Any]:
    """A pickled dict of lists, strings and 8-bit arrays, its keys as str."""
    try:
        table = _Unpickler(BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can fail in any way
        raise InputError(f"{where} is refused as a pickle: {one_line(error)}") from error
    if not isinstance(table, dict):
        raise InputError(f"{where} holds a {type(table).__name__}, not a table.")
    return {as_text(key): value.value if isinstance(value, _Array) else value for key, value in table.items()}


def as_text(name: object) -> str:
    """A name in a pickled table, which Python 2 wrote as bytes."""
    return name.decode("latin1") if isinstance(name, bytes) else str(name)


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
        stem = files[0].stem
        return TableRows(stem.split("-")[0] if "-of-" in stem else stem, str(path), *parquet_rows(files))
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
    path: Path, starts: array, columns: tuple[str, ...], number: int, key: str, *, quoted: bool
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
    name, where = str(getattr(source, "split", None) or split), f"the given {type(source).__name__}"
    return TableRows(name, where, tuple(source.column_names), len(source), partial(_item, source))


def _item(source: Any, number: int, key: str) -> Mapping[str, Any]:  # noqa: ANN401
    return source[number]
