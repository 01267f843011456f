"""Grad-CAM on the last layer's attention, on the features of the last block, and on the attention of all layers.

Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", ICCV 2017,
arXiv:1610.02391. On attention (`build`) in the form of Chefer et al., CVPR 2021, the baseline that later papers call
Grad-CAM. Images: one weight per head from the readout's row. Text: one weight per head from the whole map, and min-max
over the whole map. On features (`build_features`) as convolutional networks have it, and the package pytorch-grad-cam
on Vision Transformers. The features are what the last block's attention reads, not what the block gives: after it, only
the readout's token has a gradient. Paper -> code: A^k -> features, alpha_k -> channel_weights, L -> scores.

On the attention of all layers (`build_att_grads`) it is Grad-SAM: Barkan et al., "Grad-SAM: Explaining Transformers via
Gradient Self-Attention Maps", CIKM 2021, arXiv:2204.11073.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.capture.recording.layer import Layer
from vitrail.methods.options import ROWS, check_choice, last_layer, min_max, without_readout
from vitrail.relevance import LayerReader, attention, gradient, positive, pull, tiles


def _keys_mean(x: Float[Tensor, "b h k"], chosen: Tensor) -> Float[Tensor, "b h"]:
    weights = chosen.to(x.dtype)
    return (x * weights[:, None]).sum(dim=2) / weights.sum(dim=1).clamp(min=1)[:, None]


def row_form(layer: Layer) -> Float[Tensor, "b t"]:
    """Images: head weights are the mean gradient of the readout's row over the patches."""
    weights = _keys_mean(pull(layer, layer.readout, gradient), layer.content)
    row = pull(layer, layer.readout, attention)
    found = (weights[:, :, None] * row).mean(dim=1).clamp(min=0)
    inside = found.masked_fill(~layer.content, torch.inf).amin(dim=1, keepdim=True)
    return min_max(found, inside, found.masked_fill(~layer.content, 0).amax(dim=1, keepdim=True))


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
    return min_max(row, low, high)


FORMS: dict[str, Callable[[Layer], Float[Tensor, "b t"]]] = {"image": row_form, "text": matrix_form}


def build(*, zero_readout: bool = False) -> LayerReader:
    """The last layer's attention, each head weighted by its mean gradient, positive part.

    Args:
        zero_readout: set the readout's own entry to zero.
    """
    return last_layer(lambda layer: FORMS[layer.kind](layer), without_readout(zero_readout))


Features = Float[Tensor, "b t d"]
NORMED = ("attention_normed", "attention_normed_grad")
ENTERING = ("entering", "entering_grad")


def channel_weights(gradient: Features, content: Bool[Tensor, "b t"]) -> Float[Tensor, "b d"]:
    """Eq. 1: the gradient of each channel, averaged over the real tokens after the prefix."""
    weights = content.to(gradient.dtype)
    return (gradient * weights[:, :, None]).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(min=1)


def weigh_channels(features: Features, weights: Float[Tensor, "b d"]) -> Float[Tensor, "b t"]:
    """Eq. 2: the positive part of the weighted sum of channels."""
    return (features * weights[:, None]).sum(dim=2).clamp(min=0)


def last_block(layer: Layer) -> Float[Tensor, "b t"]:
    """The map of one block: of what its norm gives, or of what enters it where no norm stands before attention."""
    features, gradient = map(layer.state, ENTERING if layer.stream.attention_normed is None else NORMED)
    return weigh_channels(features, channel_weights(gradient, layer.content))


def build_features() -> LayerReader:
    """The last block's features, each channel weighted by its mean gradient, positive part."""

    def step(found: Float[Tensor, "b t"] | None, layer: Layer) -> Float[Tensor, "b t"] | None:
        # A pooling attention comes after the last block.
        return last_block(layer) if layer.index == layer.depth - 1 - layer.pooled else found

    return LayerReader(step, needs=frozenset({*NORMED, *ENTERING}), last_only=True)


def build_att_grads(*, rows: str = "mean") -> LayerReader:
    """Attention times the positive part of its gradient, mean over layers, heads and queries.

    Args:
        rows: the `mean` over all queries, or the `readout`'s row.
    """
    choose = check_choice("rows", rows, ROWS)

    def step(found: Float[Tensor, "b t"] | float, layer: Layer) -> Float[Tensor, "b t"]:
        return found + pull(layer, choose(layer), positive).mean(dim=1) / layer.depth

    return LayerReader(step, lambda last: 0.0)
