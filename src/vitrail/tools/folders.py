"""Labelled folders of pictures: one folder for each class, named as the model names it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.errors import InputError, TargetError
from vitrail.evaluate.data.files import pictures_in, require_folder
from vitrail.evaluate.data.imagenet import IMAGENETTE, IMAGENETTE_NUMBERS, SYNSET
from vitrail.models.loading.names import find_class

IMAGENET = 1000


@dataclass(frozen=True)
class Labelled:
    """Pictures with the class of their folder, and why folders were left out."""

    pictures: tuple[tuple[Path, int], ...]
    left_out: Mapping[str, str]


def read_folders(folder: str | Path, names: Sequence[str], *, limit: int | None = None) -> Labelled:
    """The pictures of every folder whose name is a class: a name of the model's, an index or a WordNet id.

    Args:
        names: of the classes, by index; each may list several, separated by commas.
        limit: at most so many pictures of a class, at even distances.
    """
    root = require_folder(Path(folder), "folder with a folder of pictures for each class")
    inside = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    found: list[tuple[Path, int]] = []
    left_out: dict[str, str] = {}
    for place in inside:
        try:
            label = class_of(place.name, names)
        except TargetError as error:
            left_out[place.name] = str(error)
            continue
        found += [(path, label) for path in _spread(pictures_in(place), limit)]
    if not found:
        reason = f" {next(iter(left_out.values()))}" if left_out else ""
        raise InputError(
            f"{root} has no folder of pictures that is named like a class of the model; it has {len(inside)} folders."
            f"{reason}"
        )
    return Labelled(tuple(found), left_out)


def _spread(paths: list[Path], limit: int | None) -> list[Path]:
    if limit is None or limit >= len(paths):
        return paths
    return [paths[i * len(paths) // limit] for i in range(limit)]


def class_of(name: str, names: Sequence[str]) -> int:
    """The index of the class that a folder is named after."""
    known = _synsets(names) if SYNSET.fullmatch(name) else {}
    return known[name] if name in known else find_class(name, names, len(names))


def _synsets(names: Sequence[str]) -> Mapping[str, int]:
    """WordNet ids of the classes, where they are those of Imagenette or ImageNet."""
    if tuple(names) == IMAGENETTE:
        return IMAGENETTE_NUMBERS["imagenette"]
    if len(names) != IMAGENET:
        return {}
    try:
        from timm.data.imagenet_info import ImageNetInfo
    except ImportError:
        return {}
    return {wnid: index for index, wnid in enumerate(ImageNetInfo("imagenet-1k").label_names())}


def names_of(model: nn.Module) -> tuple[str, ...]:
    """The names of the classes, where the model itself knows them."""
    config: Any = getattr(model, "config", None)
    labels = getattr(config, "id2label", None)
    if labels:
        return tuple(str(labels[i]) for i in range(len(labels)))
    if getattr(model, "pretrained_cfg", None):
        from vitrail.models.loading.vision import class_names

        found = class_names(model)
        if found is not None:
            return found
    raise InputError(f"{type(model).__name__} does not know what its classes are called: pass class_names=.")
