"""The function mode that intercepts attention, and what changes an attention map on its way to the values.

`F.multi_head_attention_forward` hands itself to the active mode and then runs with the mode switched off, so that the
fused call inside is not intercepted; entering the mode again would only make it hand itself over again. A copy of the
same code object runs instead, with globals in which no function has an override.

The fused call cannot take a map, so an overridden call is computed in two steps, the map and its product with the
values.
"""

import types
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.capture.seams.call import AttentionCall, allowed_keys, call_shape, positional, read_sdpa
from vitrail.capture.seams.eager import MULTIPLYING, SOFTMAX, Follower, over_keys, with_values
from vitrail.capture.seams.einsum import is_plain
from vitrail.capture.torch_private import current_transform, fused_attention
from vitrail.errors import SeamError


@dataclass(frozen=True)
class Override:
    """Changes of the scores, the map and the values of the attention in each block, all `[b, h, t, ...]`.

    Args:
        weights: takes the block's index and its map after the softmax, gives the map that is used instead.
        values: the same for the values; None leaves them as they are.
        scores: the same for the scores before the softmax, scaled and masked.
        bias: takes the scores' shape `[b, h, q, k]` and their dtype, gives what is added to them in every block,
            `[b, 1, q, k]`. Fused calls stay fused: no map is computed. Not together with the others.
        exact: take the output of the model's own kernel where a map turns out to be unchanged, bit for bit.
    """

    weights: Callable[[int, Tensor], Tensor] = lambda block, weights: weights
    values: Callable[[int, Tensor], Tensor] | None = None
    scores: Callable[[int, Tensor], Tensor] | None = None
    bias: Callable[[torch.Size, torch.dtype], Tensor] | None = None
    exact: bool = False

    @property
    def changes_scores(self) -> bool:
        """Return True if anything changes the scores before the softmax."""
        return self.scores is not None or self.bias is not None


class _Replaced(torch.autograd.Function):
    """One tensor's values in the place of another, to which the gradient goes on if it passes."""

    @staticmethod
    def forward(ctx: Any, old: Tensor, new: Tensor, passes: bool) -> Tensor:  # noqa: ANN401, FBT001
        ctx.passes = passes
        return new.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:  # noqa: ANN401
        return gradients[0] if ctx.passes else None, None, None


def in_place_of(old: Tensor, new: Tensor) -> Tensor:
    """The new tensor where the graph had the old one: its gradient is known, but goes no further."""
    return cast(Tensor, _Replaced.apply(old, new.to(old.dtype).reshape_as(old), False))  # noqa: FBT003


def on_top_of(old: Tensor, new: Tensor) -> Tensor:
    """The new tensor where the graph had the old one: its gradient goes on to whatever made the old."""
    return cast(Tensor, _Replaced.apply(old, new.detach().to(old.dtype).reshape_as(old), True))  # noqa: FBT003


BLIND = Override(
    weights=lambda block, weights: in_place_of(weights, weights), values=lambda block, values: values.detach()
)
"""Attention as it is, that passes no gradient on to the tokens it read."""


def overridden_call(call: AttentionCall, override: Override, block: int, fused: Callable[[], Tensor]) -> AttentionCall:
    """The fused call again, with its map changed.

    Args:
        fused: the call as the model made it.
    """
    assert call.query is not None
    assert call.key is not None
    assert call.value is not None
    groups = call.query.shape[-3] // call.key.shape[-3]
    key, value = (x.repeat_interleave(groups, dim=-3) if groups > 1 else x for x in (call.key, call.value))
    change = None if override.scores is None else partial(override.scores, block)
    own = softmax(call, key, change)
    weights = override.weights(block, own)
    value = value if override.values is None else override.values(block, value)
    output = weights @ value
    if override.exact and override.values is None and change is None and torch.equal(weights, own):
        output = on_top_of(output, fused())
    return replace(call, key=key, value=value, weights=weights, output=output)


