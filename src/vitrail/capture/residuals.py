"""When two numbers of a model agree: up to rounding, or up to what a sum over a path may lack."""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

SHARE = 0.05
"""How much of a change the sum of scores may lack. Below that, what is missing is smaller than what maps show."""
ROUNDING = 64.0
"""Units in the last place that a long sum may be off by."""


def precision(dtypes: Iterable[torch.dtype]) -> float:
    """Return the relative step between numbers of the coarsest of these types."""
    real = [torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point]
    return max(real, default=torch.finfo(torch.float32).eps)


def close(a: Tensor, b: Tensor, dtypes: Iterable[torch.dtype]) -> bool:
    """Return True if two answers of one model differ by no more than other kernels and other orders of sums explain."""
    # Models in float64 compute rotary angles and norms in float32.
    share = precision([a.dtype, b.dtype, torch.float32, *dtypes]) ** 0.5
    return bool(((a - b).abs() <= share * torch.maximum(a.abs(), b.abs()).clamp(min=1.0)).all())


def complete(
    residual: Float[Tensor, " b"],
    change: Float[Tensor, " b"],
    size: Float[Tensor, " b"],
    dtypes: Iterable[torch.dtype] = (),
) -> Bool[Tensor, " b"]:
    """Return True for samples whose scores add up to the change of the target, but for a small share and rounding.

    Args:
        residual: the change without the sum of the scores.
        change: `F(x) - F(0)`.
        size: the largest number that was added or subtracted on the way: of both answers and of the scores.
        dtypes: what the model computes in.
    """
    step = precision([residual.dtype, *dtypes])
    return residual.abs() <= SHARE * change.abs() + ROUNDING * step * size.abs()
