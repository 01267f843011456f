"""One forward pass that can be differentiated, and shown layer by layer from last to first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vitrail.anatomy import Block
from vitrail.backward import UNMOVED, Backward
from vitrail.errors import OptionError, SeamError, TargetError, suggest
from vitrail.inputs import Inputs
from vitrail.layering import as_heads, batch_first, behind_prefix, operands_of, stream_around, weights_of
from vitrail.outputs import Output, Part, parts
from vitrail.reading import call_dtype, call_shape, entries, fused_refusal, real_tokens, unequal
from vitrail.readout import READOUTS, mean_all, position, with_gradient
from vitrail.recording import Early, Layer, own_dtypes, widen
from vitrail.relevance.backends import check_backend, choose_backend
from vitrail.targets import AnyTarget, as_target
from vitrail.trace import STATES, Trace

GRADIENTS = ("output_grad", "query_grad", "entering_grad", "leaving_grad", "attention_normed_grad")
KEEPS = frozenset({*STATES, *GRADIENTS})
"""What a recording can keep beside the operands of every attention call."""


@dataclass(frozen=True)
class Settings:
    """How layers are handed out: which backend reads them, in blocks of how many rows."""

    backend: str = "auto"
    chunk_rows: int | None = None

    def __post_init__(self) -> None:
        """Refuse settings that name nothing, before the model runs."""
        check_backend(self.backend)
        if self.chunk_rows is not None and self.chunk_rows < 1:
            raise OptionError(f"chunk_rows={self.chunk_rows}, but a block has at least one row.")


@dataclass(frozen=True)
class Wanted:
    """What a group of methods reads: states, gradients, and whether gradients of the last layer suffice.

    `early` is read of each block as the forward pass leaves it, and `passing` are the states nobody reads after that.
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


