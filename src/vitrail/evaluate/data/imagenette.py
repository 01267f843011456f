"""Imagenette: ten easily told classes of ImageNet. J. Howard, fast.ai, 2019."""

from pathlib import Path

from vitrail.errors import InputError, OptionError, suggest
from vitrail.evaluate.data.dataset import Dataset
from vitrail.evaluate.data.examples import ImageExample
from vitrail.evaluate.data.files import first_of
from vitrail.evaluate.data.synsets import find_pictures

# By WordNet id: the name and the number among ImageNet's 1,000 classes.
SYNSETS = {
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
CLASSES = tuple(name for name, _ in SYNSETS.values())
NUMBERS = {
    "imagenette": {wnid: i for i, wnid in enumerate(SYNSETS)},
    "imagenet": {wnid: number for wnid, (_, number) in SYNSETS.items()},
}


def read_imagenette(source: str | Path, *, split: str = "val", labels: str = "imagenette") -> Dataset[ImageExample]:
    """The photographs of a split, from a folder or a zip archive of synsets.

    Args:
        source: holds `<split>/` or `<split>.zip`, or is such an archive.
        labels: `imagenette` numbers the classes 0 to 9, `imagenet` as a model of all 1,000 classes does.
    """
    if labels not in NUMBERS:
        raise OptionError(f"Imagenette has no labels {labels!r}. {suggest(labels, NUMBERS)}")
    path = Path(source)
    if path.suffix != ".zip":
        path = first_of((path / split, path / f"{split}.zip"), "split of Imagenette", within=path)
    pictures, numbers = find_pictures(path), NUMBERS[labels]
    unknown = [wnid for wnid in pictures.wnids if wnid not in numbers]
    if unknown:
        raise InputError(f"{path} has {', '.join(unknown[:3])}, which is no class of Imagenette.")
    return pictures.labelled("imagenette", numbers, {numbers[w]: name for w, (name, _) in SYNSETS.items()})
