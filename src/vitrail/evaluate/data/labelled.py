"""Pictures with the class they show: ImageNet and the sets made of it, CIFAR-10 and CIFAR-100.

ImageNet validation: 1,000 classes. Russakovsky et al., IJCV 2015, arXiv:1409.0575.
ImageNet-Segmentation: 4,276 photographs with the outline of their object. Guillaumin, Küttel and Ferrari, IJCV 2014;
the file `gtsegs_ijcv.mat` is MATLAB 7.3, which is HDF5.
Imagenette: ten classes that are easy to tell apart. J. Howard, fast.ai, 2019.
CIFAR: pictures of 32 x 32 pixels. Krizhevsky, 2009. Both published versions, binary and Python.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int, UInt8

from vitrail.errors import InputError, MissingExtraError, OptionError, suggest
from vitrail.evaluate.data.examples import Box, Dataset, ImageExample, Mask, require_unique
from vitrail.evaluate.data.files import (
    Member,
    as_text,
    first_of,
    one_line,
    open_rows,
    read_all,
    read_json,
    read_pickled_table,
    require_file,
    require_inside,
    tar_files,
    zip_members,
)
from vitrail.evaluate.data.pictures import PictureFile, from_array, translate
from vitrail.models.folders import PICTURES, files_in, folders_in, has_ending, require_folder

if TYPE_CHECKING:
    from PIL.Image import Image

SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class SynsetPictures:
    """The pictures of a folder or an archive.

    Args:
        keys: `<wnid>/<name>` of each, without the ending.
    """

    where: Path
    keys: list[str]
    files: list[Path] | list[Member]

    @property
    def wnids(self) -> list[str]:
        """The WordNet ids that have pictures, in order."""
        return sorted({key.split("/")[0] for key in self.keys})

    def labelled(self, name: str, numbers: Mapping[str, int], classes: Mapping[int, str]) -> Dataset[ImageExample]:
        """A data set whose labels are the numbers of the folders."""
        read = partial(_example_of_synset, self, numbers)
        return Dataset(name, str(self.where), range(len(self.keys)), self.keys.__getitem__, read, classes)


def _example_of_synset(pictures: SynsetPictures, numbers: Mapping[str, int], number: int) -> ImageExample:
    key = pictures.keys[number]
    return ImageExample(key, PictureFile(key, pictures.files[number]), numbers[key.split("/")[0]])


def find_pictures(path: Path) -> SynsetPictures:
    """The pictures under a folder of synsets or in a zip archive of them, by name."""
    if path.suffix == ".zip":
        files = [member for member in zip_members(path) if _is_picture(PurePosixPath(member.name))]
        return SynsetPictures(path, [_key_of(PurePosixPath(member.name)) for member in files], files)
    folders = [folder for folder in folders_in(path) if SYNSET.fullmatch(folder.name)]
    paths = [file for folder in folders for file in files_in(folder, PICTURES)]
    if not paths:
        raise InputError(f"{path} has no folders of pictures that are named like n01440764.")
    return SynsetPictures(path, [_key_of(file) for file in paths], paths)


def _is_picture(path: PurePosixPath) -> bool:
    return has_ending(path.name, PICTURES) and SYNSET.fullmatch(path.parent.name) is not None


def _key_of(path: Path | PurePosixPath) -> str:
    return f"{path.parent.name}/{path.stem}"


COUNT = 1000
TABLE, BOXES = "labels.csv", "boxes_x0y0x1y1"


def read_imagenet(
    source: str | Path, *, fold: int | None = None, class_index: str | Path | None = None
) -> Dataset[ImageExample]:
    """The photographs of a folder of synsets, or of a folder with `labels.csv` and `images/`.

    Args:
        fold: only this part, where `labels.csv` has a column `fold`.
        class_index: a JSON file `{"0": ["n01440764", "tench"], ...}`; a folder without all 1,000 synsets needs it.
    """
    path = Path(source)
    table = path if path.suffix == ".csv" else path / TABLE
    if table.is_file() or path.suffix == ".csv":
        return _from_table(require_file(table, "table of labels"), fold)
    if fold is not None:
        raise InputError(f"{path} has no {TABLE}, so there is no fold {fold}.")
    return _from_folders(require_folder(path, "ImageNet folder"), class_index)


def _from_folders(path: Path, class_index: str | Path | None) -> Dataset[ImageExample]:
    pictures = find_pictures(path)
    if class_index is None:
        if len(pictures.wnids) != COUNT:
            raise InputError(
                f"{path} has {len(pictures.wnids)} synsets, so their numbers among the {COUNT} are not known; "
                "pass class_index=, a JSON file from numbers to WordNet ids."
            )
        return pictures.labelled("imagenet", {wnid: i for i, wnid in enumerate(pictures.wnids)}, {})
    numbers, classes = _read_index(Path(class_index))
    unknown = [wnid for wnid in pictures.wnids if wnid not in numbers]
    if unknown:
        raise InputError(f"{class_index} does not name {', '.join(unknown[:3])}, which {path} has.")
    return pictures.labelled("imagenet", numbers, classes)


def _read_index(path: Path) -> tuple[dict[str, int], dict[int, str]]:
    content = read_json(require_file(path, "class index"))
    try:
        rows = [(int(number), wnid, name) for number, (wnid, name) in content.items()]
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f'{path} is no class index: it needs entries like "0": ["n01440764", "tench"].') from error
    return {wnid: number for number, wnid, _ in rows}, {number: name for number, _, name in rows}


def _from_table(table: Path, fold: int | None) -> Dataset[ImageExample]:
    rows = open_rows(table, split="val")
    for column in ("file", "class_idx", *(["fold"] if fold is not None else [])):
        rows.column((column,))
    images = require_folder(table.parent / "images", "folder of pictures")
    everything = read_all(rows)
    chosen = [row for row in everything if fold is None or row["fold"] == str(fold)]
    if not chosen and everything:
        raise InputError(f"{table} has no fold {fold}; it has {', '.join(sorted({r['fold'] for r in everything}))}.")
    require_inside((row["file"] for row in chosen), table)
    keys = [Path(row["file"]).stem for row in chosen]
    require_unique(keys, table)
    labels = [_number(row, table) for row in chosen]
    classes = {i: row["name"] for i, row in zip(labels, chosen, strict=True) if "name" in row}
    read = partial(_example_from_table, table, images, chosen, labels)
    return Dataset("imagenet", str(table), range(len(keys)), keys.__getitem__, read, classes)


def _number(row: Mapping[str, Any], table: Path) -> int:
    if not row["class_idx"].isdigit() or int(row["class_idx"]) >= COUNT:
        raise InputError(f"{table} gives {row['file']} the class {row['class_idx']!r}; needs 0 to {COUNT - 1}.")
    return int(row["class_idx"])


def _example_from_table(
    table: Path, images: Path, rows: list[Mapping[str, Any]], labels: list[int], number: int
) -> ImageExample:
    file, label = rows[number]["file"], labels[number]
    key = Path(file).stem
    try:
        texts = [text.split() for text in rows[number].get(BOXES, "").split(";") if text.strip()]
        boxes = tuple(Box(*map(float, numbers), label=label) for numbers in texts)
    except (TypeError, ValueError) as error:
        raise InputError(f"{key}: {table} has boxes that are not four numbers x0 y0 x1 y1 each.") from error
    return ImageExample(key, PictureFile(key, images / file), label, boxes)


IMAGES, MASKS = "/value/img", "/value/gt"
BROKEN = (OSError, KeyError, IndexError, ValueError, TypeError, AttributeError, RuntimeError)
"""What h5py raises on files that are damaged or built differently."""


def read_imagenet_segmentation(source: str | Path) -> Dataset[ImageExample]:
    """The photographs with masks 0 and 1; there are no labels, the protocol explains the model's prediction."""
    path = require_file(Path(source), "ImageNet-Segmentation file")
    h5py = _h5py()
    try:
        with h5py.File(path, "r") as file:
            count, masks = len(file[IMAGES]), len(file[MASKS])
    except BROKEN as error:
        raise InputError(f"{path} is not the HDF5 file of ImageNet-Segmentation: {one_line(error)}") from error
    if count != masks:
        raise InputError(f"{path} has {count} pictures, but {masks} masks.")
    read, names = partial(_segmented_example, path), {0: "background", 1: "object"}
    return Dataset("imagenet_segmentation", str(path), range(count), _segmented_key, read, mask_classes=names)


