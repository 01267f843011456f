"""Records of tab- or comma-separated files by their place, so that a large file is never held in memory."""

import csv
from array import array
from io import StringIO
from pathlib import Path

from vitrail.errors import InputError
from vitrail.evaluate.data.files import one_line

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
