"""The operands of an operation, however the model wrote the call."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import RuleError
from vitrail.relevance.lrp.operation import Operation


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


def norm_parts(operation: Operation) -> tuple[Tensor, Tensor | None, float, list[int]]:
    """The input, the weight without its graph, epsilon and the axes of a norm."""
    x, weight, eps, axes = NORMS[operation.name](*operation.args, **operation.kwargs)
    _only(x, operation, "a norm")
    return x, None if weight is None else weight.detach(), eps, axes
