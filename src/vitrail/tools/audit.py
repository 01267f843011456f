"""An audit of labels: pictures whose label the model doubts, and where it sees label and rival.

After Cui, Fan and Chen, arXiv:2605.11392, Sec. 4.4 and Fig. 9, who found mislabelled eagles in ImageNet by contrasting
the label with the prediction. The rival is the most likely class beside the label; the contrast is the difference of
the two logits, so that a picture's map does not depend on the others in its batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import targets
from vitrail.api import explain
from vitrail.errors import InputError, OptionError
from vitrail.models.anatomy import Anatomy
from vitrail.plots.picture import Picture, as_picture
from vitrail.plots.thumbnails import signed_thumbnail, thumbnail
from vitrail.tools.detail import DEFAULT_METHOD, contrast
from vitrail.tools.findings import Audit, Finding, distance
from vitrail.tools.folders import names_of, read_folders
from vitrail.tools.guides import Preprocess, find_preprocess
from vitrail.tools.looking import look

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
        watch: is told how many of how many pictures are done.
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
            broken[f"{path.parent.name}/{path.name}"] = " ".join(str(error).split())
            continue
        inputs = getattr(found, "inputs", found)
        inputs = inputs if isinstance(inputs, Tensor) else inputs["pixel_values"]
        seen = getattr(found, "picture", None)
        yield _Opened(path, label, inputs, as_picture(inputs if seen is None else seen))


def _examine(model: nn.Module, some: Sequence[_Opened], explaining: Mapping[str, Any]) -> tuple[list[Finding], int]:
    """The doubtful pictures of a batch, and in how many of all the label is predicted."""
    weight = next(model.parameters())
    inputs = torch.cat([one.inputs for one in some]).to(weight.device, weight.dtype)
    logits = look(model, inputs, explaining["anatomy"]).logits
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
        raise OptionError(f"an audit contrasts two classes, but {maps.method} tells no sign: use {DEFAULT_METHOD}.")
    found: list[Finding] = []
    for scores, i in zip(maps.scores.reshape(-1, *maps.grid).double().cpu(), doubtful, strict=True):
        one, (own, other) = some[i], likely[i]
        pictures = thumbnail(one.picture), signed_thumbnail(scores, one.picture)
        found.append(Finding(one.path, labels[i], rivals[i], own, other, distance(scores), *pictures))
    return found, agreed
