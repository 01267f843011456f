"""Files and folders of data sets, and files inside archives, which are not unpacked to disk.

Whatever is not as it should be raises an InputError of one line. Pickled tables may hold numbers, strings, plain
containers and 8-bit arrays only: a pickle names functions to call, so `pickle.load` would run what its author wrote.
Here each name is looked up in a table of four harmless replacements.
"""

import json
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from vitrail.errors import InputError, one_line

PICTURES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}


def require_file(path: Path, what: str) -> Path:
    """The path, if it is a file."""
    if not path.is_file():
        raise InputError(
            f"there is no {what} at {path}." if not path.exists() else f"{path} is no file, but {what} is."
        )
    return path


def require_folder(path: Path, what: str) -> Path:
    """The path, if it is a folder."""
    if not path.is_dir():
        raise InputError(f"there is no {what} at {path}." if not path.exists() else f"{path} is no folder.")
    return path


def first_of(paths: Iterable[Path], what: str, *, within: Path) -> Path:
    """The first path that exists."""
    tried = list(paths)
    for path in tried:
        if path.exists():
            return path
    names = " or ".join(str(path.relative_to(within)) for path in tried)
    raise InputError(f"there is no {what} in {within}: looked for {names}.")


def read_text(path: Path, *, key: str | None = None) -> str:
    """The text of a file in UTF-8; an error names the example that it belongs to."""
    example = f"{key}: " if key else ""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"{example}there is no file {path}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{example}{path} is not text in UTF-8: {one_line(error)}") from error
    except OSError as error:
        raise InputError(f"{example}{path} cannot be read: {one_line(error)}") from error


def read_json(path: Path) -> Any:  # noqa: ANN401
    """What a JSON file holds."""
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {one_line(error)}") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank, stripped."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def pictures_in(folder: Path) -> list[Path]:
    """The picture files of a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)


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
    return [_member(path, info) for info in infos]


def _member(path: Path, info: zipfile.ZipInfo) -> Member:
    methods = {zipfile.ZIP_STORED: False, zipfile.ZIP_DEFLATED: True}
    if info.compress_type not in methods or info.flag_bits & ENCRYPTED:
        raise InputError(f"{path}: {info.filename} is encrypted or packed in a way that is not read here; repack it.")
    _check_unpacked(f"{path}: {info.filename}", info.file_size, info.compress_size)
    deflated = methods[info.compress_type]
    return Member(path, info.filename, info.header_offset, info.compress_size, info.file_size, info.CRC, deflated)


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
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

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
    return {_text(key): value.value if isinstance(value, _Array) else value for key, value in table.items()}


def _text(key: object) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)
