"""The files of a folder that are pictures or texts. Imports neither torch nor Pillow.

Every command and every reader of data sets asks here, so that one folder has the same pictures for all of them.
"""

import os
from collections.abc import Collection
from pathlib import Path, PurePath

from vitrail.errors import InputError, as_path

PICTURES = frozenset(
    (
        ".apng", ".avif", ".avifs", ".bmp", ".gif", ".icb", ".ico", ".j2c", ".j2k", ".jfif", ".jp2", ".jpc", ".jpe",
        ".jpeg", ".jpf", ".jpg", ".jpx", ".mpo", ".pbm", ".pfm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif",
        ".tiff", ".vda", ".vst", ".webp",
    )
)  # fmt: skip
"""The endings that Pillow knows of the formats that are opened, `images.FORMATS`."""
TEXTS = frozenset({".txt"})
OF_CLASSES = "folder with a folder of pictures for each class"
"""What a labelled folder is called in errors."""


def require_folder(path: Path, what: str) -> Path:
    """The path, if it is a folder."""
    path = as_path(path, what)
    if not path.is_dir():
        raise InputError(f"there is no {what} at {path}." if not path.exists() else f"{path} is no folder.")
    return path


def images_in(folder: Path) -> list[Path]:
    """Return the pictures right inside a folder, by name, or raise if there are none."""
    found = files_in(require_folder(folder, "folder of pictures"), PICTURES)
    if not found:
        raise InputError(f"there are no images in {folder}.")
    return found


def files_in(folder: Path, endings: Collection[str]) -> list[Path]:
    """Return the files right inside a folder with one of these endings, by name; hidden ones are passed over."""
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if has_ending(entry.name, endings)]
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}.") from error
    # Only links are looked up on disk: a folder of ImageNet has a million files.
    return sorted(folder / e.name for e in found if e.is_file(follow_symlinks=False) or os.path.isfile(e.path))


def has_ending(name: str, endings: Collection[str]) -> bool:
    """Return True if a file is not hidden and its name ends so, in small or capital letters."""
    return not name.startswith(".") and PurePath(name).suffix.lower() in endings


def folders_in(folder: Path) -> list[Path]:
    """Return the folders right inside a folder, by name; hidden ones are passed over."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir())
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}.") from error
