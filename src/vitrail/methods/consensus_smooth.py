"""Scores of tokens spread over their neighbours: people give phrases as reasons, models answer to single words."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

Parts = Float[Tensor, "b p t"]


def bell(width: float, *, like: Tensor) -> Float[Tensor, " k"]:
    """A Gaussian of this standard deviation in tokens, cut at three of them; its entries sum to one."""
    reach = math.ceil(3 * width)
    places = torch.arange(-reach, reach + 1, device=like.device, dtype=like.dtype)
    weights = torch.exp(-0.5 * (places / width) ** 2)
    return weights / weights.sum()


def smoothed(parts: Parts, content: Bool[Tensor, "b t"], width: float) -> Parts:
    """Every score shared out among the tokens around it, within the content; a width of zero leaves them."""
    if width == 0:
        return parts
    kernel, hidden = bell(width, like=parts), ~content[:, None]
    rows = parts.masked_fill(hidden, 0.0).flatten(0, 1)[:, None]
    spread = F.conv1d(rows, kernel[None, None], padding=len(kernel) // 2)
    return spread[:, 0].unflatten(0, parts.shape[:2]).masked_fill(hidden, 0.0)
