"""One operation of a model, as a rule sees it: its operands, and the backward function that a rule gives it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import RuleError

Pullback = Callable[..., tuple[Tensor | None, ...]]
"""Takes the relevance of an operation's result and the tensors it read; gives the relevance of each."""


@dataclass
class Flow:
    """What the next backward pass of a shared forward pass computes.

    `relevance` follows the rules, `gradient` the chain rule, and `block` the chain rule inside each block alone: the
    gradient stops where a block begins and where it has reached the result of attention.
    """

    kind: str = "relevance"


@dataclass(frozen=True)
class Operation:
    """A torch function, or a whole module, with the arguments it was called with.

    Args:
        name: what kind of operation it is, a key of the rule set.
        where: the module that runs it, for messages.
        block: the index of the block that runs it, None outside of the blocks.
        active: the tensors among the arguments that depend on what is explained; of a residual sum, the stream first.
        on_map: takes the relevance of some rows of an attention map, and which they are, in the backward pass.
        readers: how many linear layers read the same input, once the pass is over.
        masks: whether the model adds a mask to its attention scores, be it of zeros.
        gate: of a product of activations, the factor that came out of an activation.
        note: keeps something for whoever made the pass (`Capture.notes`).
        same: takes a tensor and the one that stands for it from now on.
        before: whether no block has run yet.
        batch_axis: the axis of the samples.
        flow: what each backward pass computes, where several are made of one forward pass; None for relevance alone.
        source: the tensor that all active operands are functions of, entry by entry; None where there is none.
    """

    name: str
    function: Callable[..., Any]
    args: tuple
    kwargs: dict
    where: str
    block: int | None
    active: tuple[Tensor, ...]
    on_map: Callable[[Tensor, slice], None]
    readers: Callable[[], int] = lambda: 1
    masks: bool = False
    gate: Tensor | None = None
    note: Callable[[Any], None] = lambda note: None
    same: Callable[[Tensor, Tensor], None] = lambda old, new: None
    before: bool = False
    batch_axis: int = 0
    flow: Flow | None = None
    source: Tensor | None = None

    def run(self) -> Any:  # noqa: ANN401
        """What the model computes."""
        return self.function(*self.args, **self.kwargs)

    def value(self) -> Any:  # noqa: ANN401
        """What the model computes, without a graph: a rule takes its place."""
        with torch.no_grad():
            return self.run()

    def again(self, operands: Mapping[int, Tensor]) -> Any:  # noqa: ANN401
        """What the operation gives with other operands in the place of its own, each keyed by the id of the old one."""
        args, kwargs = replaced((self.args, self.kwargs), operands)
        return self.function(*args, **kwargs)

    def overridden(self, pullback: Pullback, *inputs: Tensor) -> Tensor:
        """The model's own value, with relevance going back to these inputs by this rule."""
        return self.passing(self.run(), pullback, *inputs)

    def passing(self, out: Tensor, pullback: Pullback, *inputs: Tensor) -> Tensor:
        """What the model computed, with relevance going back to these inputs by this rule; gradients as they are."""
        if self.flow is None:
            return overridden(out, pullback, *inputs)
        return _Switched.apply(out, self.flow, pullback, *inputs)  # pyright: ignore[reportReturnType]

    def shared(self, x: Tensor, share: float, *, operand: bool = False) -> Tensor:
        """A tensor that receives this share of its relevance.

        Args:
            operand: whether it is read by attention, where the gradient of one block alone stops.
        """
        return _Shared.apply(x, share, self.flow, operand)  # pyright: ignore[reportReturnType]

    def constant(self, out: Tensor) -> Tensor:
        """A value that receives no relevance."""
        return out.detach() if self.flow is None else self.shared(out, 0.0)

    def stand_in(self, x: Tensor, pullback: Pullback) -> Tensor:
        """An operand's stand-in, which passes relevance on to it by this rule."""
        new = overridden(x, pullback, x)
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


