"""What a sub-layer adds to the residual stream, measured in the pass itself.

The output projection takes the heads' outputs to channels of the stream. Between it and the stream there may stand a
norm (Gemma 2 and 3, OLMo 2, Swin 2), a layer scale, a constant factor (Granite) or a gate. A follower watches which
modules take the projection's result on, and the sum with the stream is compared with what they gave: what is not
explained by them, by a named layer scale or by one factor for each channel is refused.

A norm is not linear. Its statistics are those of the pass: with them fixed, it multiplies each token's row by a number
(one over the deviation or root mean square of what the projection gave there) and then by one matrix for all tokens.

A projection may be a plain `nn.Linear`, but also carry LoRA adapters, hold integers that it dequantises, or make its
weight anew in every pass. Its matrix is what it does: `f(x) - f(0)`, measured by calling it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils.hooks import RemovableHandle

from vitrail.capture.graphs import decided
from vitrail.capture.recording import widen
from vitrail.capture.seams import AttentionCall
from vitrail.capture.seams.call import first_tensor
from vitrail.capture.torch_private import with_functions, writes_to
from vitrail.models.anatomy import Block
from vitrail.models.taking import every_module

PLAIN_LINEAR = (nn.Linear, NonDynamicallyQuantizableLinear)
PROBE = 64.0
"""The length of a probe. In half precision a weight that is added to a larger bias is rounded as the bias is."""
ROWS = 1024
"""Probes in one call."""


def is_plain(module: nn.Module) -> bool:
    """Whether a module is torch's own linear layer, or Hugging Face's `Conv1D`, with a weight of its own."""
    weight, kind = module._parameters.get("weight"), type(module)
    known = kind in PLAIN_LINEAR or (kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils")
    stored = type(weight) in (nn.Parameter, Tensor) and weight is not None and weight.is_floating_point()
    return known and stored and "forward" not in vars(module)


def width_of(module: nn.Module) -> int | None:
    """How many channels a linear layer of any class reads: as it says, or by the shape of its own weight."""
    width, weight = getattr(module, "in_features", None), module._parameters.get("weight")
    if isinstance(width, int):
        return width
    return weight.shape[-1] if weight is not None and weight.ndim == 2 else None


def is_affine(module: nn.Module, given: Tensor) -> bool:
    """Whether a module gives minus twice as much, its value at zero aside, where it is given minus twice as much."""
    rows = given.detach().flatten(0, -2)[:ROWS]
    try:
        nothing = at_zero(module, rows.shape[-1], rows)
        once, twice = (widen(_call_rows(module, factor * rows)) - nothing for factor in (1, -2))
    except Unknown:
        return False
    return _alike(twice, -2 * once, given.dtype)


def matrix(module: nn.Module, width: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """The weight `[out, in]` and the bias of an affine module.

    Args:
        width: how many channels it reads.
        like: a tensor of the device and, where the module stores no floating-point weight, of the dtype it reads.
    """
    if is_plain(module):
        weight, bias = module.weight, module.bias
        assert isinstance(weight, Tensor)
        # GPT-2 stores it the other way round.
        weight = weight.detach() if type(module) in PLAIN_LINEAR else weight.detach().T
        return weight, bias.detach() if isinstance(bias, Tensor) else None
    nothing = at_zero(module, width, like)
    eye = PROBE * torch.eye(width, dtype=_dtype_of(module, like), device=like.device)
    columns = [widen(_call_rows(module, some)) - nothing for some in eye.split(ROWS)]
    return torch.cat(columns).T / PROBE, nothing


def at_zero(module: nn.Module, width: int, like: Tensor) -> Tensor:
    """What an affine module adds: its value at zero."""
    return widen(_call_rows(module, torch.zeros(1, width, dtype=_dtype_of(module, like), device=like.device)))[0]


def _call_rows(module: nn.Module, rows: Tensor) -> Tensor:
    """The module on rows of channels, each a sequence of its own; without hooks, whose users expect real inputs."""
    # Weights of a tensor class of their own handle torch functions themselves, also where modes are off.
    try:
        with torch.no_grad(), with_functions():
            out = module.forward(rows[:, None])
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # modules fail in any way
        raise Unknown(f"{type(module).__name__} takes no rows of channels, as a convolution does not") from error
    return (out[0] if isinstance(out, (tuple, list)) else out)[:, 0]


def _dtype_of(module: nn.Module, like: Tensor) -> torch.dtype:
    weight = getattr(module, "weight", None)
    return weight.dtype if isinstance(weight, Tensor) and weight.is_floating_point() else like.dtype


TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
QUANTISED = 5e-2
"""How far results may be from what a matrix says, by the largest entry; the second for modules that quantise."""
EPSILONS = ("eps", "variance_epsilon", "epsilon")
PASSING = ("Dropout", "Identity", "DropPath", "StochasticDepth")
"""Modules that give what they were given, by the end of their class's name."""


