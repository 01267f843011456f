"""The update of the residual stream by a sub-layer, measured in the pass itself.

The output projection takes the heads' outputs to channels of the stream. Between it and the stream there may stand a
norm (Gemma 2 and 3, OLMo 2, Swin 2), a layer scale, a constant factor (Granite) or a gate. A trace of a block follows
the projection's result through the modules that take it on, and the sum with the stream is compared with what they
gave: what is not explained by them, by a named layer scale or by one factor for each channel is refused.

Models with several sequences of tokens have no such blocks: there `stream_updates` finds the same by sums of the pass.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitrail.capture.graphs import decided
from vitrail.capture.recording.layer import widen
from vitrail.capture.seams import AttentionCall
from vitrail.capture.seams.call import first_tensor
from vitrail.capture.structure.projections import (
    QUANTISED,
    TOLERANCES,
    Step,
    Unknown,
    are_alike,
    hands_on,
    is_norm,
    is_plain,
    matrix,
    passes,
    scales,
    through,
)
from vitrail.capture.torch_private import writes_to
from vitrail.models.anatomy import Block
from vitrail.models.taking import every_module


@dataclass(frozen=True, eq=False)
class SublayerUpdate:
    """The update of the residual stream by a sub-layer.

    Args:
        weight: `[channels, heads * d]`, from the heads' outputs to what is added, less the next two; of attention.
        rows: what a norm multiplies each query's row by beside, `[rows, q]`; None for one.
        scale: of each channel, as the anatomy or a module names it or as measured; None for one.
        added: what the feed-forward part gave, without `scale`.
        state: vectors of the stream that it is added to, one in each row, where no block holds them.
        places: the row of `state` for every key `[rows, k]`, -1 where it has none.
        unknown: why the rest is not known.
    """

    weight: Tensor | None = None
    rows: Tensor | None = None
    scale: Tensor | None = None
    added: Tensor | None = None
    state: Tensor | None = None
    places: Tensor | None = None
    unknown: str | None = None

    def entering(self) -> Tensor:
        """Return the vector of every key, zero where it has none."""
        assert self.state is not None
        assert self.places is not None
        places = self.places.to(self.state.device)
        return self.state[places.clamp(min=0)] * (places >= 0)[..., None]


BlockUpdates = tuple[SublayerUpdate, SublayerUpdate]
"""What attention and the feed-forward part of a block add to the stream."""


def missing_in(updates: BlockUpdates) -> dict[str, str]:
    """Return why something is not known, by the name it has in a layer."""
    why = {"output_weight": updates[0].unknown, "ffn_added": updates[1].unknown}
    return {name: words for name, words in why.items() if words is not None}


@dataclass
class _Result:
    """The later form of a sub-layer's output, until it was added to the stream."""

    given: Tensor | None = None  # what entered the module
    result: Tensor | None = None
    now: Tensor | None = None  # what was made of the result so far
    steps: list[Step] = field(default_factory=list)  # the norms and scales that made it
    later: list[Tensor] = field(default_factory=list)  # what entered norms after: the sum with the stream may be one
    times: int = 0  # how often the module was called
    version: int = 0  # of the tensor `now`, which the model may write into later


@dataclass
class BlockTrace:
    """The trace of the two sub-layers of one block while it runs, and of the stream around them."""

    block: Block
    attention: _Result = field(default_factory=_Result)
    ffn: _Result = field(default_factory=_Result)
    entering: Tensor | None = None
    middle: Tensor | None = None  # the stream that the feed-forward part is added to
    leaving: Tensor | None = None

    def clear(self) -> None:
        """Let go of all tensors."""
        self.attention, self.ffn = _Result(), _Result()
        self.entering = self.middle = self.leaving = None


Watched = tuple[list[tuple[nn.Module, str, bool]], list[nn.Module]]
"""The modules of a block that give the results of its parts, each with the part's name and whether it is the projection
itself; and the modules that may hand a result on."""


def watched_in(block: Block, modules: Iterable[nn.Module]) -> Watched:
    """Return the modules of a block that tell what is added, among some that may hand a result on."""
    parts = [(x, name) for x, name in ((block.output, "attention"), (block.ffn_output, "ffn")) if x is not None]
    holders = [module for module in every_module(block.module) if isinstance(module, nn.MultiheadAttention)]
    callers = []
    for module, name in parts:  # an `nn.MultiheadAttention` reads the weight of its projection without calling it
        caller = next((holder for holder in holders if holder.out_proj is module), module)
        callers.append((caller, name, caller is module))
    return callers, list(filter(hands_on, modules))


