"""What a model does behind its last block, done again with other tokens."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.capture.hooks import with_stream_of
from vitrail.capture.outputs import read_output
from vitrail.capture.runner import Runner
from vitrail.capture.shadow import autograd
from vitrail.models.anatomy import Block

Tokens = Float[Tensor, "b t d"]


def leaving(runner: Runner, index: int) -> Tokens:
    """What a block gave in the pass that has been made, with its graph."""
    return _batch_first(runner.body.blocks[index], runner.run.trace.blocks[index].states["leaving"])


def behind(runner: Runner, tokens: Tokens) -> Float[Tensor, " b"]:
    """The scalar, had the last block given these tokens. The blocks are not run again, all else is."""
    blocks, given = runner.body.blocks, [captured.returned for captured in runner.run.trace.blocks]
    given[-1] = with_stream_of(given[-1], _batch_first(blocks[-1], tokens))
    with ExitStack() as stack:
        stack.enter_context(autograd(gradients=True))
        for block, out in zip(blocks, given, strict=True):
            stack.enter_context(standing_in(block.module, out))
        inputs = runner.run.inputs
        output = read_output(runner.model(*inputs.args, **inputs.kwargs), span=runner.body.anatomy.span)
    return runner.part.read(output.wide, runner.rows)


@contextmanager
def standing_in(module: nn.Module, out: object) -> Iterator[None]:
    """Let the module of a shadow give this instead of what it would compute."""
    own = vars(module).get("forward")
    vars(module)["forward"] = lambda *args, **kwargs: out  # the module's own attribute hides its class's
    try:
        yield
    finally:
        del vars(module)["forward"]
        if own is not None:
            vars(module)["forward"] = own


def _batch_first(block: Block, x: Tensor) -> Tensor:
    return x if block.batch_first else x.transpose(0, 1)
