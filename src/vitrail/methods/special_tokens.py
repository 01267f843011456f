"""Masking [CLS] and [SEP] while explaining, as AttCAT's released notebooks do."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from vitrail.errors import InputError
from vitrail.models.inputs import Inputs
from vitrail.models.readouts import last_position


def special_tokens(inputs: Inputs) -> Bool[Tensor, "b t"]:
    """Which tokens are special: as the tokenizer says, else all that equal the first or the last real token."""
    if inputs.special is not None:
        return inputs.special.bool()
    if inputs.ids is None:
        raise InputError("which tokens are special is unknown: pass special_tokens_mask with the inputs.")
    valid = torch.ones_like(inputs.ids) if inputs.attention_mask is None else inputs.attention_mask
    rows = torch.arange(inputs.ids.shape[0], device=inputs.ids.device)
    first = inputs.ids[rows, valid.bool().to(torch.int64).argmax(dim=1)]
    last = inputs.ids[rows, last_position(valid.bool())]
    return (inputs.ids == first[:, None]) | (inputs.ids == last[:, None])


def mask_special_tokens(inputs: Inputs, options: Mapping[str, Any]) -> Inputs:
    """The inputs with special tokens masked out of the attention, if the option asks for it."""
    if not options["mask_special_tokens"]:
        return inputs
    if inputs.kind != "text":
        raise InputError("mask_special_tokens applies to text only; an image has no special tokens to mask.")
    special = special_tokens(inputs)
    base = torch.ones_like(special, dtype=torch.int64) if inputs.attention_mask is None else inputs.attention_mask
    if not bool((base.bool() & ~special).any(dim=1).all()):
        raise InputError("one of the texts has no token but special ones, so masking them leaves nothing to attend to.")
    masked = base * (~special).to(base.dtype)
    return replace(inputs, attention_mask=base, kwargs={**inputs.kwargs, "attention_mask": masked})
