"""The walk over the events of several streams, last to first.

All tokens of all streams have one number each, and the relevance is one value for each of them. An attention call gives
relevance of its query tokens to its key tokens. A transition gives relevance of a token to the tokens it is made of.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Layer
from vitrail.capture.stream_changes import FeedForward
from vitrail.capture.stream_passes import Event
from vitrail.capture.streams import AttentionEvent, Transition

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
