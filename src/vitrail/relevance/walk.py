"""A method as a walk over layers, last to first, in one stream of tokens or over the events of several."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.layers import Early
from vitrail.capture.recording import Layer, Recording
from vitrail.capture.stream_changes import FeedForward
from vitrail.capture.stream_passes import Event
from vitrail.capture.streams import AttentionEvent, Transition
from vitrail.relevance.dense import backends_used


@dataclass(frozen=True)
class Result:
    """Scores of all tokens, prefix included, and the parts a method can show beside them.

    `own` is what each token's score holds for being read itself, carried down by the skip connections. A method that
    works on pixels gives `pixels` alone; its scores are the sums over patches. `residual` is what the sum of all scores
    lacks of what it should be, for methods whose scores should add up. `parts` names what `layers` holds where that is
    not one map per layer, and `disagreement` says how little those parts agree. `recomputed` counts the blocks that a
    pass of the method's own ran again to save memory.
    """

    scores: Float[Tensor, "b t"] | None = None
    own: Float[Tensor, "b t"] | None = None
    layers: Float[Tensor, "b l t"] | None = None
    heads: Float[Tensor, "b h t"] | None = None
    pixels: Float[Tensor, "b y x"] | None = None
    residual: Float[Tensor, " b"] | None = None
    parts: tuple[str, ...] = ()
    disagreement: Float[Tensor, " b"] | None = None
    recomputed: int = 0


@dataclass(frozen=True)
class Walk:
    """Three small functions: a state made at the last layer, changed at each, and read at the first.

    Args:
        needs: states and gradients the step reads beside queries, keys and values (`capture.pass_options.KEEPS`).
        last_only: whether gradients are read at the last layer (and at the last block, where a query pools what it
            gives) only, so the backward pass may stop there.
        scalar: `"logit"` or `"probability"`: what of a plain class target is differentiated.
        early: what is read of a block as soon as it has run, and takes some of the states in `needs`.
        across: for models with several streams, what an attention call leaves with its query rows and what it gives to
            its key rows; None where the method is defined on one stream only.
        within: for models with several streams, what a feed-forward layer multiplies the relevance of its tokens by;
            None where such layers take no part.
        from_lengths: for models with several streams, whether the relevance of every token is multiplied by the length
            of its first vector at the end.
        whole: for models with several streams, the scores of all tokens from all events at once, in place of a walk.
    """

    start: Callable[[Layer], Any]
    step: Callable[[Any, Layer], Any]
    finish: Callable[[Any, Layer], Result]
    needs: frozenset[str] = frozenset({"output_grad"})
    last_only: bool = False
    scalar: str = "logit"
    early: Early | None = None
    across: Callable[[Any, Layer], tuple[Any, Any]] | None = None
    within: Callable[[Layer], Any] | None = None
    from_lengths: bool = False
    whole: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Walked:
    """The result of one walk, the backends that computed its sums, and the seconds it took."""

    result: Result
    backends: frozenset[str]
    seconds: float


def walk_layers(walks: Sequence[Walk], layers: Iterable[Layer]) -> list[Walked]:
    """Every walk over the same layers, which come last to first."""
    states: list[Any] = [None] * len(walks)
    results: list[Result | None] = [None] * len(walks)
    seconds, used = [0.0] * len(walks), [frozenset[str]()] * len(walks)
    for number, layer in enumerate(layers):
        for i, method in enumerate(walks):
            begun = time.perf_counter()
            with backends_used() as here:
                state = states[i] if number else method.start(layer)
                states[i] = method.step(state, layer)
                results[i] = method.finish(states[i], layer) if layer.index == 0 else None
            used[i] |= here
            seconds[i] += time.perf_counter() - begun
    return [Walked(r, u, s) for r, u, s in zip(results, used, seconds, strict=True) if r is not None]


def walk(method: Walk, recording: Recording) -> Result:
    """The result of a walk over a finished recording."""
    (walked,) = walk_layers([method], reversed(recording.layers))
    return walked.result


def plain(relevance: Float[Tensor, "b t"], first: Layer) -> Result:
    """The relevance unchanged, for walks whose state is the result."""
    return Result(relevance)


def readout_row(last: Layer) -> Float[Tensor, "b q"]:
    """Equal weights over the rows that the prediction reads: the start of most walks."""
    return last.readout


def readout_norms(last: Layer) -> Float[Tensor, "b q"]:
    """The rows the prediction reads, each weighed by the norm of its gradient; a pooling query is one row."""
    return last.readout if last.readout_norms is None else last.readout_norms


STARTS: dict[str, Callable[[Layer], Float[Tensor, "b q"]]] = {"equal": readout_row, "gradient": readout_norms}
"""How the rows that a prediction reads share the start of a walk, by the name of the option `readout`."""


Across = Callable[[Tensor, Layer], tuple[Tensor, Tensor]]
"""What an attention call leaves with its query rows `[rows, q]`, and what it gives to its key rows `[rows, k]`."""

Within = Callable[[Layer], Tensor]
"""What a feed-forward layer multiplies the relevance of its tokens `[rows, n]` by."""


@dataclass(frozen=True)
class Relevance:
    """The relevance of every token, and the part of it that no attention call has moved."""

    scores: Float[Tensor, " n"]
    own: Float[Tensor, " n"]


def walk_events(
    across: Across, start: Float[Tensor, " n"], events: Iterable[Event], within: Within | None = None
) -> Relevance:
    """The relevance of every token, for events that come last to first.

    Args:
        within: what a feed-forward layer multiplies by; without it these layers change nothing.
    """
    scores, own = start.clone(), start.clone()
    before, beside = scores, None  # the relevance before the calls that stand side by side
    for event, layer in events:
        if isinstance(event, FeedForward):
            if within is not None and layer is not None:
                real = event.tokens >= 0
                growth = torch.ones_like(scores)
                growth[event.tokens[real].to(scores.device)] = within(layer).to(scores)[real.to(scores.device)]
                scores, own = scores * growth, own * growth
            continue
        if layer is None:
            assert isinstance(event, Transition)
            source, target = event.source.to(scores.device), event.target.to(scores.device)
            share = event.share.to(scores)
            scores = scores.index_add(0, source, share * scores[target])
            own = own.index_add(0, source, share * own[target])
            continue
        assert isinstance(event, AttentionEvent)
        queries, keys = event.queries.to(scores.device), event.keys.to(scores.device)
        before = scores if event.beside is None or event.beside != beside else before
        beside = event.beside
        kept, given = across(before[queries], layer)
        if before is scores:
            scores = scores.index_copy(0, queries.flatten(), kept.flatten().to(scores))
        else:
            scores = scores.index_add(0, queries.flatten(), (kept - before[queries]).flatten().to(scores))
        scores = scores.index_add(0, keys.flatten(), given.flatten().to(scores))
    return Relevance(scores, own)
