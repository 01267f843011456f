"""Whatever a user calls an image, as one array to draw on."""

from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import InputError

Picture = Float[np.ndarray, "h w 3"]


def as_picture(image: Any, index: int = 0) -> Picture:  # noqa: ANN401
    """The image with values from 0 to 1; whatever reaches beyond is stretched to that range.

    Args:
        image: a PIL image, an array [h, w], [h, w, 1], [h, w, 3] or [h, w, 4], or a tensor [3, h, w] or [b, 3, h, w].
        index: which image of a batch; a batch of one serves every sample.
    """
    if isinstance(image, Tensor):
        return _unit(_three_channels(_last_channels(image, index)))
    if hasattr(image, "convert"):  # PIL is not imported only to ask whether this is one of its images
        deep = image.mode.startswith("I") or image.mode == "F"  # Pillow would clip them at 255
        return _unit(_three_channels(np.asarray(image if deep else image.convert("RGB"))))
    if isinstance(image, np.ndarray):
        return _unit(_three_channels(image))
    raise InputError(
        f"an image is a PIL image, an array [h, w, 3] or a tensor [3, h, w] or [b, 3, h, w], not "
        f"{type(image).__name__}. Open a file with PIL.Image.open(path)."
    )


def _last_channels(image: Tensor, index: int) -> np.ndarray:
    """The chosen image of a batch, with channels last as pictures have them."""
    if image.ndim == 4:
        if 1 < image.shape[0] <= index:
            raise InputError(f"sample {index} is drawn, but the batch holds {image.shape[0]} images.")
        image = image[index if image.shape[0] > 1 else 0]
    if image.ndim != 3 or image.shape[0] not in (1, 3, 4):
        raise InputError(f"a tensor image is [3, h, w] or [b, 3, h, w], but this one is {list(image.shape)}.")
    plain = image.detach().cpu()
    return (plain.double() if plain.is_floating_point() else plain).permute(1, 2, 0).numpy()


def _three_channels(image: np.ndarray) -> np.ndarray:
    image = image[..., None] if image.ndim == 2 else image
    if image.ndim != 3 or image.shape[2] not in (1, 3, 4):
        raise InputError(f"an array image is [h, w, 3], but this one is {list(image.shape)}. Put the channels last.")
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image[..., :3]


def _unit(image: np.ndarray) -> Picture:
    if image.dtype == np.uint8:
        return image / 255
    image = image.astype(np.float64)
    low, high = image.min(), image.max()
    if low >= 0 and high <= 1:
        return image
    return (image - low) / (high - low) if high > low else np.zeros_like(image)
