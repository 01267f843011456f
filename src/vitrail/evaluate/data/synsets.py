"""Pictures in one folder per WordNet class, on disk or in a zip archive: how ImageNet and Imagenette are stored."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from vitrail.errors import InputError
from vitrail.evaluate.data.archives import Member, zip_members
from vitrail.evaluate.data.dataset import Dataset
from vitrail.evaluate.data.examples import ImageExample
from vitrail.evaluate.data.files import PICTURES, pictures_in
from vitrail.evaluate.data.pictures import PictureFile

SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Pictures:
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
        read = partial(_example, self, numbers)
        return Dataset(name, str(self.where), range(len(self.keys)), self.keys.__getitem__, read, classes)


def _example(pictures: Pictures, numbers: Mapping[str, int], number: int) -> ImageExample:
    key = pictures.keys[number]
    return ImageExample(key, PictureFile(key, pictures.files[number]), numbers[key.split("/")[0]])


def find_pictures(path: Path) -> Pictures:
    """The pictures under a folder of synsets or in a zip archive of them, by name."""
    if path.suffix == ".zip":
        files = [member for member in zip_members(path) if _is_picture(PurePosixPath(member.name))]
        return Pictures(path, [_key(PurePosixPath(member.name)) for member in files], files)
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and SYNSET.fullmatch(folder.name))
    paths = [file for folder in folders for file in pictures_in(folder)]
    if not paths:
        raise InputError(f"{path} has no folders of pictures that are named like n01440764.")
    return Pictures(path, [_key(file) for file in paths], paths)


def _is_picture(path: PurePosixPath) -> bool:
    return path.suffix.lower() in PICTURES and SYNSET.fullmatch(path.parent.name) is not None


def _key(path: Path | PurePosixPath) -> str:
    return f"{path.parent.name}/{path.stem}"
