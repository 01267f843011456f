"""COCO: photographs of everyday scenes, every object outlined. Lin et al., ECCV 2014, arXiv:1405.0312."""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import InputError, OptionError, suggest
from vitrail.evaluate.data.coco_classes import COCO, NAMES, NUMBERS
from vitrail.evaluate.data.coco_text import read_text_layout
from vitrail.evaluate.data.dataset import Dataset, require_unique
from vitrail.evaluate.data.examples import Box, ImageExample, Mask
from vitrail.evaluate.data.files import first_of, read_json, require_file, require_folder
from vitrail.evaluate.data.pictures import PictureFile, size_of
from vitrail.evaluate.data.polygons import Shape, paint

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
    folder = _pictures(path, images)
    read = partial(_example, path, folder, pictures, dict(notes), numbers)
    names = dict(enumerate(NAMES[classes]))
    return Dataset("coco", str(path), range(len(keys)), keys.__getitem__, read, mask_classes=names)


def _pictures(path: Path, images: str | Path | None) -> Path:
    if images is not None:
        return require_folder(Path(images), "folder of pictures")
    split, root = path.stem.removeprefix("instances_"), path.parents[1]
    return first_of((root / split, root / "images" / split, root / "images"), "folder of pictures", within=root)


def _example(
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
            _box(note["bbox"], label) for note, label in known if label is not None and not note.get("iscrowd")
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


def _box(corner: list[int | float], label: int) -> Box:
    x, y, width, height = map(float, corner)
    return Box(x, y, x + width, y + height, label)
