"""Photographs with the outline of every object.

PASCAL VOC segmentation: the class of every pixel. Everingham et al., IJCV 2010.
Oxford-IIIT Pets: cats and dogs of 37 breeds with their outline. Parkhi et al., CVPR 2012.
COCO: photographs of everyday scenes with the outline of every object. Lin et al., ECCV 2014, arXiv:1405.0312. Its
annotations are the published JSON, or a text file for each picture with one object on a line: its class and its corners
as fractions of the picture (the layout of coco128-seg).
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import InputError, OptionError, suggest
from vitrail.evaluate.data.examples import IGNORE, Box, Dataset, ImageExample, Mask, require_unique
from vitrail.evaluate.data.files import (
    first_of,
    open_rows,
    read_all,
    read_json,
    read_lines,
    require_file,
    require_inside,
)
from vitrail.evaluate.data.pictures import PictureFile, Shape, open_mask, paint, size_of
from vitrail.models.folders import folders_in, images_in, require_folder

VOC = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
VOC_BORDER = 255
VOC_MEANINGS = {**{i: i for i in range(len(VOC))}, VOC_BORDER: IGNORE}


def read_voc(source: str | Path, *, split: str = "val", year: str = "2012") -> Dataset[ImageExample]:
    """The photographs of a split with masks of 21 classes, the borders of objects ignored.

    Args:
        source: `VOCdevkit`, the folder around it, or `VOC2012` in it.
    """
    path = require_folder(Path(source), "VOC folder")
    places = (path, path / f"VOC{year}", path / "VOCdevkit" / f"VOC{year}")
    lists = first_of((place / "ImageSets" / "Segmentation" for place in places), "list of images", within=path)
    root = lists.parents[1]
    keys = read_lines(require_file(lists / f"{split}.txt", "list of images"))
    require_unique(keys, lists / f"{split}.txt")
    require_inside(keys, lists / f"{split}.txt")
    for folder in ("JPEGImages", "SegmentationClass"):
        require_folder(root / folder, "part of VOC")
    read, names = partial(_voc_example, root, keys), dict(enumerate(VOC))
    return Dataset("voc", str(root), range(len(keys)), keys.__getitem__, read, mask_classes=names)


def _voc_example(root: Path, keys: list[str], number: int) -> ImageExample:
    key = keys[number]
    picture = root / "JPEGImages" / f"{key}.jpg"
    mask = partial(open_mask, key, root / "SegmentationClass" / f"{key}.png", picture, VOC_MEANINGS)
    return ImageExample(key, PictureFile(key, picture), open_mask=mask)


TRIMAP = {1: 1, 2: 0, 3: IGNORE}
TABLE = "labels.csv"
Named = list[tuple[str, int, str]]  # key, label, name of the label


def read_pets(source: str | Path, *, split: str | None = None) -> Dataset[ImageExample]:
    """The photographs with masks: 1 pet, 0 background, the blurred outline ignored.

    Args:
        source: holds `images/` and either the published `annotations/` (labels: the breed, 0 to 36) or `trimaps/` and
            `labels.csv` (labels: its column `imagenet_idx`).
        split: `trainval` or `test` of the published lists; all without one.
    """
    root = require_folder(Path(source), "folder of pets")
    images = require_folder(root / "images", "folder of pictures")
    if (root / TABLE).is_file():
        if split is not None:
            raise InputError(f"{root / TABLE} has no splits, so there is no {split}.")
        named, trimaps = _from_table(root / TABLE), root / "trimaps"
    else:
        notes = require_folder(root / "annotations", "folder of annotations")
        named, trimaps = _from_list(require_file(notes / f"{split or 'list'}.txt", "list of pets")), notes / "trimaps"
    require_folder(trimaps, "folder of trimaps")
    keys = [key for key, _, _ in named]
    require_unique(keys, root)
    require_inside(keys, root)
    read, classes = partial(_pet_example, images, trimaps, named), {label: name for _, label, name in named}
    return Dataset("pets", str(root), range(len(keys)), keys.__getitem__, read, classes, {0: "background", 1: "pet"})


def _from_table(path: Path) -> Named:
    rows = open_rows(path, split="test")
    key, label, name = (rows.column((column,)) for column in ("id", "imagenet_idx", "imagenet_name"))
    found = read_all(rows)
    wrong = [row[key] for row in found if not row[label].isdigit()]
    if wrong:
        raise InputError(f"{path} has no class number for {wrong[0]}.")
    return [(row[key], int(row[label]), row[name]) for row in found]


def _from_list(path: Path) -> Named:
    """Lines `<name> <breed from 1> <cat or dog> <breed within it>`."""
    rows = [line.split() for line in read_lines(path) if not line.startswith("#")]
    wrong = [row for row in rows if len(row) != 4 or not row[1].isdigit()]
    if wrong:
        raise InputError(f"{path} has the line {' '.join(wrong[0])!r}; needs a name and three numbers.")
    return [(key, int(breed) - 1, key.rpartition("_")[0]) for key, breed, _, _ in rows]


def _pet_example(images: Path, trimaps: Path, named: Named, number: int) -> ImageExample:
    key, label, _ = named[number]
    picture = images / f"{key}.jpg"
    mask = partial(open_mask, key, trimaps / f"{key}.png", picture, TRIMAP)
    return ImageExample(key, PictureFile(key, picture), label, open_mask=mask)


COCO = (
    "background", "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat",
    "traffic light", "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep",
    "cow", "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee",
    "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich",
    "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed",
    "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven",
    "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip
SPELT_IN_VOC = {
    "airplane": "aeroplane", "dining table": "diningtable", "motorcycle": "motorbike", "potted plant": "pottedplant",
    "couch": "sofa", "tv": "tvmonitor",
}  # fmt: skip

NAMES = {"coco": COCO, "voc": VOC}
NUMBERS: dict[str, dict[str, int]] = {
    "coco": {name: i for i, name in enumerate(COCO) if i},
    "voc": {name: VOC.index(there) for name in COCO[1:] if (there := SPELT_IN_VOC.get(name, name)) in VOC},
}
"""By numbering, the mask value of each class that COCO names; other classes are background."""


FEWEST = 3  # corners of a polygon


def read_text_layout(root: Path, split: str | None, classes: str) -> Dataset[ImageExample]:
    """The pictures of `images/<split>` with the objects of `labels/<split>`; a picture without a file has none."""
    split = split or _only_split(root / "labels")
    labels = require_folder(root / "labels" / split, "folder of labels")
    files = images_in(root / "images" / split)
    keys = [file.stem for file in files]
    require_unique(keys, root / "images" / split)
    names = dict(enumerate(NAMES[classes]))
    read = partial(_example_from_lines, labels, files, NUMBERS[classes])
    return Dataset("coco", str(root), range(len(keys)), keys.__getitem__, read, mask_classes=names)


def _only_split(folder: Path) -> str:
    found = [path.name for path in folders_in(folder)]
    if len(found) != 1:
        raise InputError(f"{folder} has the splits {', '.join(found) or '(none)'}; name one with split=.")
    return found[0]


def _example_from_lines(labels: Path, files: list[Path], numbers: dict[str, int], number: int) -> ImageExample:
    picture = files[number]
    key, path = picture.stem, labels / f"{picture.stem}.txt"
    width, height = size_of(key, picture)
    lines = read_lines(path) if path.exists() else []
    objects = [_object(key, path, line, np.array([width, height])) for line in lines]
    known = [(numbers[name], corners) for name, corners in objects if name in numbers]
    boxes = tuple(
        Box(*corners.min(axis=0).tolist(), *corners.max(axis=0).tolist(), label=label) for label, corners in known
    )
    mask = partial(paint, tuple(Shape(label, (corners,)) for label, corners in known), (height, width))
    return ImageExample(key, PictureFile(key, picture), boxes=boxes, open_mask=mask)


def _object(key: str, path: Path, line: str, size: np.ndarray) -> tuple[str, np.ndarray]:
    """The class and the corners, in pixels, of one line."""
    label, *numbers = line.split()
    if not label.isdigit() or int(label) >= len(COCO) - 1:
        raise InputError(f"{key}: {path} has the class {label!r}; needs 0 to {len(COCO) - 2}.")
    if len(numbers) % 2 or len(numbers) < 2 * FEWEST:
        raise InputError(f"{key}: {path} has a line of {len(numbers)} numbers after the class, which is no polygon.")
    try:
        corners = np.array(numbers, dtype=np.float64).reshape(-1, 2)
    except ValueError as error:
        raise InputError(f"{key}: {path} has a corner that is not a number.") from error
    return COCO[int(label) + 1], corners * size


Notes = Mapping[str, Any]


def read_coco(
    source: str | Path, *, split: str | None = None, images: str | Path | None = None, classes: str = "coco"
) -> Dataset[ImageExample]:
    """The photographs with the class of each pixel as mask and a box per object.

    Args:
        source: a file `instances_<split>.json`, a folder with `annotations/` that holds one, or a folder with `images/`
            and `labels/` where each object is a line of text (the layout of coco128-seg).
        split: such as `val2017`; needed where the folder has several.
        images: the folder of the pictures, where it is not beside the annotations.
        classes: `coco` for all 80; `voc` for the 20 that PASCAL VOC has, numbered as there, all else background.
    """
    if classes not in NUMBERS:
        raise OptionError(f"COCO has no classes {classes!r}. {suggest(classes, NUMBERS)}")
    path = Path(source)
    if path.is_dir() and (path / "labels").is_dir():
        return read_text_layout(path, split, classes)
    if path.is_dir():
        path = _annotations(require_folder(path / "annotations", "annotations of COCO"), split)
    return _from_json(require_file(path, "COCO annotations"), images, classes)


def _annotations(folder: Path, split: str | None) -> Path:
    found = sorted(folder.glob(f"instances_{split or '*'}.json"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        wanted = f"one file instances_{split or '*'}.json"
        raise InputError(f"{folder} must hold {wanted}, but there is {names}; set split=.")
    return found[0]


def _from_json(path: Path, images: str | Path | None, classes: str) -> Dataset[ImageExample]:
    content = read_json(path)
    try:
        numbers = {row["id"]: NUMBERS[classes].get(row["name"]) for row in content["categories"]}
        unknown = sorted({row["name"] for row in content["categories"]} - set(COCO))
        pictures = sorted(content["images"], key=lambda row: row["id"])
        keys = [Path(row["file_name"]).stem for row in pictures]
        notes: dict[Any, list[Notes]] = defaultdict(list)
        for note in content["annotations"]:
            notes[note["image_id"]].append(note)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is not in the format of COCO: {error!r} went wrong.") from error
    if unknown:
        raise InputError(f"{path} names {', '.join(unknown[:3])}, which is no class of COCO.")
    require_unique(keys, path)
    require_inside((row["file_name"] for row in pictures), path)
    folder = _pictures(path, images)
    read = partial(_example_from_notes, path, folder, pictures, dict(notes), numbers)
    names = dict(enumerate(NAMES[classes]))
    return Dataset("coco", str(path), range(len(keys)), keys.__getitem__, read, mask_classes=names)


def _pictures(path: Path, images: str | Path | None) -> Path:
    if images is not None:
        return require_folder(Path(images), "folder of pictures")
    split, root = path.stem.removeprefix("instances_"), path.parents[1]
    return first_of((root / split, root / "images" / split, root / "images"), "folder of pictures", within=root)


def _example_from_notes(
    path: Path,
    folder: Path,
    pictures: list[Notes],
    notes: Mapping[Any, list[Notes]],
    numbers: Mapping[Any, int | None],
    number: int,
) -> ImageExample:
    row = pictures[number]
    key, picture = Path(row["file_name"]).stem, folder / row["file_name"]
    try:
        size = (int(row["height"]), int(row["width"]))
        labelled = [(note, numbers[note["category_id"]]) for note in notes.get(row["id"], ())]
        known = [(note, label) for note, label in labelled if label is not None]
        shapes = tuple(_shape(note, label, size) for note, label in known)
        boxes = tuple(_box_of(note["bbox"], label) for note, label in known if not note.get("iscrowd"))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{key}: {path} has an object that cannot be read: {error!r}.") from error
    mask = partial(_mask, key, picture, shapes, size)
    return ImageExample(key, PictureFile(key, picture), boxes=boxes, open_mask=mask)


def _mask(key: str, picture: Path, shapes: tuple[Shape, ...], size: tuple[int, int]) -> Mask:
    if (found := size_of(key, picture)[::-1]) != size:
        raise InputError(f"{key}: {picture} is {found} pixels high and wide, but its annotations say {size}.")
    return paint(shapes, size)


def _shape(note: Notes, label: int, size: tuple[int, int]) -> Shape:
    outline, crowd = note["segmentation"], bool(note.get("iscrowd"))
    if isinstance(outline, Mapping):
        runs = outline["counts"]
        if isinstance(runs, str) or tuple(outline["size"]) != size or sum(runs) != size[0] * size[1]:
            raise ValueError("a run-length code that is packed, or not of the picture's size")
        return Shape(label, runs=tuple(runs), crowd=crowd)
    polygons = tuple(np.array(corners, dtype=np.float64).reshape(-1, 2) for corners in outline)
    return Shape(label, polygons, crowd=crowd)


def _box_of(corner: list[int | float], label: int) -> Box:
    x, y, width, height = map(float, corner)
    return Box(x, y, x + width, y + height, label)
