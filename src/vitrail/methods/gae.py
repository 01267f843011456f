"""Gradient-weighted attention, propagated through the layers.

Chefer, Gur and Wolf, "Generic Attention-model Explainability for Interpreting Bi-Modal and
Encoder-Decoder Transformers", ICCV 2021, arXiv:2103.15679. Self-attention case.
Paper -> code: A -> probs, grad A -> probs_grad, the readout's row of R -> relevance.
"""

from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Layer
from vitrail.methods.options import check_choice, check_start_layer
from vitrail.relevance import Result, Walk, positive, pull
from vitrail.relevance.dense import Weigh
from vitrail.relevance.walk import STARTS


def aggregate(weigh: Weigh, *, start_layer: int = 0, readout: str = "equal") -> Walk:
    """Eq. 6, read from the readout's row: `r <- r + r E_h[w]`. Never a product of two n x n matrices."""
    rows = check_choice("readout", readout, STARTS)

    def start(last: Layer) -> Float[Tensor, "b q"]:
        check_start_layer(start_layer, last)
        return rows(last)

    def step(relevance: Float[Tensor, "b q"], layer: Layer) -> Float[Tensor, "b t"]:
        if layer.index < start_layer:
            return relevance
        return layer.carry(relevance) + pull(layer, relevance, weigh).mean(dim=1)

    def finish(relevance: Float[Tensor, "b t"], first: Layer) -> Result:
        return Result(relevance, own=None if first.pooled else rows(first))

    return Walk(start, step, finish)


def build(*, start_layer: int = 0, readout: str = "equal") -> Walk:
    """Eq. 5: the mean over heads of the positive part of grad A * A, aggregated over all layers.

    Args:
        start_layer: the first layer that takes part, counted from zero; the authors take the last alone on CLIP.
        readout: how the rows the prediction reads share the start: `equal`, or by the norm of the `gradient` there.
    """
    return aggregate(positive, start_layer=start_layer, readout=readout)
