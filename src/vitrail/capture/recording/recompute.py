"""Blocks that keep nothing for the backward pass: each is run again when its turn comes, differentiated and dropped.

The stream is kept where it enters every such block. The blocks that are run again are the first ones: the graph of a
pass begins after the last of them. Their gradients are those of one backward pass, because nothing else leads from one
block to what comes after it; `structure.measure` asks that. A block that gives another result the second time is
refused.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.seams import AttentionCall
from vitrail.errors import OptionError, SeamError
from vitrail.models.inputs import Inputs

LONG = 4096
"""Tokens of a batch from which on the memory of a GPU is looked at."""
ROOM = 0.9
"""The part of a GPU's free memory that is planned for."""
BESIDE = 3
"""What the backward pass and the walk take beside what the blocks keep, in blocks."""
SLACK = {torch.float64: 1e-9, torch.float32: 1e-4}
COARSE_SLACK = 0.02
"""How much a block may differ when it is run again, as a part of its largest value; the second for half precision."""


@dataclass
class Recomputed:
    """The blocks of a pass that keep no graph, and the arguments they were called with.

    Args:
        depth: how many blocks there are.
        border: the number of blocks that are run again; None until the first block shows how many the GPU asks for.
        leaf: where the graph begins.
        replay: the block that is being run again.
    """

    depth: int
    border: int | None = None
    arguments: dict[int, tuple[tuple, dict]] = field(default_factory=dict)
    leaf: Tensor | None = None
    replay: int | None = None
    taken: int = 0  # memory in use where the first block began

    @property
    def count(self) -> int:
        """The number of blocks that run again."""
        return self.border or 0

    def drops(self, index: int) -> bool:
        """Return True if nothing of this block is kept as it runs."""
        return self.replay is None and index < self.count

    def enter(self, index: int, args: tuple, kwargs: dict) -> None:
        """A block begins: keep what it is called with, and run it without a graph if it is run again."""
        if self.drops(index):
            self.arguments[index] = (args, kwargs)
            torch.set_grad_enabled(False)
        elif self.border is None and index == 0:
            self.arguments[index] = (args, kwargs)
            self.taken = torch.cuda.memory_allocated(next(x.device for x in (*args, *kwargs.values()) if _placed(x)))

    def leave(self, index: int, stream: Tensor, *, by_hand: bool) -> Tensor | None:
        """A block has run: the stream without a graph if it keeps none, with a new one after the last of these.

        Args:
            by_hand: whether the block computes its attention map itself, so that it cannot be dropped.
        """
        if self.border is None and index == 0:
            self.border = 0 if by_hand else blocks_to_drop(self.depth, self.taken, stream)
            if not self.border:
                self.arguments.clear()
        if not self.drops(index):
            return None
        torch.set_grad_enabled(True)
        if index < self.count - 1:
            return stream.detach()
        self.leaf = stream.detach().requires_grad_()
        return self.leaf

    def stream_after(self, index: int, stream_of: Callable[[tuple, dict], Tensor]) -> Tensor | None:
        """Return the output of this block in the first run; None if it is not kept any more."""
        if index == self.count - 1:
            return self.leaf
        return stream_of(*self.arguments[index + 1]) if index + 1 in self.arguments else None


def recomputed(depth: int, together: str | None, memory: str, inputs: Inputs) -> Recomputed | None:
    """Return the blocks of a pass that run again, by the memory that is asked for; None if all keep their graph.

    Args:
        together: why the blocks cannot be differentiated one by one, if they cannot.
    """
    if memory == "low" and together is not None:
        raise OptionError(
            f"memory='low' differentiates the blocks one by one, which is not possible here: {together}. Explain with "
            "memory='full'."
        )
    long = inputs.ids is not None and inputs.ids.is_cuda and inputs.ids.numel() >= LONG
    if memory == "auto":
        return Recomputed(depth) if together is None and long else None
    return Recomputed(depth, border=depth)


def without_own_cache(model: nn.Module, inputs: Inputs) -> Inputs:
    """The call without the cache of keys and values that language models fill by default."""
    known = "use_cache" in inspect.signature(model.forward).parameters and "use_cache" not in inputs.kwargs
    return replace(inputs, kwargs={**inputs.kwargs, "use_cache": False}) if known else inputs


def _placed(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_cuda


def blocks_to_drop(depth: int, taken: int, stream: Tensor) -> int:
    """Return the number of blocks that must run again, from the memory of the first one and the GPU's free memory."""
    device = stream.device
    own = stream.numel() * stream.element_size()
    each = torch.cuda.memory_allocated(device) - taken + own  # the gradient of its attention is kept too
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = ROOM * (torch.cuda.mem_get_info(device)[0] + cached)
    kept = int((free - BESIDE * each) // max(each, 1))
    if kept >= depth - 1:  # the first has its room already
        return 0
    # Those that are run again keep the stream.
    kept = int((free - BESIDE * each - depth * own) // max(each - own, 1))
    return depth - max(0, min(kept, depth - 1))


def light(call: AttentionCall) -> AttentionCall:
    """A call without its tensors: their shapes and the mask."""
    if call.weights is not None:
        raise OptionError(
            "memory='low' runs blocks again, but this model computes its attention maps itself and they would be kept. "
            "Load it with attn_implementation='sdpa', or leave memory out."
        )
    shape = lambda x: None if x is None else torch.empty_like(x, device="meta")  # noqa: E731
    return replace(
        call, query=shape(call.query), key=shape(call.key), value=None, output=None, logsumexp=None, softmax_input=None
    )


def without_caches(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a block without a cache, which was filled the first time."""
    return {name: None if callable(getattr(x, "get_seq_length", None)) else x for name, x in kwargs.items()}


def check_same(index: int, again: Tensor, before: Tensor | None) -> None:
    """Raise if a block gave something else when it was run again."""
    before = None if before is None else before.detach()
    if before is None or torch.equal(again, before):
        return
    size, slack = float(before.abs().amax()), SLACK.get(before.dtype, COARSE_SLACK)
    if again.shape != before.shape or not float((again - before).abs().amax()) <= slack * size:
        raise SeamError(
            f"block {index} gives something else when it is run again: it is random, keeps state, or changes what it "
            "is given in place. Explain with memory='full'."
        )
