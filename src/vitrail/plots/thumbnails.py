"""Small pictures for pages: what the model saw, and maps over or below it."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.plots.canvas import require_matplotlib
from vitrail.plots.colours import SIGNED_MAP, UNSIGNED_MAP, symmetric
from vitrail.plots.panels import SIGNED_ALPHA, UNSIGNED_ALPHA
from vitrail.plots.picture import Picture

SIDE, QUALITY = 160, 82


def thumbnail(picture: Picture, *, side: int = SIDE, quality: int = QUALITY, form: str = "JPEG") -> bytes:
    """The picture as a file whose longer side is short.

    Args:
        form: a format of Pillow's.
    """
    from PIL import Image

    image = Image.fromarray((picture.clip(0, 1) * 255).round().astype(np.uint8))
    image.thumbnail((side, side))
    sink = BytesIO()
    image.save(sink, form, quality=quality)
    return sink.getvalue()


def smallest(picture: Picture, steps: Sequence[tuple[int, int]], *, most: int, form: str = "JPEG") -> bytes:
    """The picture at the first of these sides and qualities that needs no more bytes, else at the last."""
    data = b""
    for side, quality in steps:
        data = thumbnail(picture, side=side, quality=quality, form=form)
        if len(data) <= most:
            return data
    return data


def with_map(values: Float[Tensor, "h w"], picture: Picture, *, signed: bool) -> Picture:
    """The picture with a map of its size: signed ones below it, others above, as `overlay` draws them.

    Args:
        values: within [-1, 1] where signed, within [0, 1] where not.
    """
    require_matplotlib()
    from matplotlib import colormaps

    shown = colormaps[SIGNED_MAP](values.numpy() / 2 + 0.5) if signed else colormaps[UNSIGNED_MAP](values.numpy())
    share = SIGNED_ALPHA if signed else 1 - UNSIGNED_ALPHA
    return share * picture + (1 - share) * shown[..., :3]


def signed_thumbnail(scores: Float[Tensor, "y x"], picture: Picture) -> bytes:
    """The map below the picture as a JPEG: red above zero, blue below."""
    size = (picture.shape[0], picture.shape[1])
    values = F.interpolate(scores[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]
    return thumbnail(with_map(symmetric(values), picture, signed=True))
