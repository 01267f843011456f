"""Soft ablation: the derivative of an answer with respect to the presence of each token of the context.

Every token of the context has a presence `g`. Attention from outside its own passage is multiplied by `g` before the
softmax normalises it: 1 is the model as it is, 0 is a passage that no other passage reads. The score of a token is the
derivative of the answer's log-probability with respect to its presence, where all presences are `presence`. One forward
and one backward pass give all tokens. The scores of a passage's tokens add up to the passage's derivative.

Random ablations keep each passage with some probability. A linear model of them (ContextCite) has the coefficients of
the derivative of the multilinear extension inside the cube of presences (Owen, "Multilinear Extensions of Games",
Management Science 18, 1972). At the corner where everything is present, as in attribution patching, the derivative is
small where several passages say the same, or where the model is certain.

`share` adds `gae` on the same pass. It finds the words inside a passage, and the passage itself where the presence of
all tokens that a row reads is reduced alike, so that their derivatives are small.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.capture.recording.layer import Layer, Probs
from vitrail.capture.recording.pass_options import PassOptions, Wanted
from vitrail.capture.seams.intercept import Override
from vitrail.errors import InputError, MethodError, OptionError, TargetError
from vitrail.methods.ablation import Ablated, ablated, check_spans, sources_of
from vitrail.methods.gae import aggregate
from vitrail.methods.options import without_own
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import LayerReader, Result, positive, pull, score_gradient
from vitrail.relevance.backends import backend_of
from vitrail.relevance.fused import Operands
from vitrail.relevance.runner import RerunMethod, Runner
from vitrail.relevance.walk import walk_events

NO_GRAPH = PassOptions(graph=False)
NEEDS = frozenset({"output_grad"})
NONE = -1


@dataclass(frozen=True)
class Passages:
    """The passage of each token, `NONE` for tokens of no passage, and the tokens whose presence is reduced.

    Args:
        keys: which keys of a softmax are the tokens, where it is over others too: sinks, which belong to no token.
    """

    of: Int[Tensor, "b t"]
    gated: Bool[Tensor, "b t"]
    keys: tuple[int, int] | None

    def outside(self, rows: slice) -> Bool[Tensor, "b q t"]:
        """Return True at keys of a passage that are read by a query outside of it."""
        return (self.of[:, rows, None] != self.of[:, None]) & (self.of != NONE)[:, None]

    def bias(self, presence: float, shape: torch.Size, dtype: torch.dtype) -> Float[Tensor, "b 1 q k"]:
        """Return the bias on the scores: `log presence` where a query reads a passage that is not its own."""
        tokens = self.of.shape[1]
        first, stop = (0, tokens) if self.keys is None or shape[-1] == tokens else self.keys
        sinks = (first, shape[-1] - stop)
        if shape[-2] != tokens or stop - first != tokens or (any(sinks) and self.keys is None):
            raise MethodError(
                f"soft_ablation turns attention to tokens down, but an attention map has {shape[-2]} queries and "
                f"{shape[-1]} keys for {tokens} tokens. Take gae."
            )
        down = self.outside(slice(None)) & self.gated[:, None]
        bias = torch.zeros((), dtype=dtype, device=down.device).where(~down, math.log(presence))[:, None]
        return F.pad(bias, sinks) if any(sinks) else bias


def outside_gradient(layer: Layer, passages: Passages) -> Probs:
    """The gradient at the scores before the softmax, where a query reads a passage that is not its own."""
    rows = slice(layer.first_row, layer.first_row + layer.readout.shape[1])
    return score_gradient(layer) * passages.outside(rows)[:, None]


def read_from_outside(layer: Layer, passages: Passages) -> Float[Tensor, "b t"]:
    """The sum over heads and over all queries outside of a token's passage of the gradient at the scores."""
    rows = layer.queries_valid.to(layer.readout.dtype)
    if layer.weights is not None or backend_of(layer) != "fused":
        return pull(layer, rows, lambda some: outside_gradient(some, passages)).sum(dim=1)
    # A kernel takes the mask and the softmax's denominator as they are: what is hidden now has no part in the sum.
    hidden = ~passages.outside(slice(None))[:, None]
    mask = layer.get("mask").masked_fill(hidden, -torch.inf)
    known = replace(layer, mask=mask, logsumexp=Operands(layer, gradient=False).logsumexp)
    return pull(known, rows, score_gradient).sum(dim=1)


def derivatives(passages: Passages, presence: float) -> LayerReader:
    """The reader of a pass with less attention that sums the derivatives with respect to the tokens' presence."""
    return LayerReader(
        start=lambda last: torch.zeros_like(last.readout),
        step=lambda total, layer: total + read_from_outside(layer, passages),
        finish=lambda total, first: Result(total / total.new_ones(()).where(~passages.gated, presence)),
    )


