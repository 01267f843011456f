"""The one mode that hears attention."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from vitrail.seams.call import AttentionCall, read_sdpa
from vitrail.seams.eager import Follower
from vitrail.seams.multihead import transparent_multihead


class _Listen(TorchFunctionMode):
    """Let every function run as the model wrote it, and report the attention calls among them."""

    def __init__(self, emit: Callable[[AttentionCall], None]) -> None:
        super().__init__()
        self.emit = emit
        self.follower = Follower(emit)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:  # noqa: ANN401
        """Run the function; note it if it is, or is part of, an attention call."""
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            # The mode is off while a torch function runs: enter it again for what happens inside.
            with self:
                return transparent_multihead(*args, **kwargs)
        out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self.emit(read_sdpa(out, *args, **kwargs))
            self.follower.forget()
        else:
            self.follower.hear(func, out, args, kwargs)
        return out


@contextmanager
def attention_calls(emit: Callable[[AttentionCall], None]) -> Iterator[None]:
    """Report the attention calls of every model that runs inside the block, in this thread."""
    with _Listen(emit):
        yield
