"""How one pass is run: where its gradient ends, in which precision, what is changed on the way, what is kept."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitrail.capture.seams.intercept import Override

if TYPE_CHECKING:
    from vitrail.capture.hooks import Capture

LEVELS = ("embedding_output", "inputs_embeds", "pixels")
"""Where the gradient can end: at the first block's input, at the word embeddings, at the picture."""


@dataclass(frozen=True)
class PassOptions:
    """The circumstances of one pass; the default is the model as it is.

    Args:
        level: where the gradient ends, one of `LEVELS`; None for where the recorder needs it, if at all.
        dtype: run a copy of the weights in this precision instead of the model's own.
        bend: what becomes of every attention map on its way to the values.
        edit: what becomes of the residual stream before it enters the first block.
        at_root: what becomes of the tensor at which the gradient ends, whatever the level, just before it ends there.
        apart: end the gradient where it enters each block, so that a block only sees what is asked of its own output.
        within: a context entered just before the model runs, closest to it.
    """

    level: str | None = None
    dtype: torch.dtype | None = None
    override: Override | None = None
    edit: Callable[[Tensor], Tensor] | None = None
    apart: bool = False
    at_root: Callable[[Tensor], Tensor] | None = None
    within: "Callable[[nn.Module, Capture], AbstractContextManager[None]] | None" = None


PLAIN = PassOptions()
