"""The walk over the events of several streams, last to first.

All tokens of all streams have one number each, and the relevance is one value for each of them. An attention call gives
relevance of its query tokens to its key tokens. A transition gives relevance of a token to the tokens it is made of.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Layer
from vitrail.capture.stream_changes import FeedForward
from vitrail.capture.stream_passes import Event
from vitrail.capture.streams import AttentionEvent, Transition
from vitrail.errors import OptionError
from vitrail.relevance.dense import Weigh

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


def normalised(relevance: Float[Tensor, "b n n"]) -> Float[Tensor, "b n n"]:
    """Eqs. 8 and 9 of Chefer et al.: rows of `R - I` divided by their sums, plus the identity; 0/0 counts as 0."""
    eye = torch.eye(relevance.shape[1], dtype=relevance.dtype, device=relevance.device)
    rest = relevance - eye
    total = rest.sum(dim=2, keepdim=True)
    return torch.where(total == 0, torch.zeros_like(rest), rest / torch.where(total == 0, 1, total)) + eye


def bi_modal(weigh: Weigh, start: Float[Tensor, " n"], events: Sequence[Event]) -> Relevance:
    """Eqs. 5 to 11 of Chefer et al. for an encoder (k) and a decoder (q), from whole matrices.

    Args:
        events: last to first, as for `walk_events`.
    """
    encoder, decoder = _two(events)
    (batch, k), q = encoder.shape, decoder.shape[1]
    one = {"dtype": start.dtype, "device": start.device}
    r_kk, r_qq = (torch.eye(n, **one).expand(batch, n, n) for n in (k, q))
    r_qk = torch.zeros(batch, q, k, **one)
    for event, layer in reversed(events):
        assert isinstance(event, AttentionEvent)
        assert layer is not None
        m = weigh(layer).mean(dim=1).to(start)
        if torch.equal(event.queries, encoder):
            r_kk = r_kk + m @ r_kk  # Eq. 6
        elif torch.equal(event.keys, decoder):
            r_qq, r_qk = r_qq + m @ r_qq, r_qk + m @ r_qk  # Eqs. 6 and 7
        else:
            r_qk = r_qk + normalised(r_qq).transpose(1, 2) @ m @ normalised(r_kk)  # Eq. 10; Eq. 11 adds nothing
    read = start[decoder.to(start.device)][:, None]
    scores = start.clone()
    scores[encoder.to(start.device)] = (read @ r_qk)[:, 0]
    scores[decoder.to(start.device)] = (read @ r_qq)[:, 0]
    return Relevance(scores, start)


def _two(events: Sequence[Event]) -> tuple[Tensor, Tensor]:
    """The tokens of the encoder and of the decoder, or an error that says why there are no such two."""
    calls = [event for event, _ in events if isinstance(event, AttentionEvent)]
    own = [event.queries for event in calls if torch.equal(event.queries, event.keys)]
    cross = [event for event in calls if not torch.equal(event.queries, event.keys)]
    found = {tuple(x.flatten().tolist()): x for x in own}
    if len(calls) == len(events) and len(found) == 2 and cross:
        encoder, decoder = cross[0].keys, cross[0].queries
        if all(torch.equal(e.keys, encoder) and torch.equal(e.queries, decoder) for e in cross):
            return encoder, decoder
    raise OptionError(
        "the paper's form for two modalities is defined for one encoder and one decoder that reads it by "
        "cross-attention, without merged or projected tokens between them. Use preset='recommended', the walk."
    )