Hooks = list[tuple[nn.Module, Callable[..., Tensor | None]]]


def _hooks(traced: BlockTrace, watched: Watched) -> tuple[Hooks, Hooks]:
    """Return what is called when modules of a block begin, and when they end."""
    block, (callers, takers) = traced.block, watched
    reads = block.ffn_input if block.ffn_norm is None else block.ffn_norm
    before: Hooks = [(block.module, partial(_enter, traced))]
    before += [] if reads is None else [(reads, partial(_read, traced))]
    after: Hooks = [(block.module, partial(_leave, traced))]
    after += [(caller, partial(_give, traced, name, own)) for caller, name, own in callers]
    return before, [*after, *((module, partial(_take, traced)) for module in takers)]


def trace_hooks(traced: BlockTrace, watched: Watched, running: Callable[[], bool]) -> list[RemovableHandle]:
    """Set the hooks that trace one block; to be set before those that read it.

    Args:
        running: whether it is this block that runs: several may share modules.
    """
    before, after = _hooks(traced, watched)

    def only_then(hook: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
        return lambda *given: hook(*given) if running() else None

    return [
        *(m.register_forward_pre_hook(only_then(hook), with_kwargs=True) for m, hook in before),
        *(m.register_forward_hook(only_then(hook), with_kwargs=True) for m, hook in after),
    ]


Event = tuple[nn.Module, tuple[Tensor, ...], tuple[Tensor | None, ...]]
"""A module that begins or ends in a pass that was kept: the first tensor it was called with, at its end also what it
gave first."""


def replay(block: Block, events: Sequence[Event], call: AttentionCall) -> dict[str, str]:
    """Return why what the parts of a block give is not what is added to the stream, from a pass that was kept."""
    traced = BlockTrace(block)
    takers = {id(module): module for module, _, _ in events}
    before, after = _hooks(traced, watched_in(block, takers.values()))
    for module, given, gave in events:
        for _, hook in (one for one in (after if gave else before) if one[0] is module):
            hook(module, given, {}, *gave)
    return missing_in(measure_block(traced, call, ffn=True))


def _enter(traced: BlockTrace, module: nn.Module, args: tuple, kwargs: dict) -> None:
    traced.clear()
    traced.entering = _given(args, kwargs)


def _leave(traced: BlockTrace, module: nn.Module, args: tuple, kwargs: dict, out: Any) -> None:  # noqa: ANN401
    traced.leaving = first_tensor(out)


def _read(traced: BlockTrace, module: nn.Module, args: tuple, kwargs: dict) -> None:
    traced.middle = _given(args, kwargs)


def _give(
    traced: BlockTrace,
    name: str,
    own: bool,  # noqa: FBT001
    module: nn.Module,
    args: tuple,
    kwargs: dict,
    out: Any,  # noqa: ANN401
) -> Tensor | None:
    """Begin to follow a result. Sub-layers side by side may be added in place, so the model goes on with a copy."""
    followed: _Result = getattr(traced, name)
    followed.given = _given(args, kwargs) if own else None
    followed.result = followed.now = first_tensor(out)
    followed.version = writes_to(followed.now)
    followed.times += 1
    beside = traced.middle is not None and traced.middle is traced.entering
    return out.clone() if beside and isinstance(out, Tensor) else None


def _take(traced: BlockTrace, module: nn.Module, args: tuple, kwargs: dict, out: Any) -> None:  # noqa: ANN401
    """Follow a result through a module that takes it; keep what enters norms later."""
    given = _given(args, kwargs)
    for followed in (traced.attention, traced.ffn):
        if followed.now is None or given is None:
            continue
        if given is followed.now:
            followed.now = first_tensor(out)
            followed.version = writes_to(followed.now)
            if not passes(module):
                followed.steps.append((module, given, followed.now))
        elif is_norm(module):
            followed.later.append(given)


def _given(args: tuple, kwargs: dict) -> Tensor | None:
    return next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)


def measure_block(traced: BlockTrace, call: AttentionCall, *, ffn: bool, known: set[str] | None = None) -> BlockUpdates:
    """Measure what the parts of a block that has run add to the stream.

    Args:
        ffn: whether the feed-forward part is asked for.
        known: which parts were found, in an earlier pass over inputs of this form, to be added just as they come out of
            their last linear layer. Those are not compared again; those that are found to be so now are noted.
    """
    known = set() if known is None else known
    block = traced.block
    with torch.no_grad():
        try:
            attention = _attention(traced, block.output, call, known)
        except Unknown as why:
            attention = SublayerUpdate(scale=block.attention_scale, unknown=str(why))
        if not ffn or block.ffn_output is None:
            return attention, SublayerUpdate()
        try:
            return attention, _ffn(traced, block.ffn_output, known)
        except Unknown as why:
            return attention, SublayerUpdate(unknown=str(why))