def passages_of(runner: Runner, given: Sequence | None) -> Passages:
    """The passages of every sample: spans that are given, else sentences; single tokens where there are no two."""
    valid = runner.run.patches(runner.run.valid)
    of = torch.full(valid.shape, NONE, device=valid.device)
    for sample in range(len(valid)):
        one = ablated(runner, sample)
        for index, tokens in enumerate(_sources(one, given)):
            of[sample, tokens] = index
    first = torch.arange(valid.shape[1], device=valid.device) == valid.int().argmax(dim=1, keepdim=True)
    cut = {keys for captured in runner.run.captured for call in captured.calls if (keys := call.keys) is not None}
    keys = cut.pop() if len(cut) == 1 else None
    return Passages(of, (of != NONE) & ~first, keys)  # the first token takes the attention that no other token needs


def _sources(of: Ablated, given: Sequence | None) -> list[Bool[Tensor, " t"]]:
    """The tokens of each passage."""
    tokens, ids = of.runner.inputs.tokens, of.runner.inputs.ids
    assert ids is not None
    nameless = tokens is None or list(tokens[of.sample]) == list(map(str, ids[of.sample].tolist()))
    found = [] if given is None and nameless else sources_of(of, given, least=1)
    if given is None and len(found) < 2:
        places = of.context.nonzero()[:, 0].tolist()
        return [torch.arange(len(of.context), device=of.context.device) == place for place in places]
    return found


def check(given: object, presence: float, share: float) -> Callable[[nn.Module, Body, Inputs], None]:
    """A check that the options fit together, and that the model reads a text."""
    check_spans(given)
    spans = sorted(map(tuple, given)) if isinstance(given, Sequence) else []
    if any(one[1] > after[0] for one, after in pairwise(spans)):
        raise OptionError(f"sources={given!r:.200} overlap, but a token has the presence of one passage.")
    if not 0 < presence <= 1:
        raise OptionError(f"presence={presence}, but it is above 0 and at most 1.")
    if not 0 <= share < math.inf:
        raise OptionError(f"share={share}, but it is a number of at least 0.")

    def look(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if inputs.ids is None:
            raise InputError("soft_ablation explains the answer of a language model to input_ids.")

    return look


def shared_out(
    derivative: Float[Tensor, "b t"], relevance: Float[Tensor, "b t"], passages: Passages, share: float
) -> Float[Tensor, "b t"]:
    """The scores of passages, divided among their tokens as the relevance is.

    A passage has its derivative plus its part of the relevance, whose sum is `share` of the derivatives' sizes. The
    derivatives of single tokens are less reliable: a word that is copied is read through its neighbours.
    """
    inside = passages.of != NONE
    place = torch.where(inside, passages.of, passages.of.amax() + 1)
    summed = lambda x: x.new_zeros(len(x), int(place.amax()) + 1).scatter_add(1, place, x * inside)  # noqa: E731
    tiny = torch.finfo(derivative.dtype).tiny
    of_passage, walked, count = summed(derivative), summed(relevance), summed(torch.ones_like(derivative))
    size = of_passage.abs().sum(dim=1, keepdim=True) / walked.sum(dim=1, keepdim=True).clamp(min=tiny)
    total = of_passage + share * size * walked
    each = torch.where(walked > tiny, total / walked.clamp(min=tiny), 0.0).gather(1, place) * relevance
    even = torch.where(walked > tiny, 0.0, total / count.clamp(min=1)).gather(1, place)
    return (each + even) * inside


def build(*, presence: float = 0.25, share: float = 0.5, sources: list | tuple | None = None) -> RerunMethod:
    """The change of the answer with the presence of each passage, with attention to all of them reduced.

    Args:
        presence: how much of the attention to each passage is left; 1 is the model as it is.
        share: how much `gae` on the same pass adds to the passages' derivatives, as a part of their sum; it also
            divides a passage's score among its tokens. 0 gives the derivatives of the tokens alone.
        sources: spans `(start, stop)` of columns instead of the sentences of the context.
    """

    def explain(runner: Runner) -> Result:
        if runner.part.rows is None:
            raise TargetError("soft_ablation explains an answer: name it with targets.continuation(start, stop).")
        passages = passages_of(runner, sources)
        override = Override(bias=lambda shape, dtype: passages.bias(presence, shape, dtype))
        methods = [derivatives(passages, presence), *([aggregate(positive)] if share else [])]
        with runner.again(NEEDS, PassOptions(override=override), lean=True) as (run, part):
            events = run.events(part, Wanted.of(NEEDS), again=False, shared=len(methods) > 1)
            derivative, *more = (made.result for made in walk_events(methods, events))
        if not more:
            return replace(derivative, recomputed=run.recomputed)
        scores = shared_out(without_own(derivative), without_own(*more), passages, share)
        return Result(scores, recomputed=run.recomputed)

    return RerunMethod(explain, NO_GRAPH, check=check(sources, presence, share))
