"""The straight path from nothing to the input, for methods that average gradients along it.

Several points of the path can run at once: the batch is then repeated, copy after copy, one point for each copy.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.relevance.runner import Runner


def check_counts(*, steps: int, batch: int) -> None:
    """Raise unless there are points on the path and some of them run at a time."""
    if steps < 1 or batch < 1:
        raise OptionError(f"steps={steps} and batch={batch}, but both must be at least 1.")


def with_both_ends(steps: int) -> list[float]:
    """Evenly spaced points from 0 to 1, both included; one point alone is 0."""
    return torch.linspace(0, 1, steps, dtype=torch.float64).tolist()


def midpoints(steps: int) -> list[float]:
    """The middles of equal parts of the way from 0 to 1."""
    return [(step + 0.5) / steps for step in range(steps)]


def path_sum(gradients: Callable[[list[float]], Tensor], points: list[float], *, batch: int) -> Tensor | None:
    """The sum over all points, some of them at a time; None where there is no point.

    Args:
        gradients: takes some points and gives the sum over them.
    """
    total: Tensor | None = None
    for start in range(0, len(points), batch):
        found = gradients(points[start : start + batch])
        total = found if total is None else total + found
    return total


def scaled(x: Tensor, points: list[float], *, axis: int = 0) -> Tensor:
    """The copies of a batch, each times its point.

    Args:
        axis: where the samples of all copies are counted.
    """
    factors = x.new_tensor(points).repeat_interleave(x.shape[axis] // len(points))
    return x * factors.view([-1 if i == axis else 1 for i in range(x.ndim)])


def copies_summed(x: Tensor, copies: int, *, axis: int = 0) -> Tensor:
    """One tensor for the batch: the sum over its copies, which stand one after the other."""
    return x.unflatten(axis, (copies, -1)).sum(dim=axis)


def sample_axis(runner: Runner) -> int:
    """Where the residual stream counts samples: some models keep time first."""
    return 0 if runner.body.blocks[0].batch_first else 1
