"""What kind of operation each torch function is. A function that is not here stops the pass with an error."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.capture.seams.eager import PRODUCTS, SOFTMAX

ADDITIONS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
SUBTRACTIONS = {torch.sub, torch.subtract, Tensor.sub, Tensor.subtract, Tensor.__sub__}
REVERSED_SUBTRACTIONS = {torch.rsub, Tensor.__rsub__}
MULTIPLICATIONS = {torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__}
DIVISIONS = {
    torch.div, torch.divide, torch.true_divide, Tensor.div, Tensor.divide, Tensor.true_divide, Tensor.__truediv__
}  # fmt: skip
IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    Tensor.__iadd__: Tensor.add,
    Tensor.add_: Tensor.add,
    Tensor.__isub__: Tensor.sub,
    Tensor.sub_: Tensor.sub,
    Tensor.subtract_: Tensor.sub,
    Tensor.__imul__: Tensor.mul,
    Tensor.mul_: Tensor.mul,
    Tensor.__itruediv__: Tensor.div,
    Tensor.div_: Tensor.div,
}
"""`x += y` binds its result to x again, so a new tensor does as well, and what a rule has saved stays as it was."""

KINDS: dict[Callable[..., Any], str] = {
    F.linear: "linear",
    torch.addmm: "addmm",
    F.conv2d: "convolution",
    torch.conv2d: "convolution",
    F.layer_norm: "layer_norm",
    torch.layer_norm: "layer_norm",
    F.rms_norm: "rms_norm",
    F.scaled_dot_product_attention: "attention",
    torch.mean: "mean",
    Tensor.mean: "mean",
    torch.sum: "mean",
    Tensor.sum: "mean",
    **dict.fromkeys(PRODUCTS, "product"),
    **dict.fromkeys(SOFTMAX, "softmax"),
    **dict.fromkeys(
        (
            F.gelu, F.silu, F.relu, F.relu6, F.leaky_relu, F.elu, F.hardswish, F.mish, F.tanh, F.sigmoid, torch.tanh,
            torch.relu, torch.sigmoid, Tensor.tanh, Tensor.relu, Tensor.sigmoid,
        ),
        "activation",
    ),
    **dict.fromkeys((F.dropout, torch.dropout), "dropout"),
    **dict.fromkeys(
        (torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt, torch.std, Tensor.std, torch.var, Tensor.var), "deviation"
    ),
    Tensor.__setitem__: "write",
    **dict.fromkeys((torch.neg, Tensor.neg, Tensor.__neg__), "scale"),
}  # fmt: skip

TRANSPOSED = (Tensor.mT.__get__, Tensor.T.__get__)  # pyright: ignore[reportAttributeAccessIssue]

ROUTING: set[Callable[..., Any]] = {
    Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten, Tensor.unflatten, torch.unflatten,
    Tensor.transpose, torch.transpose, Tensor.permute, torch.permute, *TRANSPOSED,
    Tensor.contiguous, Tensor.clone, torch.clone, Tensor.to, Tensor.type_as, Tensor.float, Tensor.double,
    Tensor.expand, Tensor.expand_as, Tensor.repeat, torch.cat, torch.concat, torch.stack, torch.split, Tensor.split,
    torch.chunk, Tensor.chunk, Tensor.unbind, torch.unbind, Tensor.squeeze, torch.squeeze, Tensor.unsqueeze,
    torch.unsqueeze, Tensor.__getitem__, Tensor.masked_fill, torch.where, Tensor.narrow, Tensor.select,
    torch.index_select, Tensor.index_select, torch.gather, Tensor.gather, torch.roll, Tensor.repeat_interleave,
    torch.repeat_interleave, Tensor.detach, Tensor.requires_grad_, Tensor.register_hook, Tensor.swapaxes,
    Tensor.movedim, torch.movedim, Tensor.view_as, Tensor.type,
}  # fmt: skip
"""Functions that move entries about and change none: relevance goes where the entries came from."""


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an elementwise function that is written out in smaller functions."""
    library = type(module).__module__
    return library.startswith("transformers.activations") or type(module).__name__ in {
        "QuickGELU",
        "QuickGELUActivation",
    }


def is_rms_norm(module: nn.Module) -> bool:
    """Whether a module is a norm without a mean that is written out in smaller functions."""
    return type(module).__name__.lower().endswith("rmsnorm") and not isinstance(module, nn.RMSNorm)


MODULES: tuple[tuple[str, Callable[[nn.Module], bool]], ...] = (
    ("activation", is_activation),
    ("rms_norm_module", is_rms_norm),
)
"""Modules that are one operation although they are written as several."""
