"""PASCAL VOC segmentation: photographs with the class of every pixel. Everingham et al., IJCV 2010."""

from functools import partial
from pathlib import Path

from vitrail.evaluate.data.dataset import Dataset, require_unique
from vitrail.evaluate.data.examples import IGNORE, ImageExample, Mask
from vitrail.evaluate.data.files import first_of, read_lines, require_file, require_folder
from vitrail.evaluate.data.masks import translate
from vitrail.evaluate.data.pictures import PictureFile, open_values

CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
BORDER = 255
MEANINGS = {**{i: i for i in range(len(CLASSES))}, BORDER: IGNORE}


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
    for folder in ("JPEGImages", "SegmentationClass"):
        require_folder(root / folder, "part of VOC")
    names = dict(enumerate(CLASSES))
    return Dataset(
        "voc", str(root), range(len(keys)), keys.__getitem__, partial(_example, root, keys), mask_classes=names
    )


def _example(root: Path, keys: list[str], number: int) -> ImageExample:
    key = keys[number]
    picture = root / "JPEGImages" / f"{key}.jpg"
    return ImageExample(key, PictureFile(key, picture), open_mask=partial(_mask, root, picture, key))


def _mask(root: Path, picture: Path, key: str) -> Mask:
    return translate(key, open_values(key, root / "SegmentationClass" / f"{key}.png", picture), MEANINGS)
