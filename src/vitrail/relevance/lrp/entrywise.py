"""The entrywise rules of conservative propagation and AttnLRP: by a Triton kernel on CUDA, else by torch.

Operands are in the precision of the pass, sums and products in float32 at least.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.recording import widen

TINY = 1e-10
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = 16_384
"""Entries of a row that a program holds at once."""
BLOCK = 4096


@cache
def _kernels() -> Any:  # noqa: ANN401
    """The kernels, imported when first used: Triton is not on every machine."""
    from vitrail.relevance.lrp import rule_kernels

    return rule_kernels


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _by_kernel(*operands: Tensor) -> bool:
    """Whether a kernel can do this: operands of one shape in one piece of memory each, on CUDA."""
    first = operands[0]
    return (
        first.is_cuda
        and _has_triton()
        and all(x.shape == first.shape and x.dtype in DTYPES and x.is_contiguous() for x in operands)
    )


def quotient(gradient: Tensor, value: Tensor, x: Tensor) -> Tensor:
    """The identity rule: `gradient * f(x) / x`, which stands for `gradient * f'(x)`."""
    if _by_kernel(gradient, value, x):
        return quotient_by_kernel(gradient, value, x)
    return (widen(gradient) * widen(value) / (widen(x) + TINY)).to(x.dtype)


def quotient_by_kernel(gradient: Tensor, value: Tensor, x: Tensor) -> Tensor:
    """The same by a kernel."""
    out = torch.empty_like(x)
    programs = -(-x.numel() // BLOCK)
    if programs:
        _kernels().quotient[(programs,)](gradient, value, x, out, x.numel(), TINY=TINY, BLOCK=BLOCK, num_warps=8)
    return out


def norm_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor | None, eps: float, axes: list[int], *, centered: bool = True
) -> Tensor:
    """The gradient of a layer norm whose standard deviation is constant (LN rule).

    Args:
        centered: whether the mean is a function of the input; else it is constant too.
    """
    if axes == [-1] and x.shape[-1] <= WIDEST and _by_kernel(gradient, x):
        return norm_by_kernel(gradient, x, weight, eps, centered=centered)
    scaled = widen(gradient) if weight is None else widen(gradient) * weight
    scaled = scaled * (widen(x).var(dim=axes, correction=0, keepdim=True) + eps).rsqrt()
    return (scaled - scaled.mean(dim=axes, keepdim=True) if centered else scaled).to(x.dtype)


def norm_by_kernel(gradient: Tensor, x: Tensor, weight: Tensor | None, eps: float, *, centered: bool) -> Tensor:
    """The same by a kernel, one program for each row."""
    out, width = torch.empty_like(x), x.shape[-1]
    rows, block = x.numel() // max(width, 1), 1 << max(width - 1, 1).bit_length()
    if rows:
        _kernels().layer_norm[(rows,)](
            gradient, x, x if weight is None else weight.contiguous(), out, width, eps, WEIGHTED=weight is not None,
            CENTERED=centered, BLOCK=block, num_warps=4 if block <= 2048 else 8,
        )  # fmt: skip
    return out
