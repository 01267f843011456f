"""The arguments of a torch function by position, however the model wrote the call.

Models write `torch.matmul(a, b)` or `torch.matmul(input=a, other=b)`. Everything that reads operands reads them by
position, so operands given by keyword are moved to their place once, where a function is intercepted.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FIRST = ("input|self",)
PAIR = ("input|self", "other|mat2|tensor2|tensor")
SIGNATURES: dict[Callable[..., Any], tuple[str, ...]] = {
    **dict.fromkeys(
        (
            torch.matmul, Tensor.matmul, torch.bmm, Tensor.bmm, torch.add, Tensor.add, Tensor.add_, torch.sub,
            Tensor.sub, Tensor.sub_, torch.subtract, Tensor.subtract, Tensor.subtract_, torch.rsub, torch.mul,
            torch.multiply, Tensor.mul, Tensor.multiply, Tensor.mul_, torch.div, Tensor.div, Tensor.div_, torch.divide,
            Tensor.divide, torch.true_divide, Tensor.true_divide,
        ),
        PAIR,
    ),
    **dict.fromkeys((torch.baddbmm, Tensor.baddbmm, Tensor.baddbmm_), ("input|self", "batch1", "batch2")),
    **dict.fromkeys((torch.addmm, Tensor.addmm), ("input|self", "mat1", "mat2")),
    **dict.fromkeys((F.linear, F.conv2d, torch.conv2d), ("input", "weight", "bias")),
    **dict.fromkeys((F.layer_norm, torch.layer_norm, F.rms_norm), ("input", "normalized_shape", "weight")),
    **dict.fromkeys((F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax), ("input|self", "dim")),
    F.scaled_dot_product_attention: ("query", "key", "value", "attn_mask"),
    torch.where: ("condition", "input|self", "other"),
    torch.searchsorted: ("sorted_sequence", "input|self"),
    torch.polygamma: ("n", "input|self"),
    torch.special.polygamma: ("n", "input|self"),
}  # fmt: skip
"""The names of the first arguments, spellings separated by `|`. All other functions call the first one `input`."""


def positional(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The same arguments, the operands that were given by keyword moved to their positions."""
    if not kwargs:
        return args, kwargs
    moved, rest = list(args), dict(kwargs)
    for names in SIGNATURES.get(func, FIRST)[len(args) :]:
        name = next((name for name in names.split("|") if name in rest), None)
        if name is None:
            break
        moved.append(rest.pop(name))
    return tuple(moved), rest
