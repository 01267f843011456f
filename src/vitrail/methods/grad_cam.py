"""Grad-CAM on the last layer's attention: the baseline all four papers call Grad-CAM.

Selvaraju et al., ICCV 2017, arXiv:1610.02391, in the form of Chefer et al., CVPR 2021. Images: one weight per head
from the readout's row. Text: one weight per head from the whole map, and min-max over the whole map.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Layer
from vitrail.methods.options import without_readout
from vitrail.relevance import Walk, attention, gradient, pull, tiles


def normalise(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Min-max; zeros where the map is constant, as after a clamp that leaves nothing."""
    flat = high == low
    return torch.where(flat, torch.zeros_like(x), (x - low) / torch.where(flat, torch.ones_like(high), high - low))


def _keys_mean(x: Float[Tensor, "b h k"], chosen: Tensor) -> Float[Tensor, "b h"]:
    weights = chosen.to(x.dtype)
    return (x * weights[:, None]).sum(dim=2) / weights.sum(dim=1)[:, None]


def row_form(layer: Layer) -> Float[Tensor, "b t"]:
    """Images: head weights are the mean gradient of the readout's row over the patches."""
    weights = _keys_mean(pull(layer, layer.readout, gradient), layer.content)
    row = pull(layer, layer.readout, attention)
    found = (weights[:, :, None] * row).mean(dim=1).clamp(min=0)
    inside = found.masked_fill(~layer.content, torch.inf).amin(dim=1, keepdim=True)
    return normalise(found, inside, found.masked_fill(~layer.content, 0).amax(dim=1, keepdim=True))


def matrix_form(layer: Layer) -> Float[Tensor, "b t"]:
    """Text: head weights are the mean gradient of the whole map; min and max are the whole map's too."""
    weights = _keys_mean(pull(layer, layer.every_query, gradient), layer.valid)
    low = torch.full_like(layer.readout[:, :1], torch.inf)
    high = torch.zeros_like(low)
    row = torch.zeros_like(layer.valid, dtype=layer.readout.dtype)
    for cut, tile in tiles(layer):
        cam = (weights[:, :, None, None] * tile.probs).mean(dim=1).clamp(min=0)
        real = layer.queries_valid[:, cut, None] & layer.valid[:, None, :]
        low = torch.minimum(low, cam.masked_fill(~real, torch.inf).flatten(1).amin(dim=1, keepdim=True))
        high = torch.maximum(high, cam.masked_fill(~real, 0).flatten(1).amax(dim=1, keepdim=True))
        row = row + (layer.readout[:, None, cut] @ cam).squeeze(1)
    return normalise(row, low, high)


FORMS: dict[str, Callable[[Layer], Float[Tensor, "b t"]]] = {"image": row_form, "text": matrix_form}


def build(*, zero_readout: bool = False) -> Walk:
    """The last layer's attention, each head weighted by its mean gradient, positive part.

    Args:
        zero_readout: set the readout's own entry to zero.
    """

    def step(found: Float[Tensor, "b t"] | None, layer: Layer) -> Float[Tensor, "b t"] | None:
        return FORMS[layer.kind](layer) if layer.is_last else found

    return Walk(lambda last: None, step, without_readout(zero_readout), last_only=True)
