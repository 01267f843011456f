"""Files inside archives, read without unpacking anything to disk."""

import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vitrail.errors import InputError
from vitrail.evaluate.data.files import one_line

LOCAL_HEADER = 30
ENCRYPTED = 0x1


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
            data = zlib.decompress(data, -zlib.MAX_WBITS) if self.deflated else data
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
    return Member(path, info.filename, info.header_offset, info.compress_size, info.CRC, methods[info.compress_type])


def tar_files(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The wanted files of a tar archive, by their last name; those that are not there are left out."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for info in archive:
                name = PurePosixPath(info.name).name
                if name in wanted and info.isfile() and (file := archive.extractfile(info)):
                    found[name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read as a tar archive: {one_line(error)}") from error
    return found
