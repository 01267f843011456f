"""ImageNet validation: photographs of 1,000 classes. Russakovsky et al., IJCV 2015, arXiv:1409.0575."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.errors import InputError
from vitrail.evaluate.data.dataset import Dataset, require_unique
from vitrail.evaluate.data.examples import Box, ImageExample
from vitrail.evaluate.data.files import read_json, require_file, require_folder
from vitrail.evaluate.data.pictures import PictureFile
from vitrail.evaluate.data.rows import open_rows, read_all
from vitrail.evaluate.data.synsets import find_pictures

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
    keys = [Path(row["file"]).stem for row in chosen]
    require_unique(keys, table)
    labels = [_number(row, table) for row in chosen]
    classes = {i: row["name"] for i, row in zip(labels, chosen, strict=True) if "name" in row}
    read = partial(_example, table, images, chosen, labels)
    return Dataset("imagenet", str(table), range(len(keys)), keys.__getitem__, read, classes)


def _number(row: Mapping[str, Any], table: Path) -> int:
    if not row["class_idx"].isdigit() or int(row["class_idx"]) >= COUNT:
        raise InputError(f"{table} gives {row['file']} the class {row['class_idx']!r}; needs 0 to {COUNT - 1}.")
    return int(row["class_idx"])


def _example(table: Path, images: Path, rows: list[Mapping[str, Any]], labels: list[int], number: int) -> ImageExample:
    file, label = rows[number]["file"], labels[number]
    key = Path(file).stem
    try:
        boxes = tuple(_box(text, label) for text in rows[number].get(BOXES, "").split(";") if text.strip())
    except ValueError as error:
        raise InputError(f"{key}: {table} has boxes that are not four numbers x0 y0 x1 y1 each.") from error
    return ImageExample(key, PictureFile(key, images / file), label, boxes)


def _box(text: str, label: int) -> Box:
    x0, y0, x1, y1 = map(float, text.split())
    return Box(x0, y0, x1, y1, label)
