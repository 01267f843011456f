"""COCO: photographs of everyday scenes with the outline of every object. Lin et al., ECCV 2014, arXiv:1405.0312.

Annotations are the published JSON, or a text file for each picture with one object on a line: its class and its corners
as fractions of the picture (the layout of coco128-seg).
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import InputError, OptionError, suggest
from vitrail.evaluate.data.examples import Box, Dataset, ImageExample, Mask, require_unique
from vitrail.evaluate.data.files import (
    first_of,
    pictures_in,
    read_json,
    read_lines,
    require_file,
    require_folder,
    require_inside,
)
from vitrail.evaluate.data.masks import Shape, paint
from vitrail.evaluate.data.pictures import PictureFile, size_of
from vitrail.evaluate.data.segmented import VOC

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
    files = pictures_in(require_folder(root / "images" / split, "folder of pictures"))
    keys = [file.stem for file in files]
    require_unique(keys, root / "images" / split)
    names = dict(enumerate(NAMES[classes]))
    read = partial(_example_from_lines, labels, files, NUMBERS[classes])
    return Dataset("coco", str(root), range(len(keys)), keys.__getitem__, read, mask_classes=names)


def _only_split(folder: Path) -> str:
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if len(found) != 1:
        raise InputError(f"{folder} has the splits {', '.join(found) or '(none)'}; name one with split=.")
    return found[0]


def _example_from_lines(labels: Path, files: list[Path], numbers: dict[str, int], number: int) -> ImageExample:
    picture = files[number]
    key, path = picture.stem, labels / f"{picture.stem}.txt"
    width, height = size_of(key, picture)
    lines = read_lines(path) if path.exists() else []
    objects = [_object(key, path, line, np.array([width, height])) for line in lines]
    shapes = tuple(Shape(numbers[name], (corners,)) for name, corners in objects if name in numbers)
    return ImageExample(
        key,
        PictureFile(key, picture),
        boxes=tuple(_box_around(shape) for shape in shapes),
        open_mask=partial(paint, shapes, (height, width)),
    )


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


def _box_around(shape: Shape) -> Box:
    (x0, y0), (x1, y1) = shape.polygons[0].min(axis=0).tolist(), shape.polygons[0].max(axis=0).tolist()
    return Box(x0, y0, x1, y1, shape.label)


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
        raise InputError(
            f"{folder} must hold one file instances_{split or '*'}.json, but there is {names}; set split=."
        )
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
        known = [(note, numbers[note["category_id"]]) for note in notes.get(row["id"], ())]
        shapes = tuple(_shape(note, label, size) for note, label in known if label is not None)
        boxes = tuple(
            _box_of(note["bbox"], label) for note, label in known if label is not None and not note.get("iscrowd")
        )
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
