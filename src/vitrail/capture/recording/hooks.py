"""The hooks of one forward pass, and the capture they fill: attention calls and stream states with their graph."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitrail.capture.outputs import LOGITS, named
from vitrail.capture.recording.layer import own_dtypes
from vitrail.capture.recording.layers import read_early
from vitrail.capture.recording.pass_options import PassPlan
from vitrail.capture.recording.recompute import Recomputed, light
from vitrail.capture.refusals import (
    no_attention,
    no_graph,
    other_order,
    softmax_in_parts,
    uneven_attention,
    why_no_gradient,
)
from vitrail.capture.seams.call import AttentionCall, first_tensor, stream_of
from vitrail.capture.seams.intercept import InterceptAttention, NotingAttention
from vitrail.capture.shadow import hooks, once
from vitrail.capture.structure.journal import Journal
from vitrail.capture.structure.signature import GraphEnds, ends_of
from vitrail.capture.structure.updates import BlockTrace, BlockUpdates, measure_block, trace_hooks, watched_in
from vitrail.capture.torch_private import saving_hooks, without_functions
from vitrail.errors import OtherBlocksError, VitrailError
from vitrail.models.taking import every_module


@dataclass
class BlockCapture:
    """The captured calls and states of one block."""

    calls: list[AttentionCall] = field(default_factory=list)
    states: dict[str, Tensor] = field(default_factory=dict)
    returned: object = None  # by the block, whatever else it gives beside the stream
    early: dict[Any, Any] = field(default_factory=dict)  # what was read of it as soon as it had run
    traced: BlockTrace | None = None  # what tells what its sub-layers add to the stream, where that is asked for
    updates: BlockUpdates | None = None  # the same, measured as soon as the block had run, in a pass without a graph

    def forget_trace(self) -> None:
        """Free what tells what its sub-layers add: hooks hold it until the pass ends."""
        if self.traced is not None:
            self.traced.clear()
            self.traced = None


class Capture:
    """All attention calls and states of one forward pass, by block; the pooling attention comes last."""

    def __init__(self, plan: PassPlan) -> None:
        self.plan, self.body, self.cut, self.lean = plan, plan.body, plan.cut, plan.lean
        self.keep = keep = plan.wanted.states | plan.wanted.gradients
        self.early = plan.wanted.early if plan.lean else ()
        self.writes = plan.structure is not None and plan.structure.writes  # whether blocks need copies of the stream
        self.pass_options, body, lean = plan.options, plan.body, plan.lean
        self.level = plan.options.level or "embedding_output"  # where the gradient ends
        self.recomputed: Recomputed | None = None  # the blocks that keep no graph; None where all keep theirs
        self.blocks = [BlockCapture() for _ in body.blocks]
        self.pool = BlockCapture()
        self.loose = BlockCapture()
        # One entry for each attention layer, first to last; without blocks, they are known when the model has run.
        self.layers = [*self.blocks, *(() if body.pool is None else (self.pool,))]
        self.complete = False  # whether exactly one attention call was captured in each layer
        self.roots: list[Tensor] = []
        self.arriving: Tensor | None = None  # what enters the first block, with the graph below it
        self.hidden = False  # whether the graph does not show all that is done to tokens
        self.checked = True  # whether what is done to tokens is compared with what was measured
        self.is_stored: Callable[[Tensor], bool] | None = None  # whether a tensor is a weight of the model
        self.journal: Journal | None = None  # the functions that ran, where the graph does not show them
        self.ids: Tensor | None = None  # the token ids the model is called with
        self.batch = 1  # the number of samples
        self.here: BlockCapture = self.loose
        self.running: list[str] = []  # the modules being called, outermost first
        self.entered: list[int] = []  # the blocks, as they began to run
        self.beyond: Tensor | None = None  # what a block gives that the answer is taken not to read
        self.dropping = False  # whether the block that runs is run again later, and nothing of it is kept now
        self.again: Callable[[int], tuple[Tensor, Tensor]] | None = None  # runs a block once more: its input and result
        self.outside = saving_hooks()
        # Of which blocks a state of the stream is kept: where only layers are read, often only of the last.
        self.keeps = {name: not lean or bool({name, f"{name}_grad"} & keep) for name in ("entering", "leaving")}
        known = [block.attending for block in body.blocks]
        found = [module for module in (*known, body.pool) if module is not None]
        # The modules that hold all attention calls; none where the capture is not lean or they are not known.
        self.attending = found if lean and known and None not in known else []
        self.checkpointed = False  # whether the model has checkpointed regions
        self.undone: str | None = None  # why attention has no gradient, where it has none
        self.answer: object = None  # what the module gave whose readout the anatomy knows
        self.same: Callable[[Tensor, Tensor], None] = lambda old, new: None  # called when one tensor replaces another
        self.notes: list[Any] = []  # what rules kept of the forward pass
        self.unscaled: dict[int, set[str]] = {}  # which sub-layers are added as they are, by block, of this form
        self.on_map: Callable[[int | None, Tensor, slice], None] = lambda block, relevance, rows: None  # of each map

    @property
    def block(self) -> int | None:
        """The index of the block that runs."""
        return next((index for index, captured in enumerate(self.blocks) if captured is self.here), None)

    def updates_of(self, captured: BlockCapture) -> BlockUpdates | None:
        """Measure what the sub-layers of a block add to the stream; None if it was not asked for."""
        if captured.traced is None:
            return captured.updates
        index = next(index for index, one in enumerate(self.blocks) if one is captured)
        known = self.unscaled.setdefault(index, set())
        return measure_block(captured.traced, captured.calls[0], ffn="ffn_added" in self.keep, known=known)

    def ends(self, answer: Tensor) -> GraphEnds:
        """Return where the graph of the pass is read, for its signature."""
        last = self.blocks[-1].states.get("leaving") if self.blocks else None
        calls = [call for captured in self.layers for call in captured.calls]
        return ends_of(
            calls,
            answer,
            entering=self.arriving,
            leaving=last,
            roots=self.roots,
            ids=() if self.ids is None else (self.ids,),
            counts=(self.batch, 1 if self.ids is None else self.ids.shape[-1]),
            is_stored=self.is_stored,
        )

    def measure_updates(self, index: int, device: str) -> None:
        """Measure at once what the sub-layers of a block add, and free what that is measured by."""
        captured = self.blocks[index]
        if captured.traced is None or len(captured.calls) != 1:
            return
        with torch.no_grad(), without_functions(), own_dtypes(device):
            captured.updates = self.updates_of(captured)
        captured.forget_trace()

    def dropped(self, index: int, stream: Tensor, *, last: bool) -> Tensor:
        """Free what a block has left that is run again later; its stream, from which the next one goes on.

        Args:
            last: whether the blocks after it keep theirs.
        """
        captured, self.dropping = self.blocks[index], False
        captured.calls[:] = map(light, captured.calls)
        captured.states.clear()
        captured.forget_trace()
        if last:  # the graph begins here
            self.roots[:] = [stream]
            if index == len(self.blocks) - 1:
                captured.states["leaving"] = stream
            return stream.clone()  # models may write into what a block gave
        return stream

    def root(self, x: Tensor) -> Tensor:
        """End the gradient at this tensor, changed first where the options of the pass say so."""
        x = x.detach()
        root = (x if self.pass_options.at_root is None else self.pass_options.at_root(x)).requires_grad_()
        self.roots.append(root)
        return root

    def release(self) -> None:
        """Free all tensors: what rules keep for the backward pass refers to the capture, and so to itself."""
        for captured in (*self.blocks, self.pool, self.loose):
            captured.calls.clear()
            captured.states.clear()
            captured.early.clear()
            captured.returned = captured.traced = captured.updates = None
        self.roots.clear()
        self.arriving = self.beyond = None
        self.recomputed = self.again = None
        self.notes.clear()
        self.answer = None
        self.on_map = lambda block, relevance, rows: None
        self.same = lambda old, new: None

    def filing(self, captured: BlockCapture) -> bool:
        """Return True if this block runs and is kept."""
        return self.here is captured and not self.dropping

    def add_call(self, call: AttentionCall) -> None:
        """File a call under the block that runs, with the module that made it, where modules are named."""
        self.checkpointed |= saving_hooks() != self.outside
        above = self.roots or not self.pass_options.last_block
        if self.cut and above and self.undone is None and not torch.is_grad_enabled() and not self.dropping:
            self.undone = why_no_gradient()
        if not self.running and call.softmax_input is None:
            self.here.calls.append(call)
            return
        scores = call.softmax_input if "softmax_input" in self.keep else None
        self.here.calls.append(replace(call, owner=self.running[-1] if self.running else "", softmax_input=scores))

    def answered(self, logits: Tensor) -> bool:
        """Return True if these logits came from the head in the anatomy, so that its readout is the prediction's."""
        logged = named(self.answer, LOGITS)
        found = self.answer if logged is None else logged
        return any(x is logits for x in (found if isinstance(found, (tuple, list)) else [found]))

    def check_gradients(self) -> None:
        """Raise unless every attention layer can be differentiated: its gradient would be taken for zero.

        Rules may hold maps constant. Then only attention that ran without autograd is refused.
        """
        if self.pass_options.within is not None and self.undone is None:
            return
        for index, captured in enumerate(self.layers):
            if self.recomputed is not None and index < self.recomputed.count:
                continue
            (call,) = captured.calls
            attention = call.weights if call.weights is not None else call.output
            if attention is not None and not attention.requires_grad:
                unknown = "what it computed with cannot be differentiated, as 8-bit kernels cannot"
                raise no_graph(f"attention layer {index} of {len(self.layers)}", self.undone or unknown)

    def incomplete(self, model: nn.Module) -> VitrailError:
        """Return the error for layers in which not exactly one attention call was captured."""
        counts, outside = [len(x.calls) for x in self.layers], len(self.loose.calls)
        modules = [block.module for block in self.body.blocks]
        shared = len(set(modules)) < len(modules)  # one module in two places enters twice each time it runs
        if self.entered != sorted(self.entered) and not shared:
            return other_order(model, self.entered)
        # A block was found by its attention. Under rules a softmax in parts is not seen as one.
        missed = any(block.discovered and not count for block, count in zip(self.body.blocks, counts, strict=False))
        if self.pass_options.within is not None and missed:
            return softmax_in_parts(model)
        if not sum(counts) and not (outside and self.blocks):
            return no_attention(model)
        found = uneven_attention(model, modules, counts, outside)
        return OtherBlocksError(str(found)) if self.body.ran else found


