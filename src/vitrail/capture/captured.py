"""What was heard in one forward pass: attention calls and stream states, still attached to the graph."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.adding import Added, Adding, measured
from vitrail.capture.layering import passing_layer
from vitrail.capture.outputs import named_logits
from vitrail.capture.pass_options import PLAIN, PassOptions
from vitrail.capture.recording import Early, own_dtypes
from vitrail.capture.refusals import no_attention, no_graph, uneven_attention, why_no_gradient
from vitrail.capture.saving import saving_hooks
from vitrail.capture.seams import AttentionCall
from vitrail.models.anatomy import Body

STATES = ("entering", "leaving", "attention_normed", "ffn_entering", "ffn_normed", "ffn_added", "softmax_input",
          "output_weight")  # fmt: skip


@dataclass
class BlockCapture:
    """What was heard of one block."""

    calls: list[AttentionCall] = field(default_factory=list)
    states: dict[str, Tensor] = field(default_factory=dict)
    returned: object = None  # by the block, whatever else it gives beside the stream
    noted: dict[Early, Any] = field(default_factory=dict)  # what was read of it when the forward pass left it
    adding: Adding | None = None  # what its sub-layers add to the stream, where that is asked for


class Capture:
    """Everything heard in one forward pass, filed by block; the pooling attention comes last."""

    def __init__(
        self,
        body: Body,
        *,
        keep: frozenset[str],
        cut: bool,
        pass_options: PassOptions = PLAIN,
        lean: bool = False,
        early: tuple[Early, ...] = (),
        passing: frozenset[str] = frozenset(),
    ) -> None:
        self.body, self.keep, self.cut, self.pass_options, self.lean = body, keep, cut, pass_options, lean
        self.early, self.passing = early, passing
        self.blocks = [BlockCapture() for _ in body.blocks]
        self.pool = BlockCapture()
        self.loose = BlockCapture()
        self.roots: list[Tensor] = []
        self.ids: Tensor | None = None  # the token ids the model is called with
        self.here: BlockCapture = self.loose
        self.running: list[str] = []  # the modules being called, outermost first
        self.safe = False  # whether rows of attention that may see nothing are zero instead of NaN
        self.outside = saving_hooks()
        self.checkpointed = False  # whether the model has checkpointed regions
        self.undone: str | None = None  # why attention has no gradient, where it has none
        self.answer: object = None  # what the module gave whose readout the anatomy knows
        self.same: Callable[[Tensor, Tensor], None] = lambda old, new: None  # told when one tensor stands for another
        self.notes: list[Any] = []  # what rules kept of the forward pass
        self.heed: Callable[[int | None, Tensor], None] = lambda block, relevance: None  # told each map's relevance

    @property
    def level(self) -> str:
        """Where the gradient ends."""
        return self.pass_options.level or "embedding_output"

    @property
    def block(self) -> int | None:
        """The index of the block that runs."""
        return next((index for index, captured in enumerate(self.blocks) if captured is self.here), None)

    def keeps(self, name: str, index: int) -> bool:
        """Whether this state of this block is kept: in a lean trace, where only layers are read, often it is not."""
        return not self.lean or index == len(self.blocks) - 1 or bool({name, f"{name}_grad"} & self.keep)

    @property
    def attending(self) -> list[nn.Module]:
        """The modules that hold all attention calls; none where a trace is not lean or the structure does not tell."""
        known = [block.attending for block in self.body.blocks]
        found = [module for module in (*known, self.body.pool) if module is not None]
        return found if self.lean and known and None not in known else []

    @property
    def complete(self) -> bool:
        """Whether exactly one attention call was heard in each layer."""
        return bool(self.layers) and all(len(captured.calls) == 1 for captured in self.layers)

    def note(self, index: int) -> None:
        """Read of a block that has run what is read early, and let go of the states that nobody reads later."""
        captured = self.blocks[index]
        if not self.early or len(captured.calls) != 1:
            return
        states = {name: x for name, x in captured.states.items() if name in self.keep}
        device = next(iter(states.values())).device.type
        with torch.no_grad(), torch._C.DisableTorchFunction(), own_dtypes(device):  # nobody should hear this
            block, call = self.body.blocks[index], captured.calls[0]
            layer = passing_layer(block, index, len(self.blocks), call, states, self.added(captured))
            captured.noted.update({early: early.read(layer) for early in self.early})
        if "output_weight" in self.passing:
            captured.adding = None
        for name in self.passing - {"entering", "leaving"} if index == len(self.blocks) - 1 else self.passing:
            captured.states.pop(name, None)

    def added(self, captured: BlockCapture) -> Added | None:
        """What the sub-layers of a block add to the stream; None if nobody asks."""
        if captured.adding is None:
            return None
        return measured(captured.adding, captured.calls[0], ffn="ffn_added" in self.keep)

    def root(self, x: Tensor) -> Tensor:
        """End the gradient at this tensor, or at what the circumstances make of it."""
        x = x.detach()
        root = (x if self.pass_options.at_root is None else self.pass_options.at_root(x)).requires_grad_()
        self.roots.append(root)
        return root

    def release(self) -> None:
        """Let go of all tensors: what rules keep for the backward pass refers to the trace, and so to itself."""
        for captured in (*self.blocks, self.pool, self.loose):
            captured.calls.clear()
            captured.states.clear()
            captured.noted.clear()
            captured.returned = captured.adding = None
        self.roots.clear()
        self.notes.clear()
        self.answer = None
        self.heed = lambda block, relevance: None
        self.same = lambda old, new: None

    def watch(self) -> None:
        """Take note of a checkpointed region."""
        if not self.checkpointed and saving_hooks() != self.outside:
            self.checkpointed = True

    def hear(self, call: AttentionCall) -> None:
        """File a call under the block that runs, with the module that made it, where modules are named."""
        self.watch()
        if self.cut and self.undone is None and not torch.is_grad_enabled():
            self.undone = why_no_gradient()
        if not self.running and call.softmax_input is None:
            self.here.calls.append(call)
            return
        scores = call.softmax_input if "softmax_input" in self.keep else None
        self.here.calls.append(replace(call, owner=self.running[-1] if self.running else "", softmax_input=scores))

    @property
    def layers(self) -> list[BlockCapture]:
        """One entry for each attention layer, first to last."""
        found = self.blocks or [BlockCapture([call]) for call in self.loose.calls]
        return [*found, self.pool] if self.body.pool is not None else found

    def answered(self, logits: Tensor) -> bool:
        """Whether these logits are what the anatomy's head gave, so that its readout is the prediction's."""
        if self.body.head is None:
            return True
        named = named_logits(self.answer)
        found = self.answer if named is None else named
        return any(x is logits for x in (found if isinstance(found, (tuple, list)) else [found]))

    def check_gradients(self) -> None:
        """Raise unless every attention layer can be differentiated: its gradient would be taken for zero.

        Rules may hold maps constant. Then only attention that ran without autograd is refused.
        """
        if self.pass_options.within is not None and self.undone is None:
            return
        for index, captured in enumerate(self.layers):
            (call,) = captured.calls
            attention = call.weights if call.weights is not None else call.output
            if attention is not None and not attention.requires_grad:
                unknown = "what it computed with cannot be differentiated, as 8-bit kernels cannot"
                raise no_graph(f"attention layer {index} of {len(self.layers)}", self.undone or unknown)

    def check(self, model: nn.Module) -> None:
        """Raise unless exactly one attention call was heard in each layer."""
        if self.complete:
            return
        counts, outside = [len(x.calls) for x in self.layers], len(self.loose.calls)
        if not sum(counts) and not (outside and self.blocks):
            raise no_attention(model)
        raise uneven_attention(model, [block.module for block in self.body.blocks], counts, outside)
