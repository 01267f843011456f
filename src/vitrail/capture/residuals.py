"""When two numbers of a model agree: up to rounding, or up to what a sum over a path may lack."""

from collections.abc import Collection

import torch
from jaxtyping import Bool, Float
from torch import Tensor

SHARE = 0.05
"""How much of a change the sum of scores may lack. Below that, what is missing is smaller than what maps show."""
ROUNDING = 64.0
"""Units in the last place that a long sum may be off by."""


MORE = "Take more steps, or a method without a path, such as attn_lrp."


def precision(dtypes: Collection[torch.dtype]) -> float:
    """Return the relative step between numbers of the coarsest of these types."""
    real = [torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point]
    return max(real, default=torch.finfo(torch.float32).eps)


def close(a: Tensor, b: Tensor, dtypes: Collection[torch.dtype]) -> bool:
    """Return True if two answers of one model differ by no more than other kernels and other orders of sums explain."""
    # Models in float64 compute rotary angles and norms in float32.
    share = precision([a.dtype, b.dtype, torch.float32, *dtypes]) ** 0.5
    return bool(((a - b).abs() <= share * torch.maximum(a.abs(), b.abs()).clamp(min=1.0)).all())


def incomplete(
    residual: Float[Tensor, " b"],
    at_input: Float[Tensor, " b"],
    at_zero: Float[Tensor, " b"],
    largest: Float[Tensor, " b"],
    dtypes: Collection[torch.dtype] = (),
) -> Bool[Tensor, " b"]:
    """Return the samples whose scores do not add up to the change of the target.

    They may lack a small share of the change, and what rounding explains.

    Args:
        residual: `F(x) - F(0)` without the sum of the scores.
        at_input, at_zero: the target.
        largest: the size of the largest score of each sample.
        dtypes: what the model computes in.
    """
    size = torch.maximum(torch.maximum(at_input.abs(), at_zero.abs()), largest)
    allowed = SHARE * (at_input - at_zero).abs() + ROUNDING * precision([residual.dtype, *dtypes]) * size
    return ~(residual.abs() <= allowed)  # NaN is no agreement


def not_complete(
    residual: Float[Tensor, " b"],
    at_input: Float[Tensor, " b"],
    at_zero: Float[Tensor, " b"],
    largest: Float[Tensor, " b"],
    dtypes: Collection[torch.dtype] = (),
    *,
    steps: int,
) -> str | None:
    """Return what to say where scores do not add up to the change of the target; None where they do.

    Args:
        residual, at_input, at_zero, largest, dtypes: as for `incomplete`.
        steps: points that the path was summed over.
    """
    wrong = incomplete(residual, at_input, at_zero, largest, dtypes)
    if not bool(wrong.any()):
        return None
    sample = int(wrong.int().argmax())
    change = at_input - at_zero
    return (
        f"integrated_gradients did not converge in {steps} steps: from an input of zeros to sample {sample} the target "
        f"changes by {change[sample].item():.4g}, and its scores add up to {(change - residual)[sample].item():.4g}."
    )