class Unknown(Exception):
    """What is added cannot be put together from what is known; says why."""


@dataclass
class Followed:
    """What became of a module's result, until it was added to the stream."""

    given: Tensor | None = None  # what entered the module
    result: Tensor | None = None
    now: Tensor | None = None  # what was made of the result so far
    steps: list[tuple[nn.Module, Tensor, Tensor]] = field(default_factory=list)
    """The norms and scales that made it, each with what it was given and what it gave."""
    later: list[Tensor] = field(default_factory=list)  # what entered norms after: the sum with the stream may be one
    times: int = 0  # how often the module was called
    version: int = 0  # of the tensor `now`, which the model may write into later


@dataclass
class Adding:
    """What was seen of the two sub-layers of one block, and of the stream around them."""

    block: Block
    attention: Followed = field(default_factory=Followed)
    ffn: Followed = field(default_factory=Followed)
    entering: Tensor | None = None
    middle: Tensor | None = None  # the stream that the feed-forward part is added to
    leaving: Tensor | None = None

    def clear(self) -> None:
        """Let go of all tensors."""
        self.attention, self.ffn = Followed(), Followed()
        self.entering = self.middle = self.leaving = None


@dataclass(frozen=True)
class Added:
    """What attention and the feed-forward part add to the stream."""

    weight: Tensor | None = None  # `[d_model, heads * d]`, from the heads' outputs to what is added, less the next two
    rows: Tensor | None = None  # what each token's row is multiplied by beside, `[b, t]`; None for one
    scale: Tensor | None = None  # of each channel, as the anatomy or a module names it or as measured; None for one
    ffn_added: Tensor | None = None  # what the feed-forward part gave, without `ffn_scale`
    ffn_scale: Tensor | None = None
    missing: dict[str, str] = field(default_factory=dict)  # why the rest is not known, by the name it has in a layer


@dataclass(frozen=True)
class Watched:
    """The modules of a block that tell what is added: which give the results of its parts, and which take them."""

    callers: tuple[tuple[nn.Module, str, bool], ...]  # with the part's name, and whether it is the projection itself
    takers: tuple[nn.Module, ...]


def watched_in(block: Block) -> Watched:
    """The modules of a block that tell what is added."""
    parts = [(x, name) for x, name in ((block.output, "attention"), (block.ffn_output, "ffn")) if x is not None]
    callers = [(_caller(block, module), name, module) for module, name in parts]
    takers = tuple(filter(hands_on, every_module(block.module)))
    return Watched(tuple((caller, name, caller is module) for caller, name, module in callers), takers)


def hands_on(module: nn.Module) -> bool:
    """Whether a module computes nothing new of a result: a norm, a dropout, a layer scale."""
    return is_norm(module) or passes(module) or scales(module)


Hooks = list[tuple[nn.Module, Callable[..., Tensor | None]]]


def _hooks(adding: Adding, watched: Watched) -> tuple[Hooks, Hooks]:
    """What is called when modules of a block begin, and when they end."""
    block = adding.block
    reads = block.ffn_input if block.ffn_norm is None else block.ffn_norm
    before: Hooks = [(block.module, partial(_enter, adding))]
    before += [] if reads is None else [(reads, partial(_read, adding))]
    after: Hooks = [(block.module, partial(_leave, adding))]
    after += [(caller, partial(_give, adding, name, own)) for caller, name, own in watched.callers]
    return before, [*after, *((module, partial(_take, adding)) for module in watched.takers)]