def biased(call: AttentionCall, bias: Tensor) -> Tensor:
    """The mask of a fused call with numbers added to the scores of the keys that may be seen."""
    assert call.query is not None
    allowed = allowed_keys(call.mask, call_shape(call), causal=call.causal, device=call.query.device)
    if call.mask is not None and call.mask.is_floating_point():
        bias = bias + call.mask
    return bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)


def _scores_with(bias: Callable[[torch.Size, torch.dtype], Tensor], scores: Tensor) -> Tensor:
    """Scores `[b, h, q, k]`, or `[b * h, q, k]` of one matrix for each sample and head, with what is added to them."""
    if scores.ndim == 4:
        return scores + bias(scores.shape, scores.dtype)
    added = bias(torch.Size((1, *scores.shape)), scores.dtype)[:, 0]
    return scores + added.repeat_interleave(len(scores) // len(added), dim=0)


def softmax(
    call: AttentionCall, key: Tensor, change: Callable[[Tensor], Tensor] | None = None, *, first_row: int = 0
) -> Tensor:
    """The map of a fused call, in the call's own dtype; rows that may see nothing are zero.

    Args:
        change: what becomes of the scores before the softmax.
        first_row: the place of the first query, where the call is a block of rows of another.
    """
    assert call.query is not None
    scores = (call.query * call.scale) @ key.transpose(-1, -2)
    size, device = (scores.shape[-2], scores.shape[-1]), scores.device
    allowed = allowed_keys(call.mask, size, causal=call.causal, device=device, first_row=first_row)
    if call.mask is not None and call.mask.is_floating_point():
        scores = scores + call.mask
    scores = scores if change is None else change(scores)
    if allowed is None:
        return scores.softmax(dim=-1)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)


