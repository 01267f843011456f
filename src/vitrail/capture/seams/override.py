"""Attention whose map is changed on its way to the values.

The fused call cannot take a map, so a bent call is computed in two steps, the map and its product with the values.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from vitrail.capture.seams.call import AttentionCall, allowed_keys


@dataclass(frozen=True)
class Override:
    """What becomes of the scores, the map and the values of the attention in each block, all `[b, h, t, ...]`.

    Args:
        weights: takes the block's index and its map after the softmax, gives the map that is used instead.
        values: the same for the values; None leaves them as they are.
        scores: the same for the scores before the softmax, scaled and masked.
        exact: take the output of the model's own kernel where a map turns out to be unchanged, bit for bit.
    """

    weights: Callable[[int, Tensor], Tensor] = lambda block, weights: weights
    values: Callable[[int, Tensor], Tensor] | None = None
    scores: Callable[[int, Tensor], Tensor] | None = None
    exact: bool = False


class _InPlace(torch.autograd.Function):
    """One tensor in the place of another, through which no gradient passes."""

    @staticmethod
    def forward(ctx: object, old: Tensor, new: Tensor) -> Tensor:
        return new.clone()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[None, None]:
        return None, None


def in_place_of(old: Tensor, new: Tensor) -> Tensor:
    """The new tensor where the graph had the old one: its gradient is known, but goes no further."""
    return cast(Tensor, _InPlace.apply(old, new.to(old.dtype).reshape_as(old)))


class _OnTop(torch.autograd.Function):
    """One tensor's values in the place of another, to which the gradient goes on."""

    @staticmethod
    def forward(ctx: object, old: Tensor, new: Tensor) -> Tensor:
        return new.clone()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def on_top_of(old: Tensor, new: Tensor) -> Tensor:
    """The new tensor where the graph had the old one: its gradient goes on to whatever made the old."""
    return cast(Tensor, _OnTop.apply(old, new.detach().to(old.dtype).reshape_as(old)))


BLIND = Override(
    weights=lambda block, weights: in_place_of(weights, weights), values=lambda block, values: values.detach()
)
"""Attention as it is, that passes no gradient on to the tokens it read."""


def bent_call(call: AttentionCall, override: Override, block: int, fused: Callable[[], Tensor]) -> AttentionCall:
    """The fused call again, with its map changed.

    Args:
        fused: the call as the model made it.
    """
    assert call.query is not None
    assert call.key is not None
    assert call.value is not None
    groups = call.query.shape[-3] // call.key.shape[-3]
    key, value = (x.repeat_interleave(groups, dim=-3) if groups > 1 else x for x in (call.key, call.value))
    change = None if override.scores is None else partial(override.scores, block)
    own = softmax(call, key, change)
    weights = override.weights(block, own)
    value = value if override.values is None else override.values(block, value)
    output = weights @ value
    if override.exact and override.values is None and change is None and torch.equal(weights, own):
        output = on_top_of(output, fused())
    return replace(call, key=key, value=value, weights=weights, output=output)


def softmax(call: AttentionCall, key: Tensor, change: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """The map of a fused call, in the call's own dtype; rows that may see nothing are zero.

    Args:
        change: what becomes of the scores before the softmax.
    """
    assert call.query is not None
    scores = (call.query * call.scale) @ key.transpose(-1, -2)
    shape = {"queries": scores.shape[-2], "keys": scores.shape[-1], "device": scores.device}
    allowed = allowed_keys(call.mask, causal=call.causal, **shape)
    if call.mask is not None and call.mask.is_floating_point():
        scores = scores + call.mask
    scores = scores if change is None else change(scores)
    if allowed is None:
        return scores.softmax(dim=-1)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)
