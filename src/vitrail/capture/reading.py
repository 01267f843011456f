"""What can be read off one attention call and the inputs: its size, and which tokens are real."""

import torch
from torch import Tensor

from vitrail.capture.seams import AttentionCall
from vitrail.models.inputs import Inputs
from vitrail.relevance import fused

MASKED = -9000.0
"""A score this low for every query is a mask, however it is written: -1e4, -1e9, the lowest number, minus infinity."""


def call_shape(call: AttentionCall) -> tuple[int, int]:
    """How many queries and keys a call has."""
    if call.weights is not None:
        return call.weights.shape[-2], call.weights.shape[-1]
    assert call.query is not None
    assert call.key is not None
    return call.query.shape[-2], call.key.shape[-2]


def call_dtype(call: AttentionCall) -> torch.dtype:
    """The dtype a call was computed in."""
    tensor = call.weights if call.weights is not None else call.query
    assert tensor is not None
    return tensor.dtype


def entries(call: AttentionCall) -> int:
    """How many entries the attention map of a call has."""
    if call.weights is not None:
        return call.weights.numel()
    assert call.query is not None
    return call.query.shape[:-1].numel() * call_shape(call)[1]


def fused_refusal(call: AttentionCall, device: str) -> str | None:
    """Why the sums over a call's maps cannot be computed by a fused kernel, or None if they can."""
    if call.weights is not None or call.query is None or call.value is None:
        return "the model computes its attention maps itself"
    dtypes = {x.dtype for x in (call.query, call.key, call.value, call.output) if x is not None}
    if len(dtypes) > 1:  # as under autocast, which casts what the call is given after it is heard
        return "the operands of attention have different dtypes"
    widths = (call.query.shape[-1], call.value.shape[-1])
    return fused.refusal(device=device, dtype=call.query.dtype, widths=widths)


def real_tokens(inputs: Inputs, call: AttentionCall, device: torch.device) -> Tensor:
    """Which tokens are real: by the attention mask given, else all that any query of the first layer may see."""
    if inputs.attention_mask is not None:
        return inputs.attention_mask.bool()
    seen = torch.ones(inputs.batch, call_shape(call)[1], dtype=torch.bool, device=device)
    if call.weights is not None:
        weights = call.weights.detach()
        weights = weights if weights.ndim == 4 else weights.view(inputs.batch, -1, *weights.shape[1:])
        return seen & (weights != 0).any(dim=2).any(dim=1)
    if call.mask is None:
        return seen
    mask = call.mask.detach()[(None,) * (4 - call.mask.ndim)]
    visible = mask if mask.dtype is torch.bool else mask > MASKED
    return seen & visible.any(dim=2).any(dim=1)


def unequal(index: int, queries: int, keys: int) -> str:
    """What to say of attention whose keys are not the tokens that ask."""
    if keys > queries:
        return (
            f"attention layer {index} has {keys} keys for {queries} queries: {keys - queries} keys belong to no token "
            "of the input, such as the virtual tokens of prefix tuning, a cache or an added bias. A method that reads "
            "attention maps cannot place them. Use a method that follows gradients to the embeddings, such as attn_lrp "
            "or integrated_gradients."
        )
    return (
        f"attention layer {index} has {keys} keys for {queries} queries, so its keys are not the tokens that ask: "
        "attention that thins out its keys, or reads another sequence, is not walked. Use a method that follows "
        "gradients to the embeddings, such as attn_lrp or integrated_gradients."
    )
