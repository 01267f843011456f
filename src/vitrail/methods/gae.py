"""Gradient-weighted attention, propagated through the layers.

Chefer, Gur and Wolf, "Generic Attention-model Explainability for Interpreting Bi-Modal and
Encoder-Decoder Transformers", ICCV 2021, arXiv:2103.15679.
Paper -> code: A -> probs, grad A -> probs_grad, the readout's row of R -> relevance. Where a decoder reads an encoder,
the walk adds `r_k <- r_k + r_q E_h[w]` at every cross-attention; the paper's own form with its normalisation (Eqs. 8 to
11) is `cross="normalised"`, see `relevance.streams.bi_modal`.

Complete and absolute gradient correction: Cui, Fan and Chen, arXiv:2605.11392, Eqs. 4 to 6. The positive correction,
Eq. 4, is `gae`. The complete one keeps signs in every product, never clamped in between, so its map is signed: what
speaks for the target and what speaks against it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Layer
from vitrail.methods.options import check_choice, check_start_layer
from vitrail.relevance import Result, Walk, complete, magnitude, positive, pull
from vitrail.relevance.dense import Weigh
from vitrail.relevance.streams import bi_modal
from vitrail.relevance.walk import STARTS


def aggregate(weigh: Weigh, *, start_layer: int = 0, readout: str = "equal") -> Walk:
    """Eq. 6, read from the readout's row: `r <- r + r E_h[w]`. Never a product of two n x n matrices."""
    rows = check_choice("readout", readout, STARTS)

    def step(relevance: Float[Tensor, "b q"], layer: Layer) -> Float[Tensor, "b t"]:
        if start_layer:
            check_start_layer(start_layer, layer)
        if layer.index < start_layer:
            return relevance
        return layer.carry(relevance) + pull(layer, relevance, weigh).mean(dim=1)

    def finish(relevance: Float[Tensor, "b t"], first: Layer) -> Result:
        return Result(relevance, own=None if first.pooled else rows(first))

    def across(rows: Float[Tensor, "r q"], layer: Layer) -> tuple[Float[Tensor, "r q"], Float[Tensor, "r k"]]:
        if layer.index < start_layer:
            return rows, torch.zeros_like(layer.valid, dtype=rows.dtype)
        return rows, pull(layer, rows, weigh).mean(dim=1)

    return Walk(rows, step, finish, across=across)


CROSS: dict[str, Callable[..., Any] | None] = {"walk": None, "normalised": partial(bi_modal, positive)}
"""What becomes of attention between two streams: part of the walk, or the paper's Eqs. 8 to 11."""


def build(*, start_layer: int = 0, readout: str = "equal", cross: str = "walk") -> Walk:
    """Eq. 5: the mean over heads of the positive part of grad A * A, aggregated over all layers.

    Args:
        start_layer: the first layer that takes part, counted from zero; the authors take the last alone on CLIP.
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
