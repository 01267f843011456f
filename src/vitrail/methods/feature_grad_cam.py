"""Grad-CAM on the features of the last block, as convolutional networks have it.

Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", ICCV 2017,
arXiv:1610.02391; on Vision Transformers as the package pytorch-grad-cam does it. The features are what the last block's
attention reads, not what the block gives: behind it, only the readout's token has a gradient.
Paper -> code: A^k -> features, alpha_k -> channel_weights, L -> scores.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.capture.recording import Layer
from vitrail.relevance import Walk
from vitrail.relevance.walk import plain

Features = Float[Tensor, "b t d"]
NORMED = ("attention_normed", "attention_normed_grad")
ENTERING = ("entering", "entering_grad")


def channel_weights(gradient: Features, content: Bool[Tensor, "b t"]) -> Float[Tensor, "b d"]:
    """Eq. 1: the gradient of each channel, averaged over the real tokens behind the prefix."""
    weights = content.to(gradient.dtype)
    return (gradient * weights[:, :, None]).sum(dim=1) / weights.sum(dim=1, keepdim=True)


def weigh_channels(features: Features, weights: Float[Tensor, "b d"]) -> Float[Tensor, "b t"]:
    """Eq. 2: the positive part of the weighted sum of channels."""
    return (features * weights[:, None]).sum(dim=2).clamp(min=0)


def last_block(layer: Layer) -> Float[Tensor, "b t"]:
    """The map of one block: of what its norm gives, or of what enters it where no norm stands before attention."""
    features, gradient = map(layer.state, ENTERING if layer.stream.attention_normed is None else NORMED)
    return weigh_channels(features, channel_weights(gradient, layer.content))


def build() -> Walk:
    """The last block's features, each channel weighted by its mean gradient, positive part."""

    def step(found: Float[Tensor, "b t"] | None, layer: Layer) -> Float[Tensor, "b t"] | None:
        # A pooling attention stands behind the last block.
        return last_block(layer) if layer.index == layer.depth - 1 - layer.pooled else found

    return Walk(lambda last: None, step, plain, needs=frozenset({*NORMED, *ENTERING}), last_only=True)
