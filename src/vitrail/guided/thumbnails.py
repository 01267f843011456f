"""Small pictures for a page: what the model saw, and a signed map below it."""

from io import BytesIO

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.plots.canvas import require_matplotlib
from vitrail.plots.colours import SIGNED_MAP, symmetric
from vitrail.plots.panels import SIGNED_ALPHA
from vitrail.plots.picture import Picture

SIDE, QUALITY = 160, 82


def thumbnail(picture: Picture) -> bytes:
    """The picture as a JPEG whose longer side is short."""
    from PIL import Image

    image = Image.fromarray((picture.clip(0, 1) * 255).round().astype(np.uint8))
    image.thumbnail((SIDE, SIDE))
    sink = BytesIO()
    image.save(sink, "JPEG", quality=QUALITY)
    return sink.getvalue()


def signed_thumbnail(scores: Float[Tensor, "y x"], picture: Picture) -> bytes:
    """The map below the picture as a JPEG: red above zero, blue below."""
    require_matplotlib()
    from matplotlib import colormaps

    size = (picture.shape[0], picture.shape[1])
    values = F.interpolate(scores[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]
    colours = colormaps[SIGNED_MAP](symmetric(values).numpy() / 2 + 0.5)[..., :3]
    return thumbnail(SIGNED_ALPHA * picture + (1 - SIGNED_ALPHA) * colours)
