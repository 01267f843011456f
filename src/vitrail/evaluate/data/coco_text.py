"""COCO as text: a file per picture, an object a line: its class and its corners in parts of the picture."""

from functools import partial
from pathlib import Path

import numpy as np

from vitrail.errors import InputError
from vitrail.evaluate.data.coco_classes import COCO, NAMES, NUMBERS
from vitrail.evaluate.data.dataset import Dataset, require_unique
from vitrail.evaluate.data.examples import Box, ImageExample
from vitrail.evaluate.data.files import pictures_in, read_lines, require_folder
from vitrail.evaluate.data.pictures import PictureFile, size_of
from vitrail.evaluate.data.polygons import Shape, paint

FEWEST = 3  # corners of a polygon


def read_text_layout(root: Path, split: str | None, classes: str) -> Dataset[ImageExample]:
    """The pictures of `images/<split>` with the objects of `labels/<split>`; a picture without a file has none."""
    split = split or _only_split(root / "labels")
    labels = require_folder(root / "labels" / split, "folder of labels")
    files = pictures_in(require_folder(root / "images" / split, "folder of pictures"))
    keys = [file.stem for file in files]
    require_unique(keys, root / "images" / split)
    names = dict(enumerate(NAMES[classes]))
    read = partial(_example, labels, files, NUMBERS[classes])
    return Dataset("coco", str(root), range(len(keys)), keys.__getitem__, read, mask_classes=names)


def _only_split(folder: Path) -> str:
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if len(found) != 1:
        raise InputError(f"{folder} has the splits {', '.join(found) or '(none)'}; name one with split=.")
    return found[0]


def _example(labels: Path, files: list[Path], numbers: dict[str, int], number: int) -> ImageExample:
    picture = files[number]
    key, path = picture.stem, labels / f"{picture.stem}.txt"
    width, height = size_of(key, picture)
    lines = read_lines(path) if path.exists() else []
    objects = [_object(key, path, line, np.array([width, height])) for line in lines]
    shapes = tuple(Shape(numbers[name], (corners,)) for name, corners in objects if name in numbers)
    return ImageExample(
        key,
        PictureFile(key, picture),
        boxes=tuple(_box(shape) for shape in shapes),
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


def _box(shape: Shape) -> Box:
    (x0, y0), (x1, y1) = shape.polygons[0].min(axis=0).tolist(), shape.polygons[0].max(axis=0).tolist()
    return Box(x0, y0, x1, y1, shape.label)