def _segmented_key(number: int) -> str:
    return f"{number:04d}"


def _segmented_example(path: Path, number: int) -> ImageExample:
    image, mask = partial(_segmented_image, path, number), partial(_segmented_mask, path, number)
    return ImageExample(_segmented_key(number), image, open_mask=mask)


def _segmented_image(path: Path, number: int) -> "Image":
    pixels = _stored(path, number, IMAGES)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[0] != 3):
        raise InputError(f"{_segmented_key(number)}: {path} has {pixels.dtype} {list(pixels.shape)} for a picture.")
    # MATLAB stores columns first: [channel, x, y].
    colour = np.stack([pixels] * 3) if pixels.ndim == 2 else pixels
    return from_array(np.ascontiguousarray(colour.transpose(2, 1, 0)))


def _segmented_mask(path: Path, number: int) -> Mask:
    key, values, size = _segmented_key(number), _stored(path, number, MASKS), _stored(path, number, IMAGES).shape[-2:]
    if values.shape != size:
        raise InputError(f"{key}: {path} has a mask of shape {list(values.shape)} for a picture of {list(size)}.")
    return translate(key, values.T, {0: 0, 1: 1})


def _stored(path: Path, number: int, where: str) -> np.ndarray:
    """Return the array that a cell of the file refers to; a mask lies in a cell within the cell."""
    h5py = _h5py()
    try:
        with h5py.File(path, "r") as file:
            stored = file[file[where][number, 0]]
            while stored.dtype == h5py.ref_dtype:
                stored = file[stored[0, 0]]
            return stored[()]
    except BROKEN as error:
        raise InputError(f"{_segmented_key(number)}: {path} cannot be read here: {one_line(error)}") from error