def replaced_stream(args: tuple, kwargs: dict, change: Callable[[Tensor], Tensor]) -> tuple[tuple, dict]:
    """A block's arguments with the residual stream changed."""
    old = stream_of(args, kwargs)
    return _with_stream(args, kwargs, old, change(old))


def _with_stream(args: tuple, kwargs: dict, old: Tensor, new: Tensor) -> tuple[tuple, dict]:
    return tuple(new if x is old else x for x in args), {n: new if x is old else x for n, x in kwargs.items()}


def with_stream_of(out: Any, stream: Tensor) -> Any:  # noqa: ANN401
    """Return the output of a block with the residual stream replaced."""
    return type(out)([stream, *out[1:]]) if isinstance(out, (tuple, list)) else stream


@contextmanager
def capturing(model: nn.Module, capture: Capture, *, only: int | None = None) -> Iterator[None]:
    """Capture attention calls and states while the model runs inside the block.

    Args:
        only: the index of the one block that runs, None for the whole model.
    """
    override, safe, rules = capture.pass_options.override, capture.plan.safe, capture.pass_options.within
    noted = capture.journal if only is None and rules is None else None  # rules note what they are asked about
    kind = InterceptAttention if noted is None else NotingAttention
    mode = kind(capture.add_call, override, lambda: capture.block, safe=safe, in_parts=rules is None)
    capture.same = mode.follower.same
    known = capture.attending if only is None else capture.attending[only : only + 1]
    # Empty while nothing is intercepted: torch calls `leave` also where an error came before `enter`.
    entered = ExitStack()
    enter, leave = (lambda *_: entered.enter_context(mode) and None), (lambda *_: entered.close())
    if isinstance(mode, NotingAttention) and noted is not None:  # it is there all the time
        mode.note = noted.note
        enter, leave = (lambda *_: setattr(mode, "on", True)), (lambda *_: setattr(mode, "on", False))
    handles: list[RemovableHandle] = []
    try:
        _add_hooks(handles, model, capture, only)
        for module in known:  # all else runs at its own speed
            handles.append(module.register_forward_pre_hook(enter, prepend=True))
            handles.append(module.register_forward_hook(leave, always_call=True))
        if noted is not None:
            entered.enter_context(mode)
        if not known:
            enter()
        yield
    finally:  # torch calls no hook after a KeyboardInterrupt
        entered.close()
        for handle in handles:
            handle.remove()
    if not capture.blocks:
        capture.layers[:0] = [BlockCapture([call]) for call in capture.loose.calls]
    capture.complete = bool(capture.layers) and all(len(captured.calls) == 1 for captured in capture.layers)


