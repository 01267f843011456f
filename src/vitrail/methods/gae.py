"""Gradient-weighted attention, propagated through the layers.

Chefer, Gur and Wolf, "Generic Attention-model Explainability for Interpreting Bi-Modal and
Encoder-Decoder Transformers", ICCV 2021, arXiv:2103.15679.
Paper -> code: A -> probs, grad A -> probs_grad, the readout's row of R -> relevance. Where a decoder reads an encoder,
the walk adds `r_k <- r_k + r_q E_h[w]` at every cross-attention; the paper's own form with its normalisation (Eqs. 8 to
11) is `cross="normalised"`, see `bi_modal`.

Complete and absolute gradient correction: Cui, Fan and Chen, arXiv:2605.11392, Eqs. 4 to 6. The positive correction,
Eq. 4, is `gae`. The complete one keeps signs in every product and clamps nothing, so its map is signed: evidence for
and against the target.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.layer import Layer
from vitrail.capture.structure.streams import AttentionEvent
from vitrail.errors import OptionError
from vitrail.methods.options import check_choice, check_start_layer
from vitrail.relevance import Walk, complete, magnitude, positive, pull
from vitrail.relevance.dense import Weigh
from vitrail.relevance.walk import STARTS, Event, Walked


def aggregate(weigh: Weigh, *, start_layer: int = 0, readout: str = "equal") -> Walk:
    """Eq. 6, read from the readout's row: `r <- r + r E_h[w]`. Never a product of two n x n matrices."""

    def step(rows: Float[Tensor, "b q"], layer: Layer) -> tuple[Float[Tensor, "b q"], Float[Tensor, "b k"]]:
        if start_layer:
            check_start_layer(start_layer, layer)
        if layer.index < start_layer:
            return rows, torch.zeros_like(layer.valid, dtype=rows.dtype)
        return rows, pull(layer, rows, weigh).mean(dim=1)

    return Walk(step, start=check_choice("readout", readout, STARTS))


def normalised(relevance: Float[Tensor, "b n n"]) -> Float[Tensor, "b n n"]:
    """Eqs. 8 and 9: rows of `R - I` divided by their sums, plus the identity; 0/0 counts as 0."""
    eye = torch.eye(relevance.shape[1], dtype=relevance.dtype, device=relevance.device)
    rest = relevance - eye
    total = rest.sum(dim=2, keepdim=True)
    return torch.where(total == 0, torch.zeros_like(rest), rest / torch.where(total == 0, 1, total)) + eye


def bi_modal(weigh: Weigh, start: Float[Tensor, " n"], events: Sequence[Event]) -> Walked:
    """Eqs. 5 to 11 for an encoder (k) and a decoder (q), from whole matrices.

    Args:
        events: last to first.
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
    return Walked(scores, own=start, start=start)


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


CROSS: dict[str, Callable[..., Any] | None] = {"walk": None, "normalised": partial(bi_modal, positive)}
"""How attention between two streams is used: part of the walk, or the paper's Eqs. 8 to 11."""


def build(*, start_layer: int = 0, readout: str = "equal", cross: str = "walk") -> Walk:
    """Eq. 5: the mean over heads of the positive part of grad A * A, aggregated over all layers.

    Args:
        start_layer: the first layer that takes part, counted from zero; the authors use only the last one on CLIP.
        readout: how the rows the prediction reads share the start: `equal`, or by the norm of the `gradient` there.
        cross: where a decoder reads an encoder, `walk` from the readout as in one stream, or the paper's `normalised`
            form for two modalities. Models with one stream have no such attention.
    """
    walk = aggregate(positive, start_layer=start_layer, readout=readout)
    return replace(walk, whole=check_choice("cross", cross, CROSS))


def build_complete(*, readout: str = "equal") -> Walk:
    """Eq. 5: E_h(G * A), signs kept everywhere.

    Args:
        readout: how the rows the prediction reads share the start: `equal`, or by the norm of the `gradient` there.
    """
    return aggregate(complete, readout=readout)


def build_absolute(*, readout: str = "equal") -> Walk:
    """Eq. 6: E_h(|G| * A).

    Args:
        readout: how the rows the prediction reads share the start: `equal`, or by the norm of the `gradient` there.
    """
    return aggregate(magnitude, readout=readout)