class _Overridden(torch.autograd.Function):
    """A value that was computed already; its gradient is whatever the rule says."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, pullback: Pullback, *inputs: Tensor) -> Tensor:  # noqa: ANN401
        ctx.pullback = pullback
        ctx.save_for_backward(*inputs)
        return value

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, None, *ctx.pullback(relevance, *ctx.saved_tensors)


class _Switched(torch.autograd.Function):
    """A value with its own graph. Relevance takes the rule instead, and gradients the graph."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, flow: Flow, pullback: Pullback, *inputs: Tensor) -> Tensor:  # noqa: ANN401
        ctx.flow, ctx.pullback = flow, pullback
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        return value

    @staticmethod
    def backward(ctx: Any, given: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401  # pyright: ignore[reportIncompatibleMethodOverride]
        unused = (None,) * len(ctx.saved_tensors)
        if given is None or ctx.flow.kind != "relevance":
            return given, None, None, *unused
        return None, None, None, *ctx.pullback(given, *ctx.saved_tensors)


class _Shared(torch.autograd.Function):
    """A tensor that receives a share of its relevance and all of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float, flow: Flow | None, operand: bool) -> Tensor:  # noqa: ANN401, FBT001
        ctx.shares = {"relevance": share, "gradient": 1.0, "block": 0.0 if operand else 1.0}
        ctx.flow = flow
        ctx.set_materialize_grads(False)
        return x

    @staticmethod
    def backward(ctx: Any, given: Tensor | None) -> tuple[Tensor | None, None, None, None]:  # noqa: ANN401  # pyright: ignore[reportIncompatibleMethodOverride]
        share = ctx.shares["relevance" if ctx.flow is None else ctx.flow.kind]
        if given is None or share == 0:
            return None, None, None, None
        return given if share == 1 else share * given, None, None, None


class _BlockEntry(torch.autograd.Function):
    """The residual stream where a block begins: the gradient of one block alone goes no further."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, flow: Flow) -> Tensor:  # noqa: ANN401
        ctx.flow = flow
        ctx.set_materialize_grads(False)
        return x

    @staticmethod
    def backward(ctx: Any, given: Tensor | None) -> tuple[Tensor | None, None]:  # noqa: ANN401  # pyright: ignore[reportIncompatibleMethodOverride]
        return None if ctx.flow.kind == "block" else given, None


def at_block_entry(x: Tensor, flow: Flow) -> Tensor:
    """The stream that enters a block, cut off from the blocks below it in a backward pass of single blocks."""
    return _BlockEntry.apply(x, flow)  # pyright: ignore[reportReturnType]


def overridden(value: Tensor, pullback: Pullback, *inputs: Tensor) -> Tensor:
    """The value, with relevance going back to the inputs by this rule."""
    return _Overridden.apply(value.detach(), pullback, *inputs)  # pyright: ignore[reportReturnType]


def is_overridden(x: object) -> bool:
    """Whether a tensor is the result of a rule, which torch does not allow to be written in place."""
    made = x.grad_fn if isinstance(x, Tensor) else None
    return made is not None and made.name() in ("_OverriddenBackward", "_SwitchedBackward")


def gradient(operation: Operation) -> Any:  # noqa: ANN401
    """No rule but the chain rule."""
    return operation.run()


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


def _addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: int | float = 1, alpha: int | float = 1
) -> tuple[Tensor, Tensor, Tensor | None]:
    return mat1, mat2.T if alpha == 1 else alpha * mat2.T, input if beta == 1 else beta * input


def _product(input: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    if other.ndim != 2:
        raise RuleError(f"a product with weights of shape {tuple(other.shape)} is no linear layer a rule knows.")
    return input, other.T, None


READERS: dict[str, Callable[..., tuple[Tensor, Tensor, Tensor | None]]] = {
    "linear": _linear,
    "addmm": _addmm,
    "linear_product": _product,
}


def linear_parts(operation: Operation) -> tuple[Tensor, Tensor, Tensor | None]:
    """The input, the weight `[out, in]` and the bias of a linear layer, the latter two without their graph."""
    x, weight, bias = READERS[operation.name](*operation.args, **operation.kwargs)
    _only(x, operation, "a linear layer")
    return x, weight.detach(), None if bias is None else bias.detach()


def _only(x: Tensor, operation: Operation, what: str) -> None:
    """Refuse weights that depend on what is explained: the rules take them for constants."""
    if any(y is not x for y in operation.active):
        raise RuleError(
            f"{what} in the module {operation.where!r} has weights or biases that are computed from the input, and the "
            "rules take them for constants. Write it as products and sums of activations, which have their own rules."
        )


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,  # noqa: ANN401
    padding: Any = 0,  # noqa: ANN401
    dilation: Any = 1,  # noqa: ANN401
    groups: int = 1,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    return input, weight, {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


def convolution_parts(operation: Operation) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The input, the weight without its graph, and how the filters move."""
    x, weight, shape = _convolution(*operation.args, **operation.kwargs)
    _only(x, operation, "a convolution")
    if x.shape[1] != 3 or isinstance(shape["padding"], str):
        raise RuleError(
            f"a convolution of {x.shape[1]} channels in {operation.where!r}: rules for pixels know the patch embedding "
            "of a three-channel picture only."
        )
    return x, weight.detach(), shape


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor | None, float, list[int]]:
    return input, weight, eps, list(range(-len(normalized_shape), 0))


def _rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, Tensor | None, float, list[int]]:
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return input, weight, eps, list(range(-len(normalized_shape), 0))


NORMS = {"layer_norm": _layer_norm, "rms_norm": _rms_norm}


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, int, Tensor | None, float]:
    return input, num_groups, weight, eps


def group_norm_parts(operation: Operation) -> tuple[Tensor, int, Tensor | None, float]:
    """The input, the number of groups of channels, the weight without its graph, and epsilon."""
    x, groups, weight, eps = _group_norm(*operation.args, **operation.kwargs)
    _only(x, operation, "a norm")
    return x, groups, None if weight is None else weight.detach(), eps


def norm_parts(operation: Operation) -> tuple[Tensor, Tensor | None, float, list[int]]:
    """The input, the weight without its graph, epsilon and the axes of a norm."""
    x, weight, eps, axes = NORMS[operation.name](*operation.args, **operation.kwargs)
    _only(x, operation, "a norm")
    return x, None if weight is None else weight.detach(), eps, axes
