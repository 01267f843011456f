"""The inputs of a report: every picture of a folder, every text file of a folder, every line of a text file."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitrail.errors import InputError, OptionError
from vitrail.models.loading import Loaded, Sample


@dataclass(frozen=True)
class Item:
    """An input that is opened when its turn comes.

    Args:
        read: raises InputError where the input is broken.
    """

    name: str
    read: Callable[[], tuple[Sample, str]]


def items_of(source: Path, loaded: Loaded, *, squash: bool, limit: int | None) -> list[Item]:
    """The inputs, at most so many, at even distances."""
    if limit is not None and limit < 1:
        raise OptionError(f"limit={limit}: a report needs at least one input.")
    if loaded.task not in READERS:
        raise InputError(f"{loaded.name} answers questions, but a report takes pictures or sentences: use explain.")
    if not source.exists():
        raise InputError(f"there is no folder or file {source}. Check its name.")
    found = READERS[loaded.task](source, loaded, squash)
    if limit is None or limit >= len(found):
        return found
    return [found[i * len(found) // limit] for i in range(limit)]


def _pictures(source: Path, loaded: Loaded, squash: bool) -> list[Item]:  # noqa: FBT001
    from vitrail.models.loading.images import images_in

    paths = images_in(source) if source.is_dir() else [source]
    return [Item(path.name, partial(_picture, path, loaded, squash=squash)) for path in paths]


def _picture(path: Path, loaded: Loaded, *, squash: bool) -> tuple[Sample, str]:
    from vitrail.models.loading.images import open_image

    return loaded.image(open_image(path), squash=squash), ""


def _texts(source: Path, loaded: Loaded, squash: bool) -> list[Item]:  # noqa: FBT001
    if source.is_dir():
        paths = sorted(p for p in source.glob("*.txt") if p.is_file() and not p.name.startswith("."))
        if not paths:
            raise InputError(f"there are no .txt files in {source}, and {loaded.name} reads text.")
        return [Item(path.name, partial(_file, path, loaded)) for path in paths]
    lines = list(enumerate(_content(source).splitlines(), 1))
    found = [Item(f"line {n}", partial(_line, line.strip(), loaded)) for n, line in lines if line.strip()]
    if not found:
        raise InputError(f"{source} is empty: write one sentence on each line.")
    return found


def _file(path: Path, loaded: Loaded) -> tuple[Sample, str]:
    return _line(_content(path).strip(), loaded)


def _line(text: str, loaded: Loaded) -> tuple[Sample, str]:
    return loaded.text(text), text


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"{path} cannot be read as text: {reason}.") from error


READERS: dict[str, Callable[[Path, Loaded, bool], list[Item]]] = {
    "image": _pictures,
    "sequence": _texts,
    "causal": _texts,
}
"""A model's task -> how its inputs are listed."""
