"""An audit of labels: pictures whose label the model doubts, and where it sees the label and the rival class.

After Cui, Fan and Chen, arXiv:2605.11392, Sec. 4.4 and Fig. 9, who found mislabelled eagles in ImageNet by contrasting
the label with the prediction. The rival is the most likely class beside the label; the contrast is the difference of
the two logits, so that a picture's map does not depend on the others in its batch. The folder has one folder of
pictures for each class, named like the class. The page escapes every name: a file may be called `<script>`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail import targets
from vitrail.api import explain
from vitrail.capture.recording.forward import predict
from vitrail.errors import InputError, OptionError, TargetError, as_path, one_line
from vitrail.evaluate.data.labelled import IMAGENETTE, IMAGENETTE_NUMBERS, SYNSET
from vitrail.models.anatomy import Anatomy
from vitrail.models.folders import OF_CLASSES, PICTURES, files_in, folders_in, require_folder
from vitrail.models.loading import find_class
from vitrail.plots.page import document, render
from vitrail.plots.pictures import Picture, as_picture, signed_thumbnail, thumbnail
from vitrail.storage import write_bytes
from vitrail.tools.guide import DEFAULT_METHOD, RECOGNISED, Preprocess, contrast, find_preprocess
from vitrail.tools.pixels import labels_of


@dataclass(frozen=True)
class Finding:
    """A picture whose label the model doubts.

    Args:
        apart: how far the evidence for the label lies from that for the rival, see `distance`.
        picture: what the model saw, and the contrast over it, as bytes of a JPEG.
    """

    path: Path
    label: int
    rival: int
    label_probability: float
    rival_probability: float
    apart: float
    picture: bytes = field(repr=False, default=b"")
    contrast: bytes = field(repr=False, default=b"")

    @property
    def gap(self) -> float:
        """The value pictures are ranked by: how much likelier the model finds the rival, from -1 to 1."""
        return self.rival_probability - self.label_probability


@dataclass(frozen=True)
class Pair:
    """Two classes, and the pictures of the first whose rival is the second."""

    label: int
    rival: int
    findings: tuple[Finding, ...]

    @property
    def weight(self) -> float:
        """The rank of a pair: the sum over pictures of the rival's probability times the distance of the evidence."""
        return sum(finding.rival_probability * finding.apart for finding in self.findings)


@dataclass(frozen=True)
class Audit:
    """The findings, the most suspicious first.

    Args:
        agreed: in how many of the pictures the label is what the model predicts.
        broken: files that could not be read, and why.
        left_out: folders that are named after no class, and why.
    """

    folder: Path
    names: tuple[str, ...]
    method: str
    images: int
    agreed: int
    findings: tuple[Finding, ...]
    broken: Mapping[str, str]
    left_out: Mapping[str, str]

    @property
    def pairs(self) -> list[Pair]:
        """The pairs of classes, by weight."""
        ordered = sorted(self.findings, key=lambda found: (found.label, found.rival))
        grouped = groupby(ordered, key=lambda found: (found.label, found.rival))
        return sorted((Pair(*key, tuple(some)) for key, some in grouped), key=lambda pair: -pair.weight)

    def name(self, index: int) -> str:
        """The first name of a class."""
        return self.names[index].split(",")[0]

    def to_html(self, *, most: int = 60) -> str:
        """A page with everything in it, at most so many pictures."""
        shown, doubted = self.findings[: max(most, 0)], sum(found.gap > 0 for found in self.findings)
        values = {"audit": self, "shown": shown, "doubted": doubted, "pairs": self.pairs[:20], "sure": RECOGNISED}
        return document("Audit of labels", render("tools/audit.html", **values))

    def save(self, path: str | Path, *, most: int = 60) -> Path:
        """Write the page; it needs no other file."""
        return write_bytes(as_path(path, "an audit"), self.to_html(most=most).encode(errors="backslashreplace"))


