"""Files and folders as data sets come in; an InputError in one line where they are not as they should be."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitrail.errors import InputError

PICTURES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


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