def _add_hooks(handles: list[RemovableHandle], model: nn.Module, capture: Capture, only: int | None) -> None:
    """Set the hooks of one block that runs alone, or of all blocks and of what comes before and after them."""
    if not capture.lean and capture.pass_options.within is None:  # rules ask the call stack where they are
        named = [(name, module) for name, module in model.named_modules() if _may_attend(module)]
        handles += [handle for name, module in named for handle in _name_hooks(capture, name, module)]
    for index in range(len(capture.blocks)) if only is None else (only,):
        block, captured = capture.body.blocks[index], capture.blocks[index]
        handles.append(block.module.register_forward_pre_hook(partial(_enter, capture, index), with_kwargs=True))
        if "output_weight" in capture.keep:
            place = "watched", block.module, block.output, block.ffn_output
            watched = once(model, place, lambda block=block: watched_in(block, every_module(block.module)))
            captured.traced = BlockTrace(block)
            handles += trace_hooks(captured.traced, watched, partial(capture.filing, captured))
        handles.append(block.module.register_forward_hook(partial(_leave, capture, index)))
        handles += _state_hooks(capture, index) if capture.keep & INSIDE else []
    if only is not None:
        return
    if capture.body.pool is not None:
        handles += _place_hooks(capture, capture.body.pool, capture.pool)
    if capture.body.head is not None:
        handles.append(
            capture.body.head.register_forward_hook(lambda module, args, out: setattr(capture, "answer", out))
        )
    if capture.cut and (capture.level != "embedding_output" or not capture.blocks):
        handles += LEVEL_HOOKS[capture.level](capture, model)


