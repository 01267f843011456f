"""The one mode that hears attention."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from vitrail.capture.seams.arguments import positional
from vitrail.capture.seams.call import AttentionCall, read_sdpa
from vitrail.capture.seams.eager import MULTIPLYING, SOFTMAX, Follower, is_attention, with_values
from vitrail.capture.seams.einsum import is_plain
from vitrail.capture.seams.multihead import transparent_multihead
from vitrail.capture.seams.override import Override, bent_call
from vitrail.capture.shadow import hooks
from vitrail.errors import SeamError

HEARD = SOFTMAX | MULTIPLYING | {F.scaled_dot_product_attention, F.multi_head_attention_forward}


class _Listen(TorchFunctionMode):
    """Let every function run as the model wrote it, and report the attention calls among them.

    Args:
        bend: what becomes of attention maps, if anything.
        block: the index of the block that runs, None outside of the blocks.
        safe: give rows of attention that may see nothing the weight zero instead of NaN, as torch's own kernels do.
        detached: cut what attention gives from the graph, so that only paths within one token remain.
    """

    def __init__(
        self,
        emit: Callable[[AttentionCall], None],
        override: Override | None,
        block: Callable[[], int | None],
        *,
        safe: bool = False,
        detached: bool = False,
    ) -> None:
        super().__init__()
        self.emit, self.override, self.block, self.safe, self.detached = emit, override, block, safe, detached
        self.follower = Follower(emit)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:  # noqa: ANN401
        """Run the function; note it if it is, or is part of, an attention call."""
        kwargs = kwargs or {}
        if func not in HEARD and not self.follower.follows:  # first, because nearly all functions end here
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            # The mode is off while a torch function runs: enter it again for what happens inside.
            with self:
                return transparent_multihead(*args, **kwargs)
        args, kwargs = positional(func, args, kwargs)
        block = None if self.override is None else self.block()
        if func is F.scaled_dot_product_attention:
            return self._fused(block, args, kwargs)
        if func in SOFTMAX:
            return self._softmax(func, args, kwargs, block)
        if func in MULTIPLYING:
            return self._product(func, args, kwargs, block)
        out = func(*args, **kwargs)
        self.follower.changed(func, out, args, kwargs)
        return out

    def _softmax(self, func: Callable[..., Any], args: tuple, kwargs: dict, block: int | None) -> Any:  # noqa: ANN401
        """A softmax, its scores and its map changed if asked for."""
        over_keys = is_attention(func, args[0], args, kwargs)
        if over_keys and block is not None and self.override is not None and self.override.scores is not None:
            changed = self.override.scores(block, args[0])
            self.follower.same(args[0], changed)
            args = (changed, *args[1:])
        out = self._safe_softmax(func, args, kwargs) if self.safe and over_keys else func(*args, **kwargs)
        if not over_keys:
            self.follower.changed(func, out, args, kwargs)
            return out
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
        return out.detach() if self.detached and reading.applied is not None else out

    def _fused(self, block: int | None, args: tuple, kwargs: dict) -> Any:  # noqa: ANN401
        if self.override is None or block is None:
            out = F.scaled_dot_product_attention(*args, **kwargs)
            self.emit(read_sdpa(out, *args, **kwargs))
        else:
            fused = partial(F.scaled_dot_product_attention, *args, **kwargs)
            call = bent_call(read_sdpa(None, *args, **kwargs), self.override, block, fused)
            out = call.output
            self.emit(call)
        return out.detach() if self.detached and out is not None else out

    def _safe_softmax(self, func: Callable[..., Any], args: tuple, kwargs: dict) -> Any:  # noqa: ANN401
        """A softmax over keys whose rows of nothing but minus infinity are zero, and so is their gradient."""
        # The lowest float64 is minus infinity in the float32 that eager attention of transformers asks for.
        cast = args[0] if kwargs.get("dtype") is None else args[0].detach().to(kwargs["dtype"])
        empty = (cast == -torch.inf).all(dim=-1, keepdim=True)
        if not bool(empty.any()):
            return func(*args, **kwargs)
        return func(args[0].masked_fill(empty, 0.0), *args[1:], **kwargs).masked_fill(empty, 0.0)


# torch.compile would trace the mode into its graph, where gradients of what it keeps are lost: break the graph instead.
_Listen.__torch_function__._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]


@contextmanager
def attention_calls(
    emit: Callable[[AttentionCall], None],
    override: Override | None = None,
    block: Callable[[], int | None] = lambda: None,
    *,
    only_in: Sequence[nn.Module] = (),
    safe: bool = False,
    detached: bool = False,
) -> Iterator[Follower]:
    """Report the attention calls of every model that runs inside the block, in this thread.

    Args:
        bend: what becomes of attention maps, if anything.
        block: the index of the block that runs, None outside of the blocks.
        only_in: listen while one of these modules runs, and let all else run at its own speed; empty for everywhere.
        safe: give rows of attention that may see nothing the weight zero instead of NaN.
        detached: cut what attention gives from the graph.
    """
    mode = _Listen(emit, override, block, safe=safe, detached=detached)
    if not only_in:
        with mode:
            yield mode.follower
        return
    entered = ExitStack()  # empty while nobody listens: torch calls `leave` also where an error came before `enter`
    enter = lambda *_: entered.enter_context(mode) and None  # noqa: E731
    leave = lambda *_: entered.close()  # noqa: E731
    handles = [module.register_forward_pre_hook(enter, prepend=True) for module in only_in]
    handles += [module.register_forward_hook(leave, always_call=True) for module in only_in]
    with hooks(handles), entered:  # torch calls no hook after a KeyboardInterrupt
        yield mode.follower
