"""The kind of every torch function that rules know. A function that is not here stops the pass with an error."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.capture.seams.eager import PRODUCTS, SOFTMAX
from vitrail.capture.seams.intercept import transparent_multihead
from vitrail.capture.torch_private import fused_attention

ADDITIONS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
SUBTRACTIONS = {torch.sub, torch.subtract, Tensor.sub, Tensor.subtract, Tensor.__sub__}
REVERSED_SUBTRACTIONS = {torch.rsub, Tensor.__rsub__}
MULTIPLICATIONS = {torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__}
DIVISIONS = {
    torch.div, torch.divide, torch.true_divide, Tensor.div, Tensor.divide, Tensor.true_divide, Tensor.__truediv__
}  # fmt: skip
POWERS = {torch.pow, Tensor.pow, Tensor.__pow__}
ROOTS = (0.5, -0.5, -1)
"""Exponents of a deviation, or of one over it; other powers are functions of single entries."""
IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    **dict.fromkeys((Tensor.__iadd__, Tensor.add_), Tensor.add),
    **dict.fromkeys((Tensor.__isub__, Tensor.sub_, Tensor.subtract_), Tensor.sub),
    **dict.fromkeys((Tensor.__imul__, Tensor.mul_), Tensor.mul),
    **dict.fromkeys((Tensor.__itruediv__, Tensor.div_), Tensor.div),
}
"""`x += y` binds its result to x again, so a new tensor does as well, and what a rule has saved stays as it was."""

STATEMENTS = {Tensor.add_, Tensor.mul_, Tensor.div_}
"""Methods whose result is seldom bound to a name: the tensor itself is read again."""

KINDS: dict[Callable[..., Any], str] = {
    F.linear: "linear",
    torch.addmm: "addmm",
    **dict.fromkeys((F.conv2d, torch.conv2d), "convolution"),
    **dict.fromkeys((F.layer_norm, torch.layer_norm), "layer_norm"),
    F.rms_norm: "rms_norm",
    F.group_norm: "group_norm",
    fused_attention: "attention",
    **dict.fromkeys((torch.mean, Tensor.mean, torch.sum, Tensor.sum), "mean"),
    **dict.fromkeys(PRODUCTS, "product"),
    **dict.fromkeys(SOFTMAX, "softmax"),
    **dict.fromkeys(
        (
            F.gelu, F.silu, F.relu, F.relu6, F.leaky_relu, F.elu, F.hardswish, F.mish, F.tanh, F.sigmoid, torch.tanh,
            torch.relu, torch.sigmoid, Tensor.tanh, Tensor.relu, Tensor.sigmoid, *POWERS, torch.erf, Tensor.erf,
            torch.exp, Tensor.exp, torch.square, Tensor.square, torch.clamp, Tensor.clamp, torch.clip, Tensor.clip,
            torch.abs, Tensor.abs, torch.log, Tensor.log, torch.log1p, Tensor.log1p, F.softplus, F.logsigmoid,
            F.hardtanh, F.selu, F.celu, F.hardsigmoid,
        ),
        "activation",
    ),
    **dict.fromkeys((F.dropout, torch.dropout), "dropout"),
    **dict.fromkeys(
        (
            torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt, torch.std, Tensor.std, torch.var, Tensor.var,
            torch.norm, Tensor.norm, torch.linalg.norm, torch.linalg.vector_norm,
        ),
        "deviation",
    ),
    F.normalize: "normalize",
    F.grid_sample: "sampled",
    **dict.fromkeys((torch.einsum, torch.functional.einsum), "einsum"),
    **dict.fromkeys(
        (
            F.conv1d, torch.conv1d, F.conv3d, torch.conv3d, F.interpolate, F.conv_transpose1d, F.conv_transpose2d,
            F.conv_transpose3d, torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d, F.fold,
            torch.cumsum, Tensor.cumsum, torch.index_add, Tensor.index_add, torch.scatter_add, Tensor.scatter_add,
            F.avg_pool1d, F.avg_pool2d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.batch_norm, torch.batch_norm,
            torch.trace, torch.diagonal, Tensor.diagonal,
        ),
        "linear_map",
    ),
    **dict.fromkeys(
        (
            Tensor.__setitem__, Tensor.index_add_, Tensor.index_copy_, Tensor.index_put_, Tensor.scatter_,
            Tensor.scatter_add_, Tensor.copy_, Tensor.masked_fill_, Tensor.masked_scatter_,
        ),
        "write",
    ),
    **dict.fromkeys((torch.neg, Tensor.neg, Tensor.__neg__), "scale"),
}  # fmt: skip

GROUPED = ("grouped_mm", "_grouped_mm", "grouped_mm_fallback")
"""Names of products of groups of rows with a matrix of weights for each, as experts are computed at once."""

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
    Tensor.movedim, torch.movedim, Tensor.view_as, Tensor.type, torch.topk, Tensor.topk, torch.max, Tensor.max,
    torch.amax, Tensor.amax, torch.min, Tensor.min, torch.amin, Tensor.amin, torch.sort, Tensor.sort, torch.scatter,
    Tensor.scatter, torch.index_copy, Tensor.index_copy, torch.index_put, Tensor.index_put, torch.masked_fill,
    torch.masked_scatter, Tensor.masked_scatter, torch.masked_select, Tensor.masked_select, torch.broadcast_to,
    Tensor.broadcast_to, torch.tile, Tensor.tile, torch.flip, Tensor.flip, Tensor.roll, Tensor.reshape_as, torch.narrow,
    torch.select, torch.take_along_dim, Tensor.take_along_dim, torch.swapaxes, torch.hstack, torch.vstack,
    torch.view_as_complex, torch.view_as_real, Tensor.unfold, Tensor.swapdims, torch.swapdims, torch.moveaxis,
    Tensor.moveaxis, torch.t, Tensor.t, Tensor.bfloat16, Tensor.half, Tensor.where, Tensor.cpu, Tensor.cuda, F.pad,
    F.max_pool2d, torch.concatenate, Tensor.unsqueeze_, Tensor.squeeze_, torch.maximum, Tensor.maximum, torch.minimum,
    Tensor.minimum, F.unfold,
}  # fmt: skip
"""Functions that move entries about and change none: relevance goes where the entries came from."""


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: int | float = 1, alpha: int | float = 1) -> Tensor:
    """A batch of products and what is added to them, as two operations."""
    product = torch.bmm(batch1, batch2)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (input if beta == 1 else input * beta)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """A gated linear unit, as a product of activations."""
    value, gate = input.chunk(2, dim=dim)
    return value * gate.sigmoid()


WRITTEN_OUT: dict[Callable[..., Any], Callable[..., Any]] = {
    F.multi_head_attention_forward: transparent_multihead,
    F.glu: glu,
    torch.baddbmm: baddbmm,
    Tensor.baddbmm: baddbmm,
    Tensor.baddbmm_: baddbmm,
}
"""Functions that do several operations at once, each of which has a rule of its own."""


QUERIES: set[Callable[..., Any]] = {
    *(
        getattr(Tensor, name).__get__
        for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "layout", "grad_fn", "is_cuda",
                     "is_cpu", "is_meta", "is_mps", "is_sparse", "is_quantized", "is_nested", "itemsize", "nbytes",
                     "_base")
    ),
    Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.stride, Tensor.storage_offset,
    Tensor.is_floating_point, torch.is_floating_point, Tensor.is_complex, torch.is_complex, Tensor.is_contiguous,
    Tensor.element_size, Tensor.get_device, Tensor.__len__, Tensor.data_ptr, Tensor.is_conj, Tensor.is_neg,
    Tensor.is_inference, Tensor.is_signed, torch.numel,
}  # fmt: skip
"""Functions that ask what a tensor is, and none of its entries."""


ACTIVATIONS = ("gelu", "geluactivation", "silu", "swish", "siluactivation")


def is_activation(module: nn.Module) -> bool:
    """Return True if a module is an elementwise function that is written out in smaller functions."""
    kind = type(module)
    bare = not module._modules and not module._parameters and not kind.__module__.startswith("torch.")
    return kind.__module__.startswith("transformers.activations") or (
        bare and kind.__name__.lower().endswith(ACTIVATIONS)
    )


def is_rms_norm(module: nn.Module) -> bool:
    """Return True if a module is a norm without a mean that is written out in smaller functions."""
    return type(module).__name__.lower().endswith("rmsnorm") and not isinstance(module, nn.RMSNorm)


MODULES: dict[str, Callable[[nn.Module], bool]] = {"activation": is_activation, "rms_norm_module": is_rms_norm}
"""Modules that are one operation although they are written as several."""


def kind_of(
    func: Callable[..., Any], args: tuple[Any, ...], active: Sequence[Tensor], stream: torch.Size | None
) -> str:
    """Return the kind of operation that a function is on these arguments."""
    both = len(active) > 1 or (len(args) > 1 and args[0] is args[1])
    if func in ADDITIONS:
        if not both:
            return "shift"
        return "residual" if active[0].shape == active[1].shape == stream else "sum"
    if func in MULTIPLICATIONS:
        return "gate" if both else "scale"
    if func in DIVISIONS:
        over = any(x is active[0] for x in args[:1])
        return "quotient" if not over else "over_constant" if both else "scale"
    if KINDS.get(func) == "product":
        return "product" if both else "linear_product" if any(x is active[0] for x in args[:1]) else "right_product"
    if func in POWERS and len(args) > 1 and args[1] in ROOTS:
        return "deviation"
    if func is Tensor.__getitem__ and _picks_a_token(*args):
        return "select"
    grouped = not both and getattr(func, "__name__", "") in GROUPED
    return KINDS.get(func) or ("route" if func in ROUTING else "linear_map" if grouped else "unknown")


def _picks_a_token(x: Tensor, index: object) -> bool:
    return x.ndim == 3 and isinstance(index, tuple) and len(index) > 1 and isinstance(index[1], int)