class Pass:
    """One forward pass, ready to be differentiated as often as there are scalars to explain."""

    def __init__(self, inputs: Inputs, trace: Trace, output: Output, settings: Settings) -> None:
        self.inputs, self.trace, self.output, self.settings = inputs, trace, output, settings
        self.heard = trace.layers
        self.depth = len(self.heard)
        self.shared = False
        first = self.heard[0].calls[0]
        self.valid = real_tokens(inputs, first, output.logits.device)
        queries, keys = call_shape(first)
        self.virtual = max(keys - queries, 0)  # keys that belong to no token, as prefix tuning adds them
        if queries != self.valid.shape[1] and inputs.attention_mask is not None:
            raise SeamError(
                f"the text has {self.valid.shape[1]} tokens, but the blocks work on {queries}: the model adds tokens "
                "of its own, as prompt tuning does. Which score belongs to which word is not known then."
            )
        device = self.valid.device.type
        refusals = (fused_refusal(heard.calls[0], device) for heard in self.heard)
        refusal = next((why for why in refusals if why), None)
        self.choose = partial(
            choose_backend,
            settings.backend,
            entries=entries(first),
            device=device,
            refusal=refusal,
            bounded=settings.chunk_rows is not None,
        )
        self.backend = self.choose(shared=False)
        self.ran: set[str] = set()
        self.measured: Tensor | None = None

    @property
    def worked(self) -> str:
        """The backends that did the sums over maps: kernels may leave some to blocks, and some methods need none."""
        return ", ".join(sorted(self.ran, reverse=True)) or "none"

    def parts(self, target: AnyTarget) -> tuple[Part, ...]:
        """The scalars of a target on this pass's output."""
        return parts(self.output, as_target(target), self.valid, causal=self.trace.body.anatomy.causal)

    def visit(
        self, part: Part, wanted: Wanted, see: Callable[[Layer], None], *, again: bool, shared: bool = False
    ) -> None:
        """Show every layer to `see`, last to first, each as soon as the gradients it needs are there.

        Args:
            again: keep the graph for another scalar.
            shared: several methods will read each layer.
        """
        self.shared, self.measured = shared, self._known_readout(part)
        self.backend = self.choose(shared=shared)
        # Without blocks, what the last attention gives tells which rows are read.
        telling = "leaving_grad" if self.trace.blocks else "output_grad"
        names = set(wanted.gradients) | ({telling} if self.measured is None else set())
        # A caller's autocast is for the model, not for the relevance algebra.
        with own_dtypes(self.valid.device.type):
            if names:
                # A pooling attention stands behind the last block, which is a last layer too.
                last = self.depth - 1 - (self.trace.body.pool is not None)
                self._differentiate(part, names, see, again=again, lowest=max(last, 0) if wanted.last_only else 0)
                return
            for index in reversed(range(self.depth)):
                see(self._layer(index, {}, None))

    def at_roots(self, part: Part) -> list[tuple[Tensor, Tensor]]:
        """Every place where the gradient ends, with the gradient of the scalar there; the graph is kept."""
        if not part.scalar.requires_grad:
            raise TargetError(UNMOVED)
        roots = self.trace.roots
        # In half precision small gradients would underflow: the pass starts at size one.
        scale = self._size(part) if any(root.dtype is torch.float16 for root in roots) else 1.0
        found = torch.autograd.grad(part.scalar.sum() / scale, roots, retain_graph=True, allow_unused=True)
        if all(gradient is None for gradient in found):
            raise TargetError(UNMOVED)
        pairs = [
            (root, torch.zeros_like(root) if grad is None else grad) for root, grad in zip(roots, found, strict=True)
        ]
        return [(widen(root.detach()), widen(grad) * scale) for root, grad in pairs]

    def _size(self, part: Part) -> float:
        """The largest entry of the scalar's gradient at the logits."""
        (gradient,) = torch.autograd.grad(part.scalar.sum(), self.output.wide, retain_graph=True, allow_unused=True)
        return 1.0 if gradient is None else max(float(gradient.abs().amax()), torch.finfo(torch.float32).tiny)

    def pull_back(self, seed: Tensor) -> Tensor:
        """What arrives at the one place where the gradient ends, for a cotangent of the logits; the graph is kept."""
        (root,) = self.trace.roots
        return torch.autograd.grad(self.output.logits, root, seed, retain_graph=True)[0]

    def _differentiate(
        self, part: Part, names: set[str], see: Callable[[Layer], None], *, again: bool, lowest: int
    ) -> None:
        def show(index: int, gradients: dict[str, Tensor], scale: Tensor | None) -> None:
            if self.measured is None:
                self.measured = with_gradient(self._telling(index, gradients), self.valid)
            with own_dtypes(self.valid.device.type):  # the engine may run this in another thread
                see(self._layer(index, gradients, scale))
            if not again:
                self.heard[index].calls.clear()  # free the operands as the backward pass frees the graph

        back = Backward(self.heard, self.trace.roots, names, lowest=lowest)
        back.run(part.scalar, self.output.wide, show, again=again)

    def _telling(self, index: int, gradients: Mapping[str, Tensor]) -> Tensor:
        """The gradient that tells which rows are read, `[b, t, d]`."""
        if self.trace.blocks:
            return batch_first(self._block(index), gradients["leaving_grad"])
        heads = as_heads(gradients["output_grad"], self.inputs.batch)
        assert heads is not None
        return heads.transpose(1, 2).flatten(2)

    def _known_readout(self, part: Part) -> Tensor | None:
        """The rows the prediction reads, or None if only the gradient can tell."""
        body = self.trace.body
        if body.pool is not None:
            queries = call_shape(self.heard[-1].calls[0])[0]
            return torch.full((self.inputs.batch, queries), 1 / queries, device=self.valid.device)
        if part.position is not None:
            return position(self.valid, part.position)
        readout = body.anatomy.readout if self.trace.answered(self.output.logits) else "auto"
        if isinstance(readout, int):
            return position(self.valid, readout)
        return READOUTS[readout](self.valid, self.prefix) if readout in READOUTS else None

    def readout_position(self) -> Tensor | None:
        """The one position each sample was last read from, -1 where there are several; None for a pooling query."""
        if self.measured is None or self.trace.body.pool is not None:
            return None
        return torch.where(self.measured.amax(dim=1) == 1, self.measured.argmax(dim=1), -1)

    @property
    def prefix(self) -> int:
        """How many tokens stand before the content."""
        return self.trace.body.anatomy.prefix

    def _block(self, index: int) -> Block | None:
        """The block an attention layer is in; None for the pooling behind them, and where none are known."""
        blocks = self.trace.body.blocks
        return blocks[index] if index < len(blocks) else None

    def _layer(self, index: int, gradients: Mapping[str, Tensor], scale: Tensor | None) -> Layer:
        heard, (call,) = self.heard[index], self.heard[index].calls
        queries, keys = call_shape(call)
        body, batch = self.trace.body, self.inputs.batch
        pooling = body.pool is not None and index == self.depth - 1
        hidden = self.valid.shape[1] - keys if pooling else 0  # tokens that a pooling query does not read
        if (not pooling and queries != keys) or hidden not in (0, self.prefix):
            raise SeamError(unequal(index, queries, keys))
        block = self._block(index)
        dtype = torch.promote_types(call_dtype(call), torch.float32)
        # Below a pooling query every token is read.
        readout = mean_all(self.valid, 0) if body.pool is not None and not pooling else self.measured
        if readout is None or readout.shape[1] != queries:
            raise SeamError(f"the readout has no row in attention layer {index}, which has {queries} queries.")
        states = {name: x for name, x in heard.states.items() if name in self.trace.keep}
        layer = Layer(
            index=index,
            depth=self.depth,
            valid=self.valid,
            readout=readout.to(dtype),
            prefix=self.prefix,
            kind=self.inputs.kind,
            owner=call.owner,
            pooling=pooling,
            pooled=body.pool is not None,
            query_grad=as_heads(gradients.get("query_grad"), batch),
            output_grad=as_heads(gradients.get("output_grad"), batch) if call.weights is None else None,
            weights_grad=as_heads(gradients.get("output_grad"), batch) if call.weights is not None else None,
            **operands_of(call, batch),
            grad_scale=scale,
            **weights_of(block),
            stream=stream_around(block, states, gradients),
            noted=heard.noted,
            backend=self.backend,
            chunk_rows=self.settings.chunk_rows,
            shared=self.shared,
            ran=self.ran,
        )
        return behind_prefix(layer, hidden) if hidden else layer