def _attention(traced: BlockTrace, module: nn.Module | None, call: AttentionCall, known: set[str]) -> SublayerUpdate:
    """Measure the map from the heads' outputs to what is added to the stream."""
    if module is None:
        raise Unknown(
            "no module was found that takes the heads' outputs to channels of the residual stream: a norm or a gate "
            "stands between, or the model's own code projects them"
        )
    seen, stream, block = traced.attention, traced.entering, traced.block
    named = _scale(seen, block.attention_scale)
    _check_seen(traced, seen, module)
    assert seen.result is not None
    assert stream is not None
    if "attention" in known and not seen.steps and seen.given is not None:
        return SublayerUpdate(matrix(module, seen.given.shape[-1], seen.given)[0], scale=named)
    given = _heads_outputs(seen, call, block, stream)
    weight, bias = matrix(module, given.shape[-1], given)
    _check_affine(module, (weight, bias), given, seen.result)
    steps, base = _but_named(seen, named)
    weight, rows = through([(one, _as_stream(x, stream), _as_stream(y, stream)) for one, x, y in steps], weight)
    added = widen(_as_stream(base, stream))
    if added.shape != stream.shape:
        raise Unknown(f"{type(module).__name__} gives {tuple(added.shape)} to a stream {tuple(stream.shape)}")
    added = added if named is None else added * named
    sums = _sums(traced, (*seen.later, traced.middle, traced.leaving), stream, traced.ffn.now)
    factor = _factor(sums, added, stream, module)
    rows = rows if rows is None or block.batch_first else rows.transpose(0, 1)
    if is_plain(module) and factor is None and not seen.steps:
        known.add("attention")
    return SublayerUpdate(weight, rows, _both(named, factor))


def _ffn(traced: BlockTrace, module: nn.Module, known: set[str]) -> SublayerUpdate:
    """Measure what the feed-forward part adds to the stream, and the scale of each channel it is still to be given."""
    seen, stream, named = traced.ffn, traced.entering, _scale(traced.ffn, traced.block.ffn_scale)
    _check_seen(traced, seen, module)
    assert stream is not None
    _, base = _but_named(seen, named)
    base = _as_stream(base, stream)
    if "ffn" in known:
        return SublayerUpdate(added=base, scale=named)
    added = widen(base) if named is None else widen(base) * named
    before = stream if traced.middle is None else _as_stream(traced.middle, stream)
    if before.shape != stream.shape:
        raise Unknown(f"the feed-forward part reads tokens {tuple(before.shape)} of a stream {tuple(stream.shape)}")
    aside = are_alike(widen(before), widen(stream), stream.dtype)
    sums = _sums(traced, (*seen.later, traced.leaving), before, traced.attention.now if aside else None)
    factor = _factor(sums, added, stream, module)
    if factor is None and not seen.steps:
        known.add("ffn")
    return SublayerUpdate(added=base, scale=_both(named, factor))


def _both(named: Tensor | None, factor: Tensor | None) -> Tensor | None:
    """Return two scales of channels as one; None for one stands for no change."""
    if named is None or factor is None:
        return factor if named is None else named
    return named * factor


def _check_seen(traced: BlockTrace, seen: _Result, module: nn.Module) -> None:
    """Refuse a part that did not run once, and results that are not there any more."""
    if seen.times != 1 or seen.now is None:
        raise Unknown(f"{type(module).__name__} was called {seen.times} times in the block, not once")
    if any(x.now is not None and writes_to(x.now) != x.version for x in (traced.attention, traced.ffn)):
        raise Unknown("the model writes into what one sub-layer gave, as by x += y, so it is not there any more")