def _h5py() -> Any:  # noqa: ANN401
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError("ImageNet-Segmentation is an HDF5 file: pip install 'vitrail[data]'") from error
    return h5py


# By WordNet id: the name and the number among ImageNet's 1,000 classes.
IMAGENETTE_SYNSETS = {
    "n01440764": ("tench", 0),
    "n02102040": ("English springer", 217),
    "n02979186": ("cassette player", 482),
    "n03000684": ("chain saw", 491),
    "n03028079": ("church", 497),
    "n03394916": ("French horn", 566),
    "n03417042": ("garbage truck", 569),
    "n03425413": ("gas pump", 571),
    "n03445777": ("golf ball", 574),
    "n03888257": ("parachute", 701),
}
IMAGENETTE = tuple(name for name, _ in IMAGENETTE_SYNSETS.values())
IMAGENETTE_NUMBERS = {
    "imagenette": {wnid: i for i, wnid in enumerate(IMAGENETTE_SYNSETS)},
    "imagenet": {wnid: number for wnid, (_, number) in IMAGENETTE_SYNSETS.items()},
}


def read_imagenette(source: str | Path, *, split: str = "val", labels: str = "imagenette") -> Dataset[ImageExample]:
    """The photographs of a split, from a folder or a zip archive of synsets.

    Args:
        source: holds `<split>/` or `<split>.zip`, or is such an archive.
        labels: `imagenette` numbers the classes 0 to 9, `imagenet` as a model of all 1,000 classes does.
    """
    if labels not in IMAGENETTE_NUMBERS:
        raise OptionError(f"Imagenette has no labels {labels!r}. {suggest(labels, IMAGENETTE_NUMBERS)}")
    path = Path(source)
    if path.suffix != ".zip":
        path = first_of((path / split, path / f"{split}.zip"), "split of Imagenette", within=path)
    pictures, numbers = find_pictures(path), IMAGENETTE_NUMBERS[labels]
    unknown = [wnid for wnid in pictures.wnids if wnid not in numbers]
    if unknown:
        raise InputError(f"{path} has {', '.join(unknown[:3])}, which is no class of Imagenette.")
    return pictures.labelled("imagenette", numbers, {numbers[w]: name for w, (name, _) in IMAGENETTE_SYNSETS.items()})


SIDE, PIXELS = 32, 3 * 32 * 32
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_COUNTS = {"cifar10": {"labels": 10}, "cifar100": {"fine": 100, "coarse": 20}}