@contextmanager
def naming(model: nn.Module, capture: Capture) -> Iterator[None]:
    """Keep the names of the modules that run, and nothing else, while the model runs inside the block."""
    with hooks([handle for name, module in model.named_modules() for handle in _name_hooks(capture, name, module)]):
        yield


def _may_attend(module: nn.Module) -> bool:
    """Return True if an attention call may come from this module itself: torch's own layers without parts make none."""
    return bool(module._modules) or not type(module).__module__.startswith("torch.nn.modules.")


def _name_hooks(capture: Capture, name: str, module: nn.Module) -> list[RemovableHandle]:
    """Keep the name of a module on the stack while it runs."""
    # Both give None, so that arguments and results stay as they are.
    enter = module.register_forward_pre_hook(partial(_begin, capture, name), with_kwargs=True)
    return [enter, module.register_forward_hook(lambda module, args, out: capture.running.__delitem__(-1))]


def _begin(capture: Capture, name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
    capture.checkpointed |= saving_hooks() != capture.outside
    capture.running.append(name)


def _place_hooks(capture: Capture, module: nn.Module, captured: BlockCapture) -> list[RemovableHandle]:
    """File calls under this module while it runs."""
    return [
        module.register_forward_pre_hook(
            lambda module, args, kwargs: setattr(capture, "here", captured), with_kwargs=True
        ),
        module.register_forward_hook(lambda module, args, out: setattr(capture, "here", capture.loose)),
    ]


def _enter(capture: Capture, index: int, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    """File calls under the block, and keep what enters it: if asked for, and of the last, where a gradient may end.

    The stream is edited before the first block if asked for, and cut off where the gradient ends.
    """
    capture.checkpointed |= saving_hooks() != capture.outside
    capture.here, again, options = capture.blocks[index], capture.recomputed, capture.pass_options
    replayed = again is not None and again.replay is not None
    capture.entered += [] if replayed else [index]
    if again is not None:
        again.enter(index, args, kwargs)
        capture.dropping = again.drops(index)
    if index == 0 and capture.arriving is None:
        capture.arriving = stream_of(args, kwargs)
    last = index == len(capture.blocks) - 1
    keeps = last or capture.keeps["entering"]
    changes = (index == 0 and not replayed) or options.per_block or (options.last_block and last)
    if capture.dropping or (not keeps and not changes):
        return replaced_stream(args, kwargs, Tensor.clone) if capture.writes else None
    old = new = stream_of(args, kwargs)
    if changes and index == 0 and options.edit is not None:
        new = options.edit(new)
    if changes and options.last_block:
        torch.set_grad_enabled(last)
    if changes and capture.cut and capture.level == "embedding_output" and (last or not options.last_block):
        new = capture.root(new)
    if keeps:
        capture.here.states["entering"] = new
    new = new.clone() if capture.writes else new
    return None if new is old else _with_stream(args, kwargs, old, new)


def _leave(capture: Capture, index: int, module: nn.Module, args: tuple, out: Any) -> Any:  # noqa: ANN401
    """Keep what leaves a block if it is asked for, and of the last block, by which the readout is measured.

    In a pass without a graph, one begins after the last block.
    """
    capture.here, stream = capture.loose, first_tensor(out)
    if not capture.cut and capture.blocks[index].traced is not None:
        capture.measure_updates(index, stream.device.type)
    last = index == len(capture.blocks) - 1
    if last and not capture.cut:
        torch.set_grad_enabled(True)
        leaf = stream.detach().requires_grad_()
        capture.blocks[index].states["leaving"], capture.blocks[index].returned = leaf, out
        if capture.early:
            read_early(capture, index)
        return with_stream_of(out, leaf.clone())  # a copy, because models may write into what a block gave
    if capture.recomputed is not None:
        by_hand = any(call.weights is not None for call in capture.blocks[index].calls)
        fresh = capture.recomputed.leave(index, stream, by_hand=by_hand)
        if fresh is not None:
            return with_stream_of(out, capture.dropped(index, fresh, last=index == capture.recomputed.count - 1))
    if last or capture.keeps["leaving"]:
        capture.blocks[index].states["leaving"], capture.blocks[index].returned = stream, out
    if capture.early:
        read_early(capture, index)
    return with_stream_of(out, stream.clone()) if last and capture.writes else None


INSIDE = frozenset({"attention_normed", "attention_normed_grad", "ffn_entering", "ffn_normed", "ffn_added"})
"""States inside a block."""


def _state_hooks(capture: Capture, index: int) -> list[RemovableHandle]:
    """Hooks for the states inside a block, only for those that are asked for and exist."""
    block = capture.body.blocks[index]
    places: list[tuple[nn.Module | None, str, tuple[str, ...]]] = [
        (block.attention_norm, "out", ("attention_normed",)),
        (block.ffn_norm, "in", ("ffn_entering",)),
        (block.ffn_norm, "out", ("ffn_normed",)),
        (block.ffn_output, "out", ("ffn_added",)),
    ]
    if block.ffn_norm is None:  # post-norm: what enters the sub-layer is what it reads
        places.append((block.ffn_input, "in", ("ffn_entering", "ffn_normed")))
    # One norm in both places of a block is called first for attention, then for the feed-forward part.
    shared = block.ffn_norm is not None and block.ffn_norm is block.attention_norm
    turns = {"attention_normed": 0, "ffn_entering": 1, "ffn_normed": 1} if shared else {}
    handles = []
    for module, side, names in places:
        if module is not None and (kept := tuple(name for name in names if name in capture.keep)):
            keep = _StateHooks(capture, capture.blocks[index], kept, turns.get(kept[0]))
            if side == "in":
                handles.append(module.register_forward_pre_hook(keep.going_in, with_kwargs=True))
            else:
                handles.append(module.register_forward_hook(keep.coming_out))
    return handles


@dataclass(eq=False)
class _StateHooks:
    """Keeps what goes into a module or comes out of it while its block runs; several blocks may share the module.

    Args:
        names: what the state is called.
        turn: the number of the call that is meant, counted within the block; None for the last. Where sub-layers
            stand side by side there is one call, and it is meant for both.
    """

    capture: Capture
    captured: BlockCapture
    names: tuple[str, ...]
    turn: int | None
    calls: int = 0

    def going_in(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """A hook before the module."""
        self._keep(stream_of(args, kwargs).detach())

    def coming_out(self, module: nn.Module, args: tuple, out: Any) -> None:  # noqa: ANN401
        """A hook after the module."""
        self._keep(first_tensor(out))

    def _keep(self, x: Tensor) -> None:
        if self.capture.filing(self.captured):
            if self.turn is None or self.calls <= self.turn:
                self.captured.states.update(dict.fromkeys(self.names, x))
            self.calls += 1


def _all_embeddings(capture: Capture, model: nn.Module) -> list[RemovableHandle]:
    """The gradient ends at the embeddings, where no block is known; else the first block's own hook cuts the stream."""

    def hook(module: nn.Module, args: tuple, out: Tensor) -> Tensor:
        return capture.root(out).clone()  # CTRL writes into what it looks up

    return [m.register_forward_hook(hook) for m in model.modules() if isinstance(m, nn.Embedding)]


def _word_embeddings(capture: Capture, model: nn.Module) -> list[RemovableHandle]:
    """The gradient ends where token ids become vectors."""

    def hook(module: nn.Module, args: tuple, out: Tensor) -> Tensor | None:
        ids = capture.ids
        fits = ids is not None and not capture.roots and args[0].shape == ids.shape and bool((args[0] == ids).all())
        return capture.root(out).clone() if fits else None

    return [m.register_forward_hook(hook) for m in model.modules() if isinstance(m, nn.Embedding)]


LEVEL_HOOKS: dict[str, Callable[[Capture, nn.Module], list[RemovableHandle]]] = {
    "embedding_output": _all_embeddings,
    "inputs_embeds": _word_embeddings,
    "pixels": lambda capture, model: [],  # `forward` has made the picture a root already
}
