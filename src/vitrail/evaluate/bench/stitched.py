"""Pictures with a guide of another class beside them, as Cui et al. measure (arXiv:2605.11392, Sec. 4.6)."""

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate.bench.opened import Opened
from vitrail.evaluate.bench.pictures import Pictures
from vitrail.tools.guides import SHIPPED, open_shipped
from vitrail.tools.looking import look
from vitrail.tools.stitch import plan_canvas, stitch

if TYPE_CHECKING:
    from PIL.Image import Image


def guide_identity(guide: str) -> str:
    """What tells two guides apart: the name of one in the package, the name and content of a file."""
    if guide in SHIPPED:
        return guide
    try:
        digest = hashlib.sha256(Path(guide).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            f"there is no guide {guide}: give one of {', '.join(SHIPPED)} or the path of a picture ({error.strerror})."
        ) from error
    return f"{Path(guide).name} {digest[:12]}"


def beside_guide(batch: Pictures, guide: str) -> Pictures:
    """The pictures in the left half and the guide in the right, both squashed; no mask or box fits them any more."""
    if not batch.keys:
        return replace(batch, view="stitched")
    grid = look(batch.opened.loaded.model, batch.inputs[:1]).grid
    assert grid is not None
    size = (batch.images.shape[2], batch.images.shape[3])
    canvas = plan_canvas("beside", "left", "resize", (size, grid))
    other, _ = _read(batch.opened, guide)
    return replace(batch, images=stitch(batch.images, [other.to(batch.images)], canvas), view="stitched", emptied={})


def shown_beside(batch: Pictures, guide: str) -> dict[str, str]:
    """By key, why a picture cannot be measured beside this guide: it is of the guide's own class."""
    _, own = _read(batch.opened, guide)
    name = batch.opened.loaded.class_name(own)
    pairs = zip(batch.keys, batch.labels, strict=True)
    return {key: f"{key}: it is of the guide's class, {name}." for key, label in pairs if label == own}


def _read(opened: Opened, guide: str) -> tuple[Tensor, int]:
    """The guide in 0..1 as the model sees it squashed, and the class the model sees in it."""
    return _reading(opened, guide, guide_identity(guide))


@lru_cache(maxsize=1)  # it holds the model: no more than the one at work
def _reading(opened: Opened, guide: str, identity: str) -> tuple[Tensor, int]:
    """The same, kept for the next batch as long as the guide's content is the same."""
    seen = opened.loaded.image(_open(guide), squash=True)
    pixels = torch.from_numpy(np.array(seen.picture)).permute(2, 0, 1)[None].to(opened.device) / 255
    weight = next(opened.loaded.model.parameters())
    with torch.no_grad():
        return pixels.to(weight.dtype), int(opened.logits(pixels.to(weight.dtype)).argmax())


def _open(guide: str) -> "Image":
    if guide in SHIPPED:
        return open_shipped(guide)
    from vitrail.models.loading.images import open_image

    return open_image(Path(guide))
