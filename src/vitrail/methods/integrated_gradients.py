"""Integrated gradients: the gradient averaged along the path from zero to the input, times the input; and at one point.

Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks", ICML 2017, arXiv:1703.01365.
Paper -> code: x -> the picture or the embeddings where the gradient ends, x' -> zero, m -> `steps`, F -> the scalar.
Eq. 3 takes points at the ends of m equal intervals. Their middles are closer to the integral and avoid zero, where the
layer norm of an embedding of zeros has a huge gradient.

Gradient times input, at the input alone: Shrikumar et al., "Not Just a Black Box: Learning Important Features Through
Propagating Activation Differences", 2016, arXiv:1605.01713.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.pass_options import PassOptions
from vitrail.capture.residuals import MORE, not_complete
from vitrail.capture.shadow import dtypes_of
from vitrail.methods.options import at_level, check_level, tokens_first
from vitrail.methods.paths import check_counts, copies_summed, midpoints, path_sum, sample_axis, scaled
from vitrail.relevance import Result
from vitrail.relevance.runner import RerunMethod, Runner


def attributed(x: Float[Tensor, " *shape"], gradients: Float[Tensor, " *shape"], steps: int) -> Tensor:
    """Eq. 3 with a baseline of zero: x times the mean of the gradients, given their sum."""
    return x * gradients / steps


def residual(
    found: Float[Tensor, " b *rest"], at_input: Float[Tensor, " b"], at_baseline: Float[Tensor, " b"]
) -> Float[Tensor, " b"]:
    """Proposition 1, completeness: `F(x) - F(x') - sum`, which shrinks as the steps grow in number."""
    return at_input - at_baseline - found.flatten(1).sum(dim=1)


def gradient_sum(
    runner: Runner, level: str, *, steps: int, batch: int, axis: int = 0, see: Callable[[Tensor], object] | None = None
) -> Tensor:
    """The sum of the gradients in the middles of equal parts of the path.

    Args:
        axis: where the input counts its samples.
        see: is given the input of each pass before it is scaled.
    """

    def some(points: list[float]) -> Tensor:
        def at_root(x: Tensor) -> Tensor:
            if see is not None:
                see(x)
            return scaled(x, points, axis=axis)

        with runner.again(pass_options=PassOptions(level=level, at_root=at_root), copies=len(points)) as (run, part):
            ((_, gradient),) = run.at_roots(part)
        return copies_summed(gradient, len(points), axis=axis)

    return path_sum(some, midpoints(steps), batch=batch)


def build(*, steps: int = 50, level: str = "embedding_output", batch: int = 1) -> RerunMethod:
    """The mean gradient on the path from zero to the input, times the input, summed over channels.

    Args:
        steps: points on the path, in the middles of equal parts.
        level: take the input where the first block reads it (`embedding_output`), at the word embeddings
            (`inputs_embeds`, text) or at the picture (`pixels`, images).
        batch: how many points run at once.
    """
    check_counts(steps=steps, batch=batch)

    def explain(runner: Runner) -> Result:
        axis = sample_axis(runner) if level == "embedding_output" else 0
        (root,) = runner.run.capture.roots
        found = attributed(root.detach(), gradient_sum(runner, level, steps=steps, batch=batch, axis=axis), steps)
        with runner.again(pass_options=PassOptions(level=level, at_root=torch.zeros_like)) as (_, part):
            at_zero = part.scalar.detach()
        at_input, scores = runner.part.scalar.detach(), tokens_first(runner, level, found)
        lacking, largest = residual(scores, at_input, at_zero), scores.abs().flatten(1).amax(dim=1)
        wrong = not_complete(lacking, at_input, at_zero, largest, dtypes_of(runner.model), steps=steps)
        assumed = () if wrong is None else (f"{wrong} {MORE}",)
        return replace(at_level(level, runner, found), residual=lacking, assumed=assumed)

    return RerunMethod(explain, PassOptions(level=level), check=check_level(level))


def few_steps(level: str, steps: int) -> RerunMethod:
    """The same without the passes that measure completeness, for a part of another method."""

    def explain(runner: Runner) -> Result:
        inputs: list[Tensor] = []
        gradients = gradient_sum(runner, level, steps=steps, batch=1, see=inputs.append)
        return at_level(level, runner, attributed(inputs[0].to(gradients.dtype), gradients, steps))

    return RerunMethod(explain, check=check_level(level))


def build_input_x_gradient(*, level: str = "embedding_output") -> RerunMethod:
    """The gradient of the target times the input, summed over channels.

    Args:
        level: take the input where the first block reads it (`embedding_output`), at the word embeddings
            (`inputs_embeds`, text) or at the picture (`pixels`, images).
    """

    def explain(runner: Runner) -> Result:
        x, gradient = runner.nonzero_gradient()
        return at_level(level, runner, x * gradient)

    return RerunMethod(explain, PassOptions(level=level), check=check_level(level))
