"""Photographs with a mask.

PASCAL VOC segmentation: the class of every pixel. Everingham et al., IJCV 2010.
Oxford-IIIT Pets: cats and dogs of 37 breeds with their outline. Parkhi et al., CVPR 2012.
"""

from functools import partial
from pathlib import Path

from vitrail.errors import InputError
from vitrail.evaluate.data.examples import IGNORE, Dataset, ImageExample, Mask, require_unique
from vitrail.evaluate.data.files import first_of, read_lines, require_file, require_folder, require_inside
from vitrail.evaluate.data.masks import translate
from vitrail.evaluate.data.pictures import PictureFile, open_values
from vitrail.evaluate.data.rows import open_rows, read_all

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
    names = dict(enumerate(VOC))
    return Dataset(
        "voc", str(root), range(len(keys)), keys.__getitem__, partial(_voc_example, root, keys), mask_classes=names
    )


def _voc_example(root: Path, keys: list[str], number: int) -> ImageExample:
    key = keys[number]
    picture = root / "JPEGImages" / f"{key}.jpg"
    return ImageExample(key, PictureFile(key, picture), open_mask=partial(_voc_mask, root, picture, key))


def _voc_mask(root: Path, picture: Path, key: str) -> Mask:
    return translate(key, open_values(key, root / "SegmentationClass" / f"{key}.png", picture), VOC_MEANINGS)


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
    return Dataset(
        "pets",
        str(root),
        range(len(keys)),
        keys.__getitem__,
        partial(_pet_example, images, trimaps, named),
        {label: name for _, label, name in named},
        {0: "background", 1: "pet"},
    )


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
    mask = partial(_pet_mask, key, trimaps / f"{key}.png", picture)
    return ImageExample(key, PictureFile(key, picture), label, open_mask=mask)


def _pet_mask(key: str, trimap: Path, picture: Path) -> Mask:
    return translate(key, open_values(key, trimap, picture), TRIMAP)
