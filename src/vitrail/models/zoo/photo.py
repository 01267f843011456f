"""Photographs for the photo model: any picture Pillow opens, as the tensor the model was trained on."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.models.loading.images import Image, ImageOps, check_size, reading, to_rgb, upright
from vitrail.models.taking import as_image

SIZE = 160


def preprocess(image: Any) -> Float[Tensor, "1 3 y x"]:  # noqa: ANN401
    """A picture of any size and mode as the model's input: what `crop` returns, its values from -1 to 1.

    Args:
        image: a picture, the name of its file, or an array `[h, w, 3]`.
    """
    return to_input(crop(image if isinstance(image, Image.Image) else as_image(image)))


def to_input(seen: Image.Image) -> Float[Tensor, "1 3 y x"]:
    """A picture of the model's size as its input, values from -1 to 1."""
    pixels = np.array(seen, dtype=np.float32) / 127.5 - 1
    return torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0).contiguous()


def crop(image: Image.Image) -> Image.Image:
    """Return the picture as the model sees it: upright, in colour on white, its middle square at 160 x 160 pixels."""
    check_size(image.size)
    with reading():
        picture = to_rgb(upright(image))
    return ImageOps.fit(picture, (SIZE, SIZE), Image.Resampling.BICUBIC)


def stretched(image: Image.Image) -> Image.Image:
    """The whole picture at 160 x 160 pixels; its proportions change."""
    return to_rgb(upright(image)).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
