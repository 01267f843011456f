"""CIFAR-10 and CIFAR-100: pictures of 32 x 32 pixels. Krizhevsky, 2009. Both published versions, binary and Python."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from vitrail.errors import InputError, OptionError, suggest
from vitrail.evaluate.data.examples import Dataset, ImageExample
from vitrail.evaluate.data.files import read_pickled_table, tar_files
from vitrail.evaluate.data.pictures import from_array

SIDE, PIXELS = 32, 3 * 32 * 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COUNTS = {"cifar10": {"labels": 10}, "cifar100": {"fine": 100, "coarse": 20}}


@dataclass(frozen=True)
class Version:
    """How one of the published versions is stored.

    Args:
        splits: the files of each split.
        labels: by kind of label, where it is: a byte of a record, or an entry of a pickled table.
        names: by kind of label, where the names of the classes are: a text file, or an entry of the table in `meta`.
    """

    folder: str
    splits: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, Any]
    names: Mapping[str, str]
    meta: str | None = None


VERSIONS = {
    "cifar10": (
        Version(
            "cifar-10-batches-bin",
            {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
            {"labels": 0},
            {"labels": "batches.meta.txt"},
        ),
        Version(
            "cifar-10-batches-py",
            {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
            {"labels": "labels"},
            {"labels": "label_names"},
            "batches.meta",
        ),
    ),
    "cifar100": (
        Version(
            "cifar-100-binary",
            {"train": ("train.bin",), "test": ("test.bin",)},
            {"coarse": 0, "fine": 1},
            {"fine": "fine_label_names.txt", "coarse": "coarse_label_names.txt"},
        ),
        Version(
            "cifar-100-python",
            {"train": ("train",), "test": ("test",)},
            {"fine": "fine_labels", "coarse": "coarse_labels"},
            {"fine": "fine_label_names", "coarse": "coarse_label_names"},
            "meta",
        ),
    ),
}


def read_cifar10(source: str | Path, *, split: str = "test") -> Dataset[ImageExample]:
    """The pictures of a split of CIFAR-10, from a published archive or the folder that it unpacks to."""
    return _read("cifar10", Path(source), split, "labels")


def read_cifar100(source: str | Path, *, split: str = "test", labels: str = "fine") -> Dataset[ImageExample]:
    """The pictures of a split of CIFAR-100, from a published archive or the folder that it unpacks to.

    Args:
        labels: `fine` for 100 classes, `coarse` for 20.
    """
    if labels not in COUNTS["cifar100"]:
        raise OptionError(f"CIFAR-100 has no labels {labels!r}. {suggest(labels, COUNTS['cifar100'])}")
    return _read("cifar100", Path(source), split, labels)


def _read(name: str, path: Path, split: str, kind: str) -> Dataset[ImageExample]:
    if split not in ("train", "test"):
        raise OptionError(f"{name} has no split {split!r}. {suggest(split, ('train', 'test'))}")
    version, files = _find(name, path, split)
    read = _read_records if version.meta is None else _read_table
    parts = [read(files[file], version, kind, f"{path}/{file}") for file in version.splits[split]]
    pixels, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    if len(labels) and not 0 <= labels.min() <= labels.max() < COUNTS[name][kind]:
        raise InputError(f"{path} has a label beyond the {COUNTS[name][kind]} classes of {name}; it is damaged.")
    classes = dict(enumerate(_class_names(files, version, kind, path)))
    read_one = partial(_example, split, pixels, labels)
    return Dataset(name, str(path), range(len(labels)), partial(_key, split), read_one, classes)


def _find(name: str, path: Path, split: str) -> tuple[Version, Mapping[str, bytes]]:
    """The published version at a path, and the bytes of its files."""
    if not path.exists():
        raise InputError(f"there is no {name} at {path}.")
    versions = VERSIONS[name]
    wanted = {file for v in versions for file in (*v.splits[split], v.meta, *v.names.values()) if file}
    held = tar_files(path, wanted) if path.is_file() else {}
    for version in versions:
        files = held or _folder_files(path, version.folder, wanted)
        if all(file in files for file in version.splits[split]):
            return version, files
    needs = " or ".join(", ".join(version.splits[split]) for version in versions)
    raise InputError(f"{path} does not hold the {split} split of {name}: needs {needs}.")


def _folder_files(path: Path, folder: str, wanted: set[str]) -> dict[str, bytes]:
    place = path / folder if (path / folder).is_dir() else path
    return {name: (place / name).read_bytes() for name in sorted(wanted) if (place / name).is_file()}


Scalar = tuple[UInt8[np.ndarray, "n c"], Int[np.ndarray, " n"]]


def _read_records(data: bytes, version: Version, kind: str, where: str) -> Scalar:
    """Records of the label bytes and the 3,072 bytes of a picture."""
    length = len(version.labels) + PIXELS
    if len(data) % length:
        raise InputError(f"{where} is cut off: its {len(data)} bytes are no multiple of {length}.")
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, length)
    return records[:, len(version.labels) :], records[:, version.labels[kind]].astype(np.int64)


def _read_table(data: bytes, version: Version, kind: str, where: str) -> Scalar:
    """A pickled table of pixels and labels."""
    table = read_pickled_table(data, where)
    pixels, labels = table.get("data"), table.get(version.labels[kind])
    if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (PIXELS,):
        raise InputError(f"{where} has no pictures: needs data of shape [n, {PIXELS}].")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(i) is int for i in labels):
        raise InputError(f"{where} needs as many {version.labels[kind]} as pictures, {len(pixels)}.")
    return pixels, np.array(labels, dtype=np.int64)


def _class_names(files: Mapping[str, bytes], version: Version, kind: str, path: Path) -> list[str]:
    """The names of the classes, none where the file that holds them is missing."""
    if version.meta is None:
        return files.get(version.names[kind], b"").decode("latin1").split()
    if version.meta not in files:
        return []
    names = read_pickled_table(files[version.meta], f"{path}/{version.meta}").get(version.names[kind], [])
    return [name.decode("latin1") if isinstance(name, bytes) else str(name) for name in names]


def _key(split: str, number: int) -> str:
    return f"{split}-{number:05d}"


def _example(split: str, pixels: np.ndarray, labels: np.ndarray, number: int) -> ImageExample:
    picture = pixels[number].reshape(3, SIDE, SIDE).transpose(1, 2, 0)
    return ImageExample(_key(split, number), partial(from_array, np.ascontiguousarray(picture)), int(labels[number]))
