"""The relevance of attention maps, told while it flows back."""

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.capture.outputs import Scalar
from vitrail.capture.passes import Pass


def tell_maps(run: Pass, part: Scalar, see: Callable[[int, Tensor], None], *, lowest: int = 0) -> None:
    """Propagate the target's relevance down to a layer, and show every attention map's on the way, last to first.

    Args:
        run: a pass that was made inside `propagating`.
        see: takes the index of a layer and the relevance of its map `[b, h, q, k]`.
    """
    trace = run.trace
    entering = trace.layers[lowest].states.get("entering")
    ends = trace.roots if lowest == 0 or entering is None else [entering]

    def heed(block: int | None, relevance: Tensor) -> None:
        if block is None and trace.body.pool is None:
            return  # a softmax over classes, not over keys
        index = run.depth - 1 if block is None else block  # outside of the blocks, only a pooling query attends
        batch = run.inputs.batch
        see(index, relevance if relevance.ndim == 4 else relevance.view(batch, -1, *relevance.shape[1:]))

    trace.heed = heed
    torch.autograd.grad(part.scalar.sum(), ends, retain_graph=True, allow_unused=True)
