"""Whether attention calls have the tokens of the stream they were made in."""

from torch import Tensor

from vitrail.anatomy import Block
from vitrail.errors import SeamError
from vitrail.reading import call_shape
from vitrail.trace import Heard


def check_tokens(blocks: tuple[Block, ...], heard: list[Heard]) -> None:
    """Raise if the queries or keys of a block's attention are not as many as the tokens of its residual stream."""
    for index, (block, one) in enumerate(zip(blocks, heard, strict=False)):
        stream = next((x for name in ("leaving", "entering") if (x := one.states.get(name)) is not None), None)
        tokens = None if stream is None else _tokens(block, stream)
        queries, keys = call_shape(one.calls[0])
        if tokens is not None and {queries, keys} != {tokens}:
            raise SeamError(
                f"the attention map of block {index} has {queries} queries and {keys} keys, but {tokens} tokens pass "
                "through the block. A map over channels, windows, or tokens of another stream cannot be walked token "
                "by token."
            )


def _tokens(block: Block, stream: Tensor) -> int | None:
    """How many tokens a state of the stream has; None where they are packed."""
    return stream.shape[1 if block.batch_first else 0] if stream.ndim == 3 else None
