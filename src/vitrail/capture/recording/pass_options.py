"""The options of one pass: where its gradient ends, its precision, what is changed on the way, what is kept."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitrail.capture.recording.layers import Early
from vitrail.capture.seams.intercept import Override
from vitrail.errors import OptionError, suggest
from vitrail.models.anatomy import Body

if TYPE_CHECKING:
    from vitrail.capture.recording.hooks import Capture
    from vitrail.capture.structure.measure import Structure

STATES = ("entering", "leaving", "attention_normed", "ffn_entering", "ffn_normed", "ffn_added", "softmax_input",
          "output_weight")  # fmt: skip
GRADIENTS = ("output_grad", "query_grad", "entering_grad", "leaving_grad", "attention_normed_grad")
KEEPS = frozenset({*STATES, *GRADIENTS})
"""What a recording can keep beside the operands of every attention call: states of a block, and gradients."""
BACKENDS = ("auto", "dense", "chunked", "fused")
"""What computes sums over attention maps; `vitrail.relevance.backends` has the code."""
MEMORY = ("auto", "full", "low")
"""What the blocks keep for the backward pass: all of them, none (each is run again), or as many as fit into a GPU."""
LEVELS = ("embedding_output", "inputs_embeds", "pixels")
"""Where the gradient can end: at the first block's input, at the word embeddings, at the picture."""


@dataclass(frozen=True)
class PassOptions:
    """The options of one pass; the default is the model as it is.

    Args:
        level: where the gradient ends, one of `LEVELS`; None for where the recorder needs it, if at all.
        dtype: run a copy of the weights in this precision instead of the model's own.
        wide_range: run a model in float16 as one in float32: what goes back would leave the range of float16.
        override: what becomes of every attention map on its way to the values.
        edit: what becomes of the residual stream before it enters the first block.
        at_root: what becomes of the tensor at which the gradient ends, whatever the level, just before it ends there.
        per_block: end the gradient where it enters each block, so that a block only sees gradients of its own output.
        last_block: end the gradient where it enters the last block; those below it run without a graph.
        within: a context entered just before the model runs, closest to it.
        graph: keep the graph of the blocks where their states are kept; False for methods that read states alone.
    """

    level: str | None = None
    dtype: torch.dtype | None = None
    wide_range: bool = False
    override: Override | None = None
    edit: Callable[[Tensor], Tensor] | None = None
    per_block: bool = False
    last_block: bool = False
    at_root: Callable[[Tensor], Tensor] | None = None
    within: "Callable[[nn.Module, Capture], AbstractContextManager[None]] | None" = None
    graph: bool = True


PLAIN = PassOptions()


@dataclass(frozen=True)
class ComputeSettings:
    """The backend and the number of rows for sums over attention maps, and what is kept for them."""

    backend: str = "auto"
    chunk_rows: int | None = None
    memory: str = "auto"

    def __post_init__(self) -> None:
        """Refuse unknown settings before the model runs."""
        if self.backend not in BACKENDS:
            raise OptionError(f"unknown backend {self.backend!r}. {suggest(self.backend, BACKENDS)}")
        if self.memory not in MEMORY:
            raise OptionError(f"unknown memory={self.memory!r}. {suggest(self.memory, MEMORY)}")
        rows = self.chunk_rows
        if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 1):
            raise OptionError(f"chunk_rows={rows!r}, but it is the whole number of rows of a block, at least one.")


@dataclass(frozen=True)
class Wanted:
    """The tensors that a group of methods reads of a pass.

    Args:
        last_only: whether gradients of the last layer suffice.
        early: what is read of a block as soon as it has run.
        passing: states that nothing reads after that.
    """

    states: frozenset[str] = frozenset()
    gradients: frozenset[str] = frozenset()
    last_only: bool = False
    early: tuple[Early, ...] = ()
    passing: frozenset[str] = frozenset()

    @staticmethod
    def of(needs: frozenset[str], *, last_only: bool = False) -> "Wanted":
        """Sort the names a method asks for."""
        for name in sorted(needs - KEEPS):
            raise OptionError(f"{name!r} cannot be kept. {suggest(name, KEEPS)}")
        return Wanted(needs & set(STATES), needs & set(GRADIENTS), last_only)


NOTHING, USUAL = Wanted(), ComputeSettings()


@dataclass(frozen=True)
class PassPlan:
    """All that is decided of a pass before the model runs.

    Args:
        body: the parts of the model that take part.
        structure: what was measured of them; None where no block is known.
        cut: whether the blocks have a graph, which begins where the gradient ends.
        lean: keep of the residual stream only what is wanted, for those who read nothing but layers.
        recomputes: whether blocks may be run again when their layers are read.
        rows: the only rows whose logits are read; None for all.
        unread: the first of the blocks that run although the answer does not depend on them; None if it does on all.
        safe: give rows of attention that may see nothing the weight zero instead of NaN.
    """

    body: Body
    wanted: Wanted = NOTHING
    settings: ComputeSettings = USUAL
    options: PassOptions = PLAIN
    structure: "Structure | None" = None
    cut: bool = True
    lean: bool = False
    recomputes: bool = False
    rows: Tensor | None = None
    unread: nn.Module | None = None
    safe: bool = False