def distance(scores: Float[Tensor, "y x"]) -> float:
    """The distance between the centres of positive and of negative scores, as a share of the diagonal.

    0 where one of the two is missing; 1 from corner to corner.
    """
    places = torch.cartesian_prod(*((torch.arange(n, dtype=scores.dtype) + 0.5) / n for n in scores.shape))
    weights = torch.stack([scores.clamp(min=0).flatten(), (-scores).clamp(min=0).flatten()])
    if not bool((weights.sum(dim=1) > 0).all()):
        return 0.0
    centres = weights @ places / weights.sum(dim=1, keepdim=True)
    return float((centres[0] - centres[1]).norm() / 2**0.5)


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
    root = require_folder(as_path(folder, "a folder"), OF_CLASSES)
    inside = folders_in(root)
    found: list[tuple[Path, int]] = []
    left_out: dict[str, str] = {}
    for place in inside:
        try:
            label = class_of(place.name, names)
        except TargetError as error:
            left_out[place.name] = str(error)
            continue
        paths = files_in(place, PICTURES)
        count = len(paths) if limit is None else min(limit, len(paths))
        found += [(paths[i * len(paths) // count], label) for i in range(count)]
    if not found:
        reason = f" {next(iter(left_out.values()))}" if left_out else ""
        raise InputError(
            f"{root} has no folder of pictures that is named like a class of the model; it has {len(inside)} folders."
            f"{reason} Put the pictures of a class into a folder of its name, such as {root}/{names[0]}/1.jpg."
        )
    return Labelled(tuple(found), left_out)


def class_of(name: str, names: Sequence[str]) -> int:
    """The index of the class that a folder is named after; WordNet ids are known of Imagenette and ImageNet."""
    known: Mapping[str, int] = {}
    if SYNSET.fullmatch(name) and tuple(names) == IMAGENETTE:
        known = IMAGENETTE_NUMBERS["imagenette"]
    elif SYNSET.fullmatch(name) and len(names) == IMAGENET:
        with suppress(ImportError):
            from timm.data.imagenet_info import ImageNetInfo

            known = {wnid: index for index, wnid in enumerate(ImageNetInfo("imagenet-1k").label_names())}
    return known[name] if name in known else find_class(name, names, len(names))


def names_of(model: nn.Module) -> tuple[str, ...]:
    """The names of the classes, where the model itself knows them."""
    found = labels_of(model)
    if found is None and getattr(model, "pretrained_cfg", None):
        from vitrail.models.loading.vision import class_names

        found = class_names(model)
    if found is not None:
        return found
    raise InputError(f"{type(model).__name__} has no names for its classes: pass class_names=.")


CLOSE = 0.25
"""A rival of this probability is looked at even where the label is predicted."""


def audit(  # noqa: PLR0913  (each is a choice of its own)
    model: nn.Module,
    folder: str | Path,
    *,
    class_names: Sequence[str] | None = None,
    preprocess: Preprocess | None = None,
    method: str = DEFAULT_METHOD,
    limit: int | None = None,
    batch: int = 16,
    watch: Callable[[int, int], None] = lambda done, total: None,
    anatomy: Anatomy | None = None,
    **options: Any,  # noqa: ANN401
) -> Audit:
    """The pictures of a labelled folder whose label the model doubts, ranked.

    Args:
        model: any module for pictures that returns logits. It is not changed.
        folder: holds one folder of pictures for each class, named like the class, its index or its WordNet id.
        class_names: by index; None asks the model.
        preprocess: from a PIL image to the model's input; None asks the model.
        method: a signed method of `vitrail.METHODS`.
        limit: at most so many pictures of a class.
        batch: pictures explained together.
        watch: is called with the numbers of pictures done and in all.
        anatomy: where the model's parts are, if it is of no known family.
        **options: what `explain` takes: `preset`, and the method's own options.
    """
    if batch < 1 or (limit is not None and limit < 1):
        raise OptionError(f"batch={batch}, limit={limit}: both have to be at least 1.")
    names = tuple(class_names if class_names is not None else names_of(model))
    shown = preprocess or find_preprocess(model)
    labelled = read_folders(folder, names, limit=limit)
    explaining = {"method": method, "anatomy": anatomy, **options}
    findings: list[Finding] = []
    broken: dict[str, str] = {}
    agreed = 0
    for start in range(0, len(labelled.pictures), batch):
        some = list(_open(labelled.pictures[start : start + batch], shown, broken))
        if some:
            found, right = _examine(model, some, explaining)
            findings, agreed = findings + found, agreed + right
        watch(min(start + batch, len(labelled.pictures)), len(labelled.pictures))
    ranked = tuple(sorted(findings, key=lambda found: (-found.gap, str(found.path))))
    images = len(labelled.pictures) - len(broken)
    return Audit(Path(folder), names, method, images, agreed, ranked, broken, labelled.left_out)


@dataclass(frozen=True, eq=False)
class _Opened:
    path: Path
    label: int
    inputs: Tensor
    picture: Picture


def _open(pictures: Sequence[tuple[Path, int]], preprocess: Preprocess, broken: dict[str, str]) -> Iterator[_Opened]:
    """The pictures that can be read; why the others cannot is noted."""
    from vitrail.models.loading.images import open_image

    for path, label in pictures:
        try:
            found = preprocess(open_image(path))
        except InputError as error:
            broken[f"{path.parent.name}/{path.name}"] = one_line(error)
            continue
        inputs = getattr(found, "inputs", found)
        inputs = inputs if isinstance(inputs, Tensor) else inputs["pixel_values"]
        seen = getattr(found, "picture", None)
        yield _Opened(path, label, inputs, as_picture(inputs if seen is None else seen))


def _examine(model: nn.Module, some: Sequence[_Opened], explaining: Mapping[str, Any]) -> tuple[list[Finding], int]:
    """The doubtful pictures of a batch, and in how many of all the label is predicted."""
    weight = next(model.parameters())
    inputs = torch.cat([one.inputs for one in some]).to(weight.device, weight.dtype)
    logits = predict(model, inputs, explaining["anatomy"]).logits
    labels, rivals = contrast(logits, [one.label for one in some], None)
    chosen = torch.tensor([labels, rivals], device=logits.device).T
    likely = logits.softmax(dim=1).gather(1, chosen).tolist()
    doubtful = [i for i, (own, other) in enumerate(likely) if other >= min(own, CLOSE)]
    agreed = sum(own >= other for own, other in likely)
    if not doubtful:
        return [], agreed
    target = targets.difference([labels[i] for i in doubtful], [rivals[i] for i in doubtful])
    maps = explain(model, inputs[doubtful], target=target, **explaining)
    if not maps.signed or maps.grid is None:
        raise OptionError(f"an audit needs signed scores, but {maps.method} has no sign: use {DEFAULT_METHOD}.")
    found: list[Finding] = []
    for scores, i in zip(maps.scores.reshape(-1, *maps.grid).double().cpu(), doubtful, strict=True):
        one, (own, other) = some[i], likely[i]
        pictures = thumbnail(one.picture), signed_thumbnail(scores, one.picture)
        found.append(Finding(one.path, labels[i], rivals[i], own, other, distance(scores), *pictures))
    return found, agreed
