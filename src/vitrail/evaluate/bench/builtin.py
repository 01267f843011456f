"""Inputs that come with the package, and those a user has lying about: folders of pictures, files of sentences."""

from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import InputError, OptionError, suggest
from vitrail.evaluate import data
from vitrail.evaluate.data.examples import Dataset, Entry, ImageExample, TextExample
from vitrail.evaluate.data.files import pictures_in, read_lines, require_file, require_folder
from vitrail.evaluate.data.pictures import PictureFile

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURES = ("golf_ball.jpg", "temple.jpg")
CUTS = ((0.0, 0.0, 1.0), (0.0, 0.0, 0.85), (0.15, 0.0, 0.85), (0.0, 0.15, 0.85), (0.15, 0.15, 0.85), (0.1, 0.1, 0.8))
"""Left, top and side of each cut, as shares of the picture."""
SENTENCES = (
    "nothing here is original, yet i loved every minute",
    "the plot is not bad, but the endless dialogue is unbearably dull",
    "despite a clumsy start, this turns out to be a small miracle",
    "a warm and funny film with two wonderful leads",
    "two hours of noise without a single idea",
    "the camera finds beauty in the plainest of rooms",
    "so predictable that you could leave after ten minutes",
    "quiet, patient and in the end deeply moving",
    "the jokes fall flat and the songs are worse",
    "it is hard to imagine a better cast for this story",
    "a lazy sequel that insults its audience",
    "sharp writing makes even the smallest scene a pleasure",
    "neither scary nor funny, just loud and tedious",
    "an honest portrait of friendship, told with great charm",
    "the acting is wooden and the ending makes no sense",
    "you will leave the cinema smiling",
)


def read_pictures(source: str | Path) -> Dataset[ImageExample]:
    """The pictures right inside a folder, without labels."""
    folder = require_folder(Path(source), "folder of pictures")
    paths = pictures_in(folder)
    names = [path.name for path in paths]
    return Dataset("pictures", str(folder), range(len(paths)), names.__getitem__, partial(_from_file, paths))


def _from_file(paths: list[Path], number: int) -> ImageExample:
    return ImageExample(paths[number].name, PictureFile(paths[number].name, paths[number]))


def read_sentences(source: str | Path) -> Dataset[TextExample]:
    """The lines of a text file, without labels."""
    path = require_file(Path(source), "file of sentences")
    return _texts("sentences", str(path), read_lines(path))


def read_demo_pictures(source: str | Path = "") -> Dataset[ImageExample]:
    """Cuts of the two pictures of the demo, each also mirrored."""
    made = [(name, cut, mirrored) for name in PICTURES for mirrored in (False, True) for cut in CUTS]
    keys = [f"{Path(n).stem}-{CUTS.index(cut)}{'-mirrored' if mirrored else ''}" for n, cut, mirrored in made]
    return Dataset("demo_pictures", "vitrail.demo", range(len(made)), keys.__getitem__, partial(_cut, keys, made))


def _cut(keys: list[str], made: list[Any], number: int) -> ImageExample:
    return ImageExample(keys[number], partial(_open_cut, *made[number]))


def _open_cut(name: str, cut: tuple[float, float, float], mirrored: bool) -> "Image":  # noqa: FBT001
    from PIL import Image, ImageOps

    with files("vitrail.apps.demo").joinpath("pictures", name).open("rb") as file, Image.open(file) as picture:
        whole = picture.convert("RGB")
    left, top, side = (round(share * min(whole.size)) for share in cut)
    piece = whole.crop((left, top, left + side, top + side))
    return ImageOps.mirror(piece) if mirrored else piece


def read_demo_sentences(source: str | Path = "") -> Dataset[TextExample]:
    """Sentences of praise and complaint about films."""
    return _texts("demo_sentences", "vitrail", list(SENTENCES))


def _texts(name: str, source: str, lines: list[str]) -> Dataset[TextExample]:
    def key(number: int) -> str:
        return f"line-{number + 1}"

    return Dataset(name, source, range(len(lines)), key, lambda number: TextExample(key(number), lines[number]))


OWN: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("pictures", read_pictures, "image", (), "a folder of pictures", "your own"),
        Entry("sentences", read_sentences, "text", (), "a text file, one text a line", "your own"),
        Entry("demo_pictures", read_demo_pictures, "image", (), "nothing: it is inside the package", "vitrail"),
        Entry("demo_sentences", read_demo_sentences, "text", (), "nothing: it is inside the package", "vitrail"),
    )
}
NO_PATH = ("demo_pictures", "demo_sentences")


def find_entry(name: str) -> Entry:
    """The table line of a data set, published or one's own."""
    table = {**data.DATASETS, **OWN}
    if name not in table:
        raise OptionError(f"there is no data set {name!r}. {suggest(name, table)}")
    return table[name]


def guess(path: str) -> str:
    """The name under which a user's own folder or file is read."""
    place = Path(path)
    if place.is_dir():
        return "pictures"
    if place.suffix == ".txt":
        return "sentences"
    raise InputError(
        f"{path} is neither a folder of pictures nor a .txt file with one text a line. Other data sets are written "
        "NAME=PATH, for example sst2=glue/SST-2."
    )
