"""Checks of every result: no credit where none can be, and no map of zeros without a word."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.api.requests import Request
from vitrail.attribution import Attribution
from vitrail.capture.outputs import Scalar
from vitrail.capture.recording.passes import Pass, unread
from vitrail.errors import InputError, TargetError, VitrailError
from vitrail.relevance import Result
from vitrail.relevance.runner import RerunMethod

OF_TOKENS = ("scores", "own", "layers", "heads")
"""What a result holds for each token; attributions hold it for the patches or words of the input."""
NOTABLE = 1e-6
"""The share of the largest score from which on credit is no rounding."""
PADDING_IS_READ = (
    "the answer rests on tokens that the attention mask calls padding, too: what they were given is left out. Check "
    "which value stands for a real token in the model's mask, and that the model reads the mask"
)
UNSHOWN = "{0} of {1} tokens come from no number of the input, such as a class token, and have no score"
DROPPED = "{} gives scores to tokens that no attention lets reach the answer: these were set to zero"


def drop_unreachable(x: Tensor, reached: Bool[Tensor, "b t"]) -> Tensor:
    """Set to zero what belongs to tokens that cannot reach the answer; all else stays bit for bit."""
    return x.masked_fill(~reached.to(x.device).view(len(x), *[1] * (x.ndim - 2), -1), 0.0)


def credits_unreachable(scores: Float[Tensor, "b n"], reached: Bool[Tensor, "b n"]) -> bool:
    """Return True if notable scores belong to tokens that cannot reach the answer."""
    outside = scores.abs().masked_fill(reached.to(scores.device), 0.0).amax(dim=1)
    return bool((outside > NOTABLE * scores.abs().amax(dim=1)).any())


def hold_to_reach(results: list[tuple[Scalar, Result]], run: Pass) -> tuple[list[tuple[Scalar, Result]], bool]:
    """Drop what a method gives to tokens that cannot reach its scalar, and say if that was notable."""
    held = [(part, _held(result, run)) for part, result in results]
    scores = [(result.scores, result.reached) for _, result in results]
    real = [(x * run.valid, reached) for x, reached in scores if x is not None and reached is not None]
    return held, any(credits_unreachable(x, reached) for x, reached in real)


def reads_padding(
    results: list[tuple[Scalar, Result]], scores: Float[Tensor, "b t"] | None, run: Pass
) -> Bool[Tensor, " b"]:
    """Return which answers rest on padding: it can reach the answer, or the method gives it notable scores."""
    padding = ~run.valid
    found = torch.zeros_like(padding[:, 0])
    for _, result in results:
        if result.reached is not None:
            found |= (result.reached & padding).any(dim=1)
    if scores is not None:
        sizes = scores.abs()
        found |= sizes.masked_fill(run.valid, 0.0).amax(dim=1) > NOTABLE * sizes.amax(dim=1)
    return found


def _held(result: Result, run: Pass) -> Result:
    """Return the result without what it gives to tokens that cannot reach its scalar."""
    reached = result.reached
    if reached is None:
        return result
    kept = {name: drop_unreachable(x, reached) for name in OF_TOKENS if (x := getattr(result, name)) is not None}
    if result.residual is not None and result.scores is not None:  # the sum lacks what was dropped
        kept["residual"] = result.residual + (result.scores - kept["scores"]).sum(dim=1)
    grid, pixels, (tall, wide) = run.origin.grid, result.pixels, run.origin.patch or (0, 0)
    if pixels is not None and grid is not None and tuple(pixels.shape[1:]) == (grid[0] * tall, grid[1] * wide):
        patches = run.patches(reached).view(-1, *grid)
        kept["pixels"] = pixels * patches.repeat_interleave(tall, dim=1).repeat_interleave(wide, dim=2).to(pixels)
    return replace(result, **kept)


FROM_ZERO = "no score is above zero: {} keeps positive parts alone, or scales its map to begin at zero"
SPARSE = "its sparse fit keeps no part of the text: none changes the answer enough"
OWN_LEFT_OUT = "the score of the token that is read was set to zero, and no other token has one"
ALONE = "one token alone can reach the answer, and {} scores what others bring it, or how tokens differ"
NEVER_ZERO = frozenset({"raw_attention", "rollout", "absolute_gradient", "ifr", "flashtrace"})
"""Unsigned methods that keep no positive part: a map of zeros says that nothing was read."""


def explain_sizes(
    request: Request, results: list[tuple[Scalar, Result]], run: Pass, sizes: Sequence[float]
) -> str | None:
    """Return why the maps of some samples are zero everywhere, None where none is; raise where nothing was explained.

    Args:
        sizes: the largest absolute score of each sample.
    """
    if not all(size < inf for size in sizes):  # nor NaN
        raise InputError(
            f"{request.entry.name} gave scores that are not finite for the target {results[0][0].target}. Ratios and "
            "relative differences break down where a logit is near zero: use targets.difference."
        )
    samples = [sample for sample, size in enumerate(sizes) if size == 0]
    if not samples:
        return None
    open_to = run.patches(run.valid)
    for _, result in results:
        open_to = open_to if result.reached is None else open_to & run.patches(result.reached)
    if closed := [sample for sample in samples if not bool(open_to[sample].any())]:
        raise InputError(
            f"no token of samples {closed} can reach the answer: the mask calls all of them padding, or attention "
            "hides them from what is read. Check which value stands for a real token in its masks: "
            "one, True, or zero where masks are added to scores."
        )
    alone = all(int(open_to[sample].sum()) == 1 for sample in samples)
    return f"samples {samples}: {_reason(request, results, run, samples, alone=alone)}"


def _reason(
    request: Request, results: list[tuple[Scalar, Result]], run: Pass, samples: list[int], *, alone: bool
) -> str:
    """Return why a method may give zeros alone, or raise.

    Args:
        alone: whether there is but one token that can reach the answer.
    """
    name = request.entry.name
    if name == "context_cite":
        return SPARSE
    if request.options.get("zero_readout") and not request.entry.class_specific:
        return OWN_LEFT_OUT
    # A walk has asked for its gradient at the tokens that are read, and freed the graph.
    unmoved = run.unmoved_by([part for part, _ in results]) if isinstance(request.plan, RerunMethod) else set()
    if lost := [sample for sample in samples if sample in unmoved]:
        raise unread(lost)
    if alone:
        return ALONE.format(name)
    if request.signed or name in NEVER_ZERO:
        raise all_zero(name, samples)
    return FROM_ZERO.format(name)


def all_zero(name: str, samples: list[int]) -> VitrailError:
    """Return the error for a signed map of zeros."""
    return TargetError(
        f"every score of {name} is exactly zero in samples {samples}, so nothing is shown. Weights may be zero, "
        "a unit dead, a probability exactly one, or a mask may hide every token from those that are read. Check the "
        "model, its masks and the target, or explain the logit."
    )


def with_zeros(each: dict[str, Attribution], *, signed: bool) -> dict[str, Attribution]:
    """Return the streams with why some have zeros alone; raise if a signed method gives all of them nothing."""
    zero = {name: (one.scores == 0).all(dim=1).tolist() for name, one in each.items()}
    if not any(any(found) for found in zero.values()):
        return each
    method = next(iter(each.values())).method
    if len({len(found) for found in zero.values()}) == 1:
        every = [sample for sample, found in enumerate(zip(*zero.values(), strict=True)) if all(found)]
        if every and (signed or method in NEVER_ZERO):
            raise all_zero(method, every)
    said = {}
    for name, one in each.items():
        samples = [sample for sample, found in enumerate(zero[name]) if found]
        why = f"samples {samples}: {ELSEWHERE if signed else FROM_ZERO.format(method)}"
        said[name] = replace(one, provenance={**one.provenance, "zero": why}) if samples else one
    return said


ELSEWHERE = "the answer does not depend on this input, but on another one"