def _heads_outputs(seen: _Result, call: AttentionCall, block: Block, stream: Tensor) -> Tensor:
    """Return what the projection was given, which has to be the heads' outputs side by side."""
    if call.output is None:
        raise Unknown("the heads' outputs are not known")
    if call.output.ndim not in (3, 4):
        raise Unknown(f"the heads' outputs have the shape {tuple(call.output.shape)}, with an axis of windows")
    batch = stream.shape[0 if block.batch_first else 1]
    if call.output.ndim == 3 and len(call.output) % batch:
        raise Unknown(
            f"the heads' outputs have the shape {tuple(call.output.shape)} for a stream of {tuple(stream.shape)}"
        )
    output = call.output if call.output.ndim == 4 else call.output.unflatten(0, (batch, -1))
    heads = rearrange(output, "b h t d -> b t (h d)" if block.batch_first else "b h t d -> t b (h d)")
    if seen.given is None:
        return heads
    given = seen.given.reshape(heads.shape) if seen.given.numel() == heads.numel() else seen.given
    if given.shape != heads.shape or not decided((given == heads).all()):
        raise Unknown(
            "something stands between the heads' outputs and the output projection (a norm, a gate), or heads are "
            "joined in another order"
        )
    return given


def _check_affine(module: nn.Module, parts: tuple[Tensor, Tensor | None], given: Tensor, result: Tensor) -> None:
    """Compare some rows of what the module gave with what its matrix says."""
    rows, wanted = given.flatten(0, -2), widen(result).flatten(0, -2)
    some = slice(None, None, max(1, len(rows) // 64))
    weight, bias = parts
    found = widen(rows[some]).to(wanted.dtype) @ widen(weight).to(wanted.dtype).T
    found = found if bias is None else found + bias
    exact = result.dtype in TOLERANCES and is_plain(module)
    allowed = (TOLERANCES[result.dtype] if exact else QUANTISED) * wanted.abs().amax()
    if decided((found - wanted[some]).abs().amax() > allowed):
        raise Unknown(f"the output projection {type(module).__name__} is not affine, or hooks change what it gives")


def _scale(seen: _Result, named: Tensor | None) -> Tensor | None:
    """Find the layer scale: as the anatomy names it, else the parameter of the last module that took the result."""
    if named is not None or not seen.steps:
        return named
    module, given, gave = seen.steps[-1]
    vector = next(module.parameters()) if scales(module) and not is_norm(module) else None
    if vector is None or vector.shape != given.shape[-1:]:
        return None
    return vector if are_alike(widen(given) * widen(vector), widen(gave), given.dtype) else None


def _but_named(seen: _Result, named: Tensor | None) -> tuple[list[Step], Tensor]:
    """Return the steps without the layer scale, and what came out of them."""
    assert seen.now is not None
    if named is not None and seen.steps and any(p is named for p in seen.steps[-1][0].parameters()):
        return seen.steps[:-1], seen.steps[-1][1]
    return seen.steps, seen.now


def _sums(traced: BlockTrace, after: tuple[Tensor | None, ...], before: Tensor, beside: Tensor | None) -> list[Tensor]:
    """Return what may have been added: what entered norms later, or left the block, less what was before."""
    stream, leaving = traced.entering, traced.leaving
    assert stream is not None
    later = [x for x in after if x is not None and x.numel() == stream.numel()]
    sums = [widen(_as_stream(x, stream)) - widen(before) for x in later]
    if beside is None or beside.numel() != stream.numel() or leaving is None:
        return sums
    # Sub-layers side by side: both are added to what enters the block.
    return [*sums, widen(leaving) - widen(stream) - widen(_as_stream(beside, stream))]


def _factor(sums: list[Tensor], added: Tensor, stream: Tensor, module: nn.Module) -> Tensor | None:
    """Find what each channel is multiplied by before it is added; None for one."""
    rounding = 16 * torch.finfo(stream.dtype).eps * widen(stream).abs().amax()
    if any(are_alike(x, added, stream.dtype, rounding) for x in sums):
        return None
    size = added.square().flatten(0, -2).sum(dim=0)
    for x in (x for x in sums if decided(x.abs().amax() > rounding)):
        factor = (x * added).flatten(0, -2).sum(dim=0) / torch.where(size == 0, torch.ones_like(size), size)
        if stream.shape[:-1].numel() > 1 and are_alike(x, factor * added, stream.dtype, rounding):
            return factor
    raise Unknown(
        f"what is added to the residual stream is not what {type(module).__name__} gave, nor that by one factor for "
        "each channel"
    )


def _as_stream(x: Tensor, stream: Tensor) -> Tensor:
    """Return a state in the shape of the stream: tokens may have been put side by side (OPT)."""
    if x.shape == stream.shape or (x.ndim == stream.ndim and x.shape[:-1] == stream.shape[:-1]):
        return x
    if x.ndim == 2 and x.shape[0] == stream.shape[:-1].numel():
        return x.view(*stream.shape[:-1], x.shape[-1])
    raise Unknown(f"a state has the shape {tuple(x.shape)} where {tuple(stream.shape)} pass through the block")
