"""FlashTrace: information flow routes of an answer, followed over several hops through tokens generated before it.

Pan et al., "Towards Long-Horizon Interpretability: Efficient and Faithful Multi-Token Attribution for Reasoning LLMs",
ICML 2026, arXiv:2602.01914; released as the package flashtrace 0.1.1.
Paper -> code: one pass of IFR over a span -> `ifr.flow`, the weights of hop k + 1 -> the scores of hop k on the span.
Tokens that end a phrase (`stop_tokens`) are not followed and get no score.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.capture.recording import Layer
from vitrail.errors import OptionError, TargetError
from vitrail.methods.ifr import NEEDS, NO_GRAPH, ROWS, check_streams, flow, recorded
from vitrail.methods.options import check_choice
from vitrail.models.readouts import last_position
from vitrail.relevance import Result
from vitrail.relevance.runner import RerunMethod, Runner

Weights = Float[Tensor, "b t"]


def trace(layers: list[Layer], span: Bool[Tensor, "b t"], passed: Bool[Tensor, "b t"], hops: int) -> list[Weights]:
    """The scores that each hop adds: `s_0`, `ratio_0 s_1`, `ratio_0 ratio_1 s_2`, ...

    A ratio is the share of a hop's scores that falls on the span, whose tokens the next hop follows.

    Args:
        passed: the tokens that take part; others are not followed and get no score.
    """
    weights, found = (span & passed).to(layers[0].readout.dtype), []
    ratio, tiny = torch.ones_like(weights[:, :1]), torch.finfo(weights.dtype).tiny
    for _ in range(hops + 1):
        scores = flow(layers, weights / weights.sum(dim=1, keepdim=True).clamp(min=tiny)) * passed
        found.append(ratio * scores)
        weights = scores * span
        ratio = ratio * weights.sum(dim=1, keepdim=True) / scores.sum(dim=1, keepdim=True).clamp(min=tiny)
    return found


def _span(runner: Runner, rows: str, reasoning: Sequence[int] | None) -> Bool[Tensor, "b t"]:
    """The rows that are followed: those of the answer, or from where its reasoning begins to where the answer ends."""
    span = check_choice("rows", rows, ROWS)(runner) > 0
    if reasoning is None:
        return span
    if len(reasoning) != 2 or not all(isinstance(x, int) for x in reasoning):
        raise OptionError(
            f"reasoning={reasoning!r}, but it must be a pair of columns (start, stop); stop is the one after the last."
        )
    target = runner.part.target
    if target.name != "continuation":
        raise TargetError("reasoning=(start, stop) needs an answer after it: use targets.continuation.")
    start, stop = reasoning
    if not 0 < start < stop <= span.shape[1]:
        raise OptionError(f"reasoning={reasoning!r} is no span of the {span.shape[1]} columns of the input.")
    first = start if rows == "tokens" else start - 1
    places = torch.arange(span.shape[1], device=span.device)
    return (places >= first) & (places <= last_position(span)[:, None])


def build(
    *,
    hops: int = 1,
    stop_tokens: list | tuple | None = None,
    reasoning: list | tuple | None = None,
    rows: str = "predicting",
) -> RerunMethod:
    """Information flow routes over several hops, each weighted by the share that falls on what was generated.

    Args:
        hops: how often relevance that falls on the answer is passed on; 0 is `ifr` without stop tokens.
        stop_tokens: ids of tokens that are not followed and get no score, such as commas.
        reasoning: the columns `(start, stop)` of what was generated before the answer, to follow it too.
        rows: follow the rows that are `predicting` the answer, or those of its own `tokens` (the released package).
    """
    if hops < 0:
        raise OptionError(f"hops={hops}, but it is a number of hops, at least 0.")
    check_choice("rows", rows, ROWS)

    def explain(runner: Runner) -> Result:
        layers, span = recorded(runner), _span(runner, rows, reasoning)
        passed = torch.ones_like(span) & layers[0].valid
        if runner.inputs.ids is not None and stop_tokens:
            stops = torch.tensor(list(stop_tokens), device=runner.inputs.ids.device)
            passed &= ~torch.isin(runner.inputs.ids, stops).to(passed.device)
        found = trace(layers, span, passed, hops)
        return Result(torch.stack(found).sum(dim=0), layers=torch.stack(found, dim=1), parts=_names(hops))

    return RerunMethod(explain, NO_GRAPH, needs=NEEDS, check=check_streams("flashtrace"))


def _names(hops: int) -> tuple[str, ...]:
    return tuple(f"hop {index}" for index in range(hops + 1))
