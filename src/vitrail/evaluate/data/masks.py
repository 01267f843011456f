"""Masks as tensors: which pixel shows what."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate.data.examples import Mask


def translate(key: str, values: np.ndarray, meanings: Mapping[int, int]) -> Mask:
    """A mask whose numbers are replaced by what they mean; a number without a meaning is an error."""
    found = np.unique(values).tolist()
    unknown = [value for value in found if value not in meanings]
    if unknown:
        raise InputError(f"{key}: the mask holds {unknown}, but only {sorted(meanings)} mean something.")
    mask = np.zeros(values.shape, dtype=np.int64)
    for value in found:
        mask[values == value] = meanings[value]
    return torch.from_numpy(mask)


def resize_mask(mask: Mask, size: tuple[int, int]) -> Int[Tensor, "height width"]:
    """The mask at another height and width: each new pixel takes the value under its centre, as Pillow's nearest."""
    rows, columns = (
        ((torch.arange(new, dtype=torch.float64) + 0.5) * old / new).long()
        for new, old in zip(size, mask.shape, strict=True)
    )
    return mask[rows][:, columns]