def _transparent(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a python function that never hands itself to a torch function mode."""
    assert isinstance(function, types.FunctionType)
    namespace = dict(function.__globals__, has_torch_function=lambda *_: False)
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


transparent_multihead: Callable[..., tuple[Tensor, Tensor | None]] = _transparent(F.multi_head_attention_forward)


INTERCEPTED = SOFTMAX | MULTIPLYING | {fused_attention, F.multi_head_attention_forward}

Cut = Callable[[Tensor, tuple[int, ...]], Tensor]


class InterceptAttention(TorchFunctionMode):
    """Let every function run as the model wrote it, and report the attention calls among them.

    Args:
        override: what becomes of attention maps, if anything.
        block: the index of the block that runs, None outside of the blocks.
        safe: give rows of attention that may see nothing the weight zero instead of NaN, as torch's own kernels do.
        in_parts: whether powers of e over their sum are taken for a softmax.
        cut: what takes the place of an attention result, given with its axes in the order `[..., q, channels]`.
    """

    def __init__(
        self,
        emit: Callable[[AttentionCall], None],
        override: Override | None,
        block: Callable[[], int | None],
        *,
        safe: bool = False,
        in_parts: bool = True,
        cut: Cut | None = None,
    ) -> None:
        super().__init__()
        self.emit, self.override, self.block, self.safe, self.cut = emit, override, block, safe, cut
        self.follower = Follower(emit, in_parts)
        self.masks: list[tuple[Tensor | None, bool, torch.Size, Tensor]] = []  # blocks share one, or a few

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:  # noqa: ANN401
        """Run the function; note it if it is, or is part of, an attention call."""
        kwargs = kwargs or {}
        if func not in INTERCEPTED and not self.follower.follows:  # first, because nearly all functions end here
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            # The mode is off while a torch function runs: enter it again for what happens inside.
            with self:
                return transparent_multihead(*args, **kwargs)
        block = None if self.override is None else self.block()
        if func is fused_attention:
            return self._fused(block, args, kwargs)
        if kwargs:
            args, kwargs = positional(func, args, kwargs)
        if func in SOFTMAX:
            return self._softmax(func, args, kwargs, block)
        if func in MULTIPLYING:
            return self._product(func, args, kwargs, block)
        if self.follower.ends_softmax(func, args):
            return self._softmax_in_parts(func, args, kwargs, block)
        out = func(*args, **kwargs)
        self.follower.changed(func, out, args, kwargs)
        return out

    def _softmax_in_parts(self, func: Callable[..., Any], args: tuple, kwargs: dict, block: int | None) -> Any:  # noqa: ANN401
        """The last function of a softmax that the model writes itself: the map, changed if asked for."""
        if block is not None and self.override is not None and self.override.changes_scores:
            scores = self.follower.parts_of(args[0]).exponents
            if scores is None:
                raise SeamError("this method changes the scores of attention, but the model hides keys after exp.")
            return self._softmax(torch.softmax, (scores, -1), {}, block)
        out = func(*args, **kwargs)
        if block is not None and self.override is not None:
            out = self.override.weights(block, out)
        self.follower.softmaxed_in_parts(out, args[0])
        return out

    def _softmax(self, func: Callable[..., Any], args: tuple, kwargs: dict, block: int | None) -> Any:  # noqa: ANN401
        """A softmax: over keys, over keys that stand before queries, or over something else."""
        if args[0].ndim in (3, 4, 5) and over_keys(args[0], args, kwargs):
            return self._over_keys(func, args, kwargs, block)
        if not self.follower.keys_first(args, kwargs):
            out = func(*args, **kwargs)
            self.follower.changed(func, out, args, kwargs)
            return out

        def turned(scores: Tensor, *_: object, **__: object) -> Tensor:  # as the model runs it, so bit for bit the same
            return func(scores.transpose(-2, -1), *args[1:], **kwargs).transpose(-2, -1)

        with self:  # what is done to the axes is followed too
            scores = args[0].transpose(-2, -1)
        out = self._over_keys(turned, (scores, -1), {"dtype": kwargs.get("dtype")}, block)
        with self:
            return out.transpose(-2, -1)

    def _over_keys(self, func: Callable[..., Any], args: tuple, kwargs: dict, block: int | None) -> Any:  # noqa: ANN401
        """A softmax over keys, its scores and its map changed if asked for."""
        if block is not None and self.override is not None and self.override.changes_scores:
            bias, change = self.override.bias, self.override.scores
            changed = _scores_with(bias, args[0]) if change is None and bias is not None else args[0]
            changed = changed if change is None else change(block, changed)
            self.follower.same(args[0], changed)
            args = (changed, *args[1:])
        safe = self.safe and current_transform() is None  # which would have no values to look at
        out = self._safe_softmax(func, args, kwargs) if safe else func(*args, **kwargs)
        if block is not None and self.override is not None:
            out = self.override.weights(block, out)
        self.follower.softmaxed(out, args)
        return out

    def _product(self, func: Callable[..., Any], args: tuple, kwargs: dict, block: int | None) -> Any:  # noqa: ANN401
        """A product, its values changed if it applies an attention map and that is asked for."""
        reading = self.follower.read(func, args)
        if reading.applied is not None and block is not None and self.override is not None:
            if not is_plain(reading.applied.map_order):
                raise SeamError(
                    "this method changes attention maps [b, h, q, k], but the model's own has its axes in the order "
                    f"{reading.applied.map_order} of these, by an einsum."
                )
            if self.override.values is not None:
                reading = with_values(reading, partial(self.override.values, block))
        out = func(*reading.args, **kwargs)
        self.follower.multiplied(reading, func, out, kwargs)
        if self.cut is not None and reading.applied is not None:
            return self.cut(out, reading.applied.output_order)
        return out

    def _fused(self, block: int | None, args: tuple, kwargs: dict) -> Any:  # noqa: ANN401
        override = None if block is None else self.override
        if override is not None and override.bias is not None:
            args, kwargs = self._with_bias(override.bias, args, kwargs)
        fused = partial(fused_attention, *args, **kwargs)
        if override is None or block is None or override.bias is not None:
            call = read_sdpa(fused(), *args, **kwargs)
        else:
            call = overridden_call(read_sdpa(None, *args, **kwargs), override, block, fused)
        self.emit(call)
        out = call.output
        return out if self.cut is None or out is None else self.cut(out, tuple(range(out.ndim)))

    def _with_bias(
        self, bias: Callable[[torch.Size, torch.dtype], Tensor], args: tuple, kwargs: dict
    ) -> tuple[tuple, dict]:
        """The arguments of a fused call with what is added to its scores as its mask."""
        call = read_sdpa(None, *args, **kwargs)
        query, key = args[0], args[1]
        shape = torch.Size((*query.shape[:-1], key.shape[-2]))
        known = next(
            (m for mask, causal, of, m in self.masks if mask is call.mask and (causal, of) == (call.causal, shape)),
            None,
        )
        if known is None:
            known = biased(call, bias(shape, query.dtype))
            self.masks.append((call.mask, call.causal, shape, known))
        names = ("dropout_p", "is_causal", "scale", "enable_gqa")
        given = {**dict(zip(names, args[4:], strict=False)), **kwargs, "attn_mask": known, "is_causal": False}
        groups = query.shape[-3] // key.shape[-3]
        if given.pop("enable_gqa", False) and groups > 1:  # with a mask, only whole maps would do it
            return (query, *(x.repeat_interleave(groups, dim=-3) for x in args[1:3])), given
        return args[:3], given

    def _safe_softmax(self, func: Callable[..., Any], args: tuple, kwargs: dict) -> Any:  # noqa: ANN401
        """A softmax over keys whose rows of nothing but minus infinity are zero, and so is their gradient."""
        # The lowest float64 is minus infinity in the float32 that eager attention of transformers asks for.
        cast = args[0] if kwargs.get("dtype") is None else args[0].detach().to(kwargs["dtype"])
        empty = (cast == -torch.inf).all(dim=-1, keepdim=True)
        if not bool(empty.any()):
            return func(*args, **kwargs)
        return func(args[0].masked_fill(empty, 0.0), *args[1:], **kwargs).masked_fill(empty, 0.0)


class NotingAttention(InterceptAttention):
    """The same while it is `on`; tells of every function before it runs."""

    note: Callable[[Callable[..., Any], tuple, dict], None]
    on = False

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:  # noqa: ANN401
        """Note the function, and run it."""
        self.note(func, args, kwargs or {})
        return super().__torch_function__(func, types, args, kwargs) if self.on else func(*args, **(kwargs or {}))


# torch.compile would trace the mode into its graph, where gradients of what it keeps are lost: break the graph instead.
InterceptAttention.__torch_function__._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]
NotingAttention.__torch_function__._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]


@contextmanager
def attention_calls(
    emit: Callable[[AttentionCall], None],
    *,
    safe: bool = False,
    cut: Cut | None = None,
    within: Collection[nn.Module] = (),
) -> Iterator[Follower]:
    """Report the attention calls of every model that runs inside the block, in this thread.

    Args:
        safe, cut: as for `InterceptAttention`.
        within: the modules that make all calls, where that is known: all else runs at its own speed.
    """
    mode = InterceptAttention(emit, None, lambda: None, safe=safe, cut=cut)
    with _only_in(mode, within) if within else mode:
        yield mode.follower


@contextmanager
def _only_in(mode: InterceptAttention, modules: Collection[nn.Module]) -> Iterator[None]:
    """Intercept attention while one of these modules runs."""
    running: list[nn.Module] = []
    entered = ExitStack()

    def enter(module: nn.Module, args: tuple) -> None:
        if not running:
            entered.enter_context(mode)
        running.append(module)

    def leave(module: nn.Module, args: tuple, out: object) -> None:
        running[-1:] = []  # torch calls this also where an error came before `enter`
        if not running:
            entered.close()

    handles = [module.register_forward_pre_hook(enter, prepend=True) for module in modules]
    handles += [module.register_forward_hook(leave, always_call=True) for module in modules]
    try:
        yield
    finally:  # torch calls no hook after a KeyboardInterrupt
        entered.close()
        for handle in handles:
            handle.remove()
