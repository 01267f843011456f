"""One operation of a model, as a rule sees it, and how a rule gives it another way back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Pullback = Callable[..., tuple[Tensor | None, ...]]
"""Takes the relevance of an operation's result and the tensors it read; gives the relevance of each."""


@dataclass(frozen=True)
class Operation:
    """A torch function, or a whole module, with the arguments it was called with.

    Args:
        name: what kind of operation it is, a key of the rule set.
        where: the module that runs it, for messages.
        block: the index of the block that runs it, None outside of the blocks.
        active: the tensors among the arguments that depend on what is explained; of a residual sum, the stream first.
        tell: takes the relevance of an attention map, in the backward pass.
        readers: how many linear layers read the same input, once the pass is over.
        masks: whether the model adds a mask to its attention scores, be it of zeros.
        gate: of a product of activations, the factor that came out of an activation.
        note: keeps something for whoever made the pass (`Trace.notes`).
        same: is told that one tensor stands for another.
        before: whether no block has run yet.
        batch_axis: the axis of the samples.
    """

    name: str
    function: Callable[..., Any]
    args: tuple
    kwargs: dict
    where: str
    block: int | None
    active: tuple[Tensor, ...]
    tell: Callable[[Tensor], None]
    readers: Callable[[], int] = lambda: 1
    masks: bool = False
    gate: Tensor | None = None
    note: Callable[[Any], None] = lambda note: None
    same: Callable[[Tensor, Tensor], None] = lambda old, new: None
    before: bool = False
    batch_axis: int = 0

    def run(self) -> Any:  # noqa: ANN401
        """What the model computes."""
        return self.function(*self.args, **self.kwargs)

    def again(self, operands: Mapping[int, Tensor]) -> Any:  # noqa: ANN401
        """What the operation gives with other operands in the place of its own, each keyed by the id of the old one."""
        args, kwargs = replaced((self.args, self.kwargs), operands)
        return self.function(*args, **kwargs)

    def bent(self, pullback: Pullback, *inputs: Tensor) -> Tensor:
        """The model's own value, with relevance going back to these inputs by this rule."""
        return bent(self.run(), pullback, *inputs)

    def stand_in(self, x: Tensor, pullback: Pullback) -> Tensor:
        """An operand's stand-in, which passes relevance on to it by this rule."""
        new = bent(x, pullback, x)
        self.same(x, new)
        return new


def replaced(given: Any, operands: Mapping[int, Tensor]) -> Any:  # noqa: ANN401
    """Arguments, however they are nested, with some tensors replaced."""
    if isinstance(given, Tensor):
        return operands.get(id(given), given)
    if isinstance(given, dict):
        return {name: replaced(x, operands) for name, x in given.items()}
    if type(given) in (tuple, list):
        return type(given)(replaced(x, operands) for x in given)
    return given


Rule = Callable[[Operation], Any]


class _Bent(torch.autograd.Function):
    """A value that was computed already; its gradient is whatever the rule says."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, pullback: Pullback, *inputs: Tensor) -> Tensor:  # noqa: ANN401
        ctx.pullback = pullback
        ctx.save_for_backward(*inputs)
        return value

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, None, *ctx.pullback(relevance, *ctx.saved_tensors)


def bent(value: Tensor, pullback: Pullback, *inputs: Tensor) -> Tensor:
    """The value, with relevance going back to the inputs by this rule."""
    return _Bent.apply(value.detach(), pullback, *inputs)  # pyright: ignore[reportReturnType]


def gradient(operation: Operation) -> Any:  # noqa: ANN401
    """No rule but the chain rule."""
    return operation.run()