@dataclass(frozen=True)
class CifarVersion:
    """The storage of one of the published versions.

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


CIFAR_VERSIONS = {
    "cifar10": (
        CifarVersion(
            "cifar-10-batches-bin",
            {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
            {"labels": 0},
            {"labels": "batches.meta.txt"},
        ),
        CifarVersion(
            "cifar-10-batches-py",
            {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
            {"labels": "labels"},
            {"labels": "label_names"},
            "batches.meta",
        ),
    ),
    "cifar100": (
        CifarVersion(
            "cifar-100-binary",
            {"train": ("train.bin",), "test": ("test.bin",)},
            {"coarse": 0, "fine": 1},
            {"fine": "fine_label_names.txt", "coarse": "coarse_label_names.txt"},
        ),
        CifarVersion(
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
    return _read_cifar("cifar10", Path(source), split, "labels")


def read_cifar100(source: str | Path, *, split: str = "test", labels: str = "fine") -> Dataset[ImageExample]:
    """The pictures of a split of CIFAR-100, from a published archive or the folder that it unpacks to.

    Args:
        labels: `fine` for 100 classes, `coarse` for 20.
    """
    if labels not in CIFAR_COUNTS["cifar100"]:
        raise OptionError(f"CIFAR-100 has no labels {labels!r}. {suggest(labels, CIFAR_COUNTS['cifar100'])}")
    return _read_cifar("cifar100", Path(source), split, labels)


def _read_cifar(name: str, path: Path, split: str, kind: str) -> Dataset[ImageExample]:
    if split not in ("train", "test"):
        raise OptionError(f"{name} has no split {split!r}. {suggest(split, ('train', 'test'))}")
    version, files = _find_cifar(name, path, split)
    read = _read_records if version.meta is None else _read_table
    parts = [read(files[file], version, kind, f"{path}/{file}") for file in version.splits[split]]
    pixels, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    if len(labels) and not 0 <= labels.min() <= labels.max() < CIFAR_COUNTS[name][kind]:
        raise InputError(f"{path} has a label beyond the {CIFAR_COUNTS[name][kind]} classes of {name}; it is damaged.")
    classes = dict(enumerate(_class_names(files, version, kind, path)))
    read_one = partial(_cifar_example, split, pixels, labels)
    return Dataset(name, str(path), range(len(labels)), partial(_cifar_key, split), read_one, classes)


def _find_cifar(name: str, path: Path, split: str) -> tuple[CifarVersion, Mapping[str, bytes]]:
    """The published version at a path, and the bytes of its files."""
    if not path.exists():
        raise InputError(f"there is no {name} at {path}.")
    versions = CIFAR_VERSIONS[name]
    wanted = {file for v in versions for file in (*v.splits[split], v.meta, *v.names.values()) if file}
    held = tar_files(path, wanted) if path.is_file() else {}
    for version in versions:
        place = path / version.folder if (path / version.folder).is_dir() else path
        files = held or {name: (place / name).read_bytes() for name in sorted(wanted) if (place / name).is_file()}
        if all(file in files for file in version.splits[split]):
            return version, files
    needs = " or ".join(", ".join(version.splits[split]) for version in versions)
    raise InputError(f"{path} does not hold the {split} split of {name}: needs {needs}.")


CifarArrays = tuple[UInt8[np.ndarray, "n c"], Int[np.ndarray, " n"]]


def _read_records(data: bytes, version: CifarVersion, kind: str, where: str) -> CifarArrays:
    """Records of the label bytes and the 3,072 bytes of a picture."""
    length = len(version.labels) + PIXELS
    if len(data) % length:
        raise InputError(f"{where} is cut off: its {len(data)} bytes are no multiple of {length}.")
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, length)
    return records[:, len(version.labels) :], records[:, version.labels[kind]].astype(np.int64)


def _read_table(data: bytes, version: CifarVersion, kind: str, where: str) -> CifarArrays:
    """A pickled table of pixels and labels."""
    table = read_pickled_table(data, where)
    pixels, labels = table.get("data"), table.get(version.labels[kind])
    if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (PIXELS,):
        raise InputError(f"{where} has no pictures: needs data of shape [n, {PIXELS}].")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(i) is int for i in labels):
        raise InputError(f"{where} needs as many {version.labels[kind]} as pictures, {len(pixels)}.")
    return pixels, np.array(labels, dtype=np.int64)


def _class_names(files: Mapping[str, bytes], version: CifarVersion, kind: str, path: Path) -> list[str]:
    """The names of the classes, none where the file that holds them is missing."""
    if version.meta is None:
        return files.get(version.names[kind], b"").decode("latin1").split()
    if version.meta not in files:
        return []
    names = read_pickled_table(files[version.meta], f"{path}/{version.meta}").get(version.names[kind], [])
    return list(map(as_text, names))


def _cifar_key(split: str, number: int) -> str:
    return f"{split}-{number:05d}"


def _cifar_example(split: str, pixels: np.ndarray, labels: np.ndarray, number: int) -> ImageExample:
    picture = np.ascontiguousarray(pixels[number].reshape(3, SIDE, SIDE).transpose(1, 2, 0))
    return ImageExample(_cifar_key(split, number), partial(from_array, picture), int(labels[number]))
