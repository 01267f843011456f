"""IMDB: long film reviews, negative or positive. Maas et al., ACL 2011."""

from functools import partial
from pathlib import Path

from vitrail.evaluate.data.dataset import Dataset
from vitrail.evaluate.data.examples import TextExample
from vitrail.evaluate.data.files import read_text, require_folder
from vitrail.evaluate.data.labelled import Layout, labelled_texts
from vitrail.evaluate.data.rows import Source, open_rows

CLASSES = ("negative", "positive")
FOLDERS = {"neg": 0, "pos": 1}
LAYOUT = Layout(
    text=("review", "text"),
    label=("sentiment", "label"),
    codes={"negative": 0, "positive": 1, "neg": 0, "pos": 1, "0": 0, "1": 1},
    classes=CLASSES,
)


def read_imdb(source: Source, *, split: str = "test") -> Dataset[TextExample]:
    """The reviews of a split: of the published folders `<split>/neg` and `<split>/pos`, or of a table."""
    if isinstance(source, str | Path):
        for folder in (Path(source), Path(source) / "aclImdb"):
            if (folder / split).is_dir():
                return _from_folders(folder, split)
    return labelled_texts("imdb", open_rows(source, split=split), LAYOUT)


def _from_folders(root: Path, split: str) -> Dataset[TextExample]:
    folders = {name: require_folder(root / split / name, f"folder of {name} reviews") for name in FOLDERS}
    keys = [f"{split}/{name}/{file.stem}" for name, folder in folders.items() for file in sorted(folder.glob("*.txt"))]
    read = partial(_review, root, keys)
    return Dataset("imdb", str(root / split), range(len(keys)), keys.__getitem__, read, dict(enumerate(CLASSES)))


def _review(root: Path, keys: list[str], number: int) -> TextExample:
    key = keys[number]
    return TextExample(key, read_text(root / f"{key}.txt", key=key), label=FOLDERS[key.split("/")[1]])