def hooks_for(adding: Adding, watched: Watched, running: Callable[[], bool]) -> list[RemovableHandle]:
    """Hooks that fill in what is added in one block; to be set before those that read it.

    Args:
        running: whether it is this block that runs: several may share modules.
    """
    before, after = _hooks(adding, watched)

    def only_then(hook: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
        return lambda *given: hook(*given) if running() else None

    return [
        *(m.register_forward_pre_hook(only_then(hook), with_kwargs=True) for m, hook in before),
        *(m.register_forward_hook(only_then(hook), with_kwargs=True) for m, hook in after),
    ]


Event = tuple[nn.Module, tuple[Tensor, ...], tuple[Tensor | None, ...]]
"""A module that begins or ends in a pass that was kept: the first tensor it was called with, at its end also what it
gave first."""


def replayed(block: Block, events: Sequence[Event], call: AttentionCall) -> dict[str, str]:
    """Why what the parts of a block give is not what is added to the stream, from a pass that was kept."""
    adding = Adding(block)
    takers = {id(module): module for module, _, _ in events if hands_on(module)}
    before, after = _hooks(adding, replace(watched_in(block), takers=tuple(takers.values())))
    for module, given, gave in events:
        for _, hook in (one for one in (after if gave else before) if one[0] is module):
            hook(module, given, {}, *gave)
    return measured(adding, call, ffn=True).missing


def _enter(adding: Adding, module: nn.Module, args: tuple, kwargs: dict) -> None:
    adding.clear()
    adding.entering = _given(args, kwargs)


def _leave(adding: Adding, module: nn.Module, args: tuple, kwargs: dict, out: Any) -> None:  # noqa: ANN401
    adding.leaving = first_tensor(out)


def _read(adding: Adding, module: nn.Module, args: tuple, kwargs: dict) -> None:
    adding.middle = _given(args, kwargs)


def _give(
    adding: Adding,
    name: str,
    own: bool,  # noqa: FBT001
    module: nn.Module,
    args: tuple,
    kwargs: dict,
    out: Any,  # noqa: ANN401
) -> Tensor | None:
    """Begin to follow a result. Sub-layers side by side may be added in place, so the model goes on with a copy."""
    followed: Followed = getattr(adding, name)
    followed.given = _given(args, kwargs) if own else None
    followed.result = followed.now = first_tensor(out)
    followed.version = writes_to(followed.now)
    followed.times += 1
    beside = adding.middle is not None and adding.middle is adding.entering
    return out.clone() if beside and isinstance(out, Tensor) else None


def _take(adding: Adding, module: nn.Module, args: tuple, kwargs: dict, out: Any) -> None:  # noqa: ANN401
    """Follow a result through a module that takes it; keep what enters norms later."""
    given = _given(args, kwargs)
    for followed in (adding.attention, adding.ffn):
        if followed.now is None or given is None:
            continue
        if given is followed.now:
            followed.now = first_tensor(out)
            followed.version = writes_to(followed.now)
            if not passes(module):
                followed.steps.append((module, given, followed.now))
        elif is_norm(module):
            followed.later.append(given)


def _caller(block: Block, module: nn.Module) -> nn.Module:
    """The module that gives the projection's result: itself, or an `nn.MultiheadAttention`, which reads its weight."""
    holders = (m for m in every_module(block.module) if isinstance(m, nn.MultiheadAttention) and m.out_proj is module)
    return next(holders, module)


def _given(args: tuple, kwargs: dict) -> Tensor | None:
    return next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm over channels, by the name of its class."""
    name = type(module).__name__.lower()
    over_channels = "batch" not in name and "group" not in name
    return isinstance(module, (nn.LayerNorm, nn.RMSNorm)) or (name.endswith("norm") and over_channels)


def passes(module: nn.Module) -> bool:
    """Whether a module gives what it is given."""
    return type(module).__name__.endswith(PASSING)


def scales(module: nn.Module) -> bool:
    """Whether a module is a layer scale."""
    return "scale" in type(module).__name__.lower() and len(list(module.parameters())) == 1


def measured(adding: Adding, call: AttentionCall, *, ffn: bool, known: set[str] | None = None) -> Added:
    """What is added in a block that has run.

    Args:
        ffn: whether the feed-forward part is asked for.
        known: which parts were found, in an earlier pass over inputs of this form, to be added just as they come out of
            their last linear layer. Those are not compared again; those that are found to be so now are noted.
    """
    known = set() if known is None else known
    found, missing = Added(scale=adding.block.attention_scale), {}
    with torch.no_grad():
        try:
            found = _attention(adding, adding.block.output, call, known)
        except Unknown as why:
            missing["output_weight"] = str(why)
        if ffn and adding.block.ffn_output is not None:
            try:
                now, scale = _ffn(adding, adding.block.ffn_output, known)
                found = replace(found, ffn_added=now, ffn_scale=scale)
            except Unknown as why:
                missing["ffn_added"] = str(why)
    return replace(found, missing=missing)


def _attention(adding: Adding, module: nn.Module | None, call: AttentionCall, known: set[str]) -> Added:
    """The map from the heads' outputs to what is added to the stream."""
    if module is None:
        raise Unknown(
            "no module was found that takes the heads' outputs to channels of the residual stream: a norm or a gate "
            "stands between, or the model's own code projects them"
        )
    seen, stream = adding.attention, adding.entering
    named = _scale(seen, adding.block.attention_scale)
    _check_seen(adding, seen, module)
    assert seen.result is not None
    assert stream is not None
    if "attention" in known and not seen.steps and seen.given is not None:
        return Added(matrix(module, seen.given.shape[-1], seen.given)[0], None, named)
    given = _heads_outputs(seen, call, adding.block, stream)
    weight, bias = matrix(module, given.shape[-1], given)
    _check_affine(module, (weight, bias), given, seen.result)
    steps, base = _but_named(seen, named)
    weight, rows = _through(steps, weight, stream)
    added = widen(_as_stream(base, stream))
    if added.shape != stream.shape:
        raise Unknown(f"{type(module).__name__} gives {tuple(added.shape)} to a stream {tuple(stream.shape)}")
    added = added if named is None else added * named
    sums = _sums(adding, (*seen.later, adding.middle, adding.leaving), stream, adding.ffn.now)
    factor = _factor(sums, added, stream, module)
    scale = named if factor is None else factor if named is None else named * factor
    rows = rows if rows is None or adding.block.batch_first else rows.transpose(0, 1)
    if is_plain(module) and factor is None and not seen.steps:
        known.add("attention")
    return Added(weight, rows, scale)


def _ffn(adding: Adding, module: nn.Module, known: set[str]) -> tuple[Tensor, Tensor | None]:
    """What the feed-forward part adds to the stream, and the scale of each channel that it is still to be given."""
    seen, stream, named = adding.ffn, adding.entering, _scale(adding.ffn, adding.block.ffn_scale)
    _check_seen(adding, seen, module)
    assert stream is not None
    _, base = _but_named(seen, named)
    base = _as_stream(base, stream)
    if "ffn" in known:
        return base, named
    added = widen(base) if named is None else widen(base) * named
    before = stream if adding.middle is None else _as_stream(adding.middle, stream)
    if before.shape != stream.shape:
        raise Unknown(f"the feed-forward part reads tokens {tuple(before.shape)} of a stream {tuple(stream.shape)}")
    aside = _alike(widen(before), widen(stream), stream.dtype)
    sums = _sums(adding, (*seen.later, adding.leaving), before, adding.attention.now if aside else None)
    factor = _factor(sums, added, stream, module)
    if factor is None and not seen.steps:
        known.add("ffn")
    return base, named if factor is None else factor if named is None else named * factor


def _check_seen(adding: Adding, seen: Followed, module: nn.Module) -> None:
    """Refuse a part that did not run once, and results that are not there any more."""
    if seen.times != 1 or seen.now is None:
        raise Unknown(f"{type(module).__name__} was called {seen.times} times in the block, not once")
    if any(x.now is not None and writes_to(x.now) != x.version for x in (adding.attention, adding.ffn)):
        raise Unknown("the model writes into what one sub-layer gave, as by x += y, so it is not there any more")


def _heads_outputs(seen: Followed, call: AttentionCall, block: Block, stream: Tensor) -> Tensor:
    """What the projection was given, which has to be the heads' outputs side by side."""
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


def _scale(seen: Followed, named: Tensor | None) -> Tensor | None:
    """The layer scale: as the anatomy names it, else the parameter of the module that the result went through last."""
    if named is not None or not seen.steps:
        return named
    module, given, gave = seen.steps[-1]
    vector = next(module.parameters()) if scales(module) and not is_norm(module) else None
    if vector is None or vector.shape != given.shape[-1:]:
        return None
    return vector if _alike(widen(given) * widen(vector), widen(gave), given.dtype) else None


def _but_named(seen: Followed, named: Tensor | None) -> tuple[list[tuple[nn.Module, Tensor, Tensor]], Tensor]:
    """The steps without the layer scale, and what came out of them."""
    assert seen.now is not None
    if named is not None and seen.steps and any(p is named for p in seen.steps[-1][0].parameters()):
        return seen.steps[:-1], seen.steps[-1][1]
    return seen.steps, seen.now


def _through(
    steps: list[tuple[nn.Module, Tensor, Tensor]], weight: Tensor, stream: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The matrix after norms and scales, and what each row is multiplied by beside."""
    rows: Tensor | None = None
    for module, given, gave in steps:
        entered, left = (widen(_as_stream(x, stream)) for x in (given, gave))
        centred, gain, factor = norm_step(module, entered, left, given.dtype)
        weight = widen(weight).to(gain.dtype)
        weight = gain[:, None] * (weight - weight.mean(dim=0) if centred else weight)
        if factor is not None:
            rows = factor if rows is None else rows * factor
    return weight, rows


def norm_step(module: nn.Module, given: Tensor, gave: Tensor, dtype: torch.dtype) -> tuple[bool, Tensor, Tensor | None]:
    """A norm with its statistics as they were, or a scale: whether the mean is taken off, gain, rows' factors."""
    ones, zero = torch.ones_like(given[0, 0]), torch.zeros_like(given[0, 0])
    held = {name: widen(x.detach()) for name, x in module.named_parameters() if x.shape == ones.shape}
    gains = [ones, *(y for x in held.values() for y in (x, 1 + x))]
    shifts = [zero, *held.values()]
    coarse = torch.float32 if dtype is torch.float64 else dtype  # norms compute in float32 also where they read more
    eps = next((float(x) for name in EPSILONS if isinstance(x := getattr(module, name, None), (int, float))), 1e-6)
    for centred in (False, True):
        rest = given - given.mean(dim=-1, keepdim=True) if centred else given
        factor = (rest.square().mean(dim=-1, keepdim=True) + eps).rsqrt() if is_norm(module) else None
        unit = rest if factor is None else rest * factor
        for gain in gains:
            for shift in shifts:
                if _alike(unit * gain + shift, gave, coarse):
                    return centred, gain, None if factor is None else factor[..., 0]
    raise Unknown(
        f"{type(module).__name__} stands between the output projection and the residual stream, and is neither a norm "
        "nor a scale of a form that is known"
    )


def _sums(adding: Adding, after: tuple[Tensor | None, ...], before: Tensor, beside: Tensor | None) -> list[Tensor]:
    """What may have been added to the stream: what entered norms later, or left the block, less what was before."""
    stream, leaving = adding.entering, adding.leaving
    assert stream is not None
    later = [x for x in after if x is not None and x.numel() == stream.numel()]
    sums = [widen(_as_stream(x, stream)) - widen(before) for x in later]
    if beside is None or beside.numel() != stream.numel() or leaving is None:
        return sums
    # Sub-layers side by side: both are added to what enters the block.
    return [*sums, widen(leaving) - widen(stream) - widen(_as_stream(beside, stream))]


def _factor(sums: list[Tensor], added: Tensor, stream: Tensor, module: nn.Module) -> Tensor | None:
    """What each channel is multiplied by before it is added; None for one."""
    rounding = 16 * torch.finfo(stream.dtype).eps * widen(stream).abs().amax()
    if any(_alike(x, added, stream.dtype, rounding) for x in sums):
        return None
    size = added.square().flatten(0, -2).sum(dim=0)
    for x in (x for x in sums if decided(x.abs().amax() > rounding)):
        factor = (x * added).flatten(0, -2).sum(dim=0) / torch.where(size == 0, torch.ones_like(size), size)
        if stream.shape[:-1].numel() > 1 and _alike(x, factor * added, stream.dtype, rounding):
            return factor
    raise Unknown(
        f"what is added to the residual stream is not what {type(module).__name__} gave, nor that by one factor for "
        "each channel"
    )


def _alike(x: Tensor, y: Tensor, dtype: torch.dtype, rounding: Tensor | float = 0.0) -> bool:
    """Whether two tensors agree up to rounding, measured by the largest entry."""
    allowed = TOLERANCES.get(dtype, QUANTISED) * y.abs().amax() + rounding
    return decided((x - y).abs().amax() <= allowed)


def _as_stream(x: Tensor, stream: Tensor) -> Tensor:
    """A state in the shape of the stream: tokens may have been put side by side (OPT)."""
    if x.shape == stream.shape or (x.ndim == stream.ndim and x.shape[:-1] == stream.shape[:-1]):
        return x
    if x.ndim == 2 and x.shape[0] == stream.shape[:-1].numel():
        return x.view(*stream.shape[:-1], x.shape[-1])
    raise Unknown(f"a state has the shape {tuple(x.shape)} where {tuple(stream.shape)} pass through the block")
