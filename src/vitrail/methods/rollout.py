"""Attention rollout, and the last layer's attention as it is.

Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020, arXiv:2005.00928. Both are class-agnostic.
Paper -> code: the readout's row of the product of the normalised matrices -> relevance; E_h A^L, the last layer's raw
attention -> `pull(last, rows, attention).mean(1)`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.layer import Layer
from vitrail.methods.options import ROWS, check_choice, check_start_layer, last_layer, without_readout
from vitrail.relevance import LayerReader, Result, Walk, attention, pull
from vitrail.relevance.walk import STARTS, Walked


def roll(rows: Float[Tensor, "b q"], layer: Layer) -> tuple[Float[Tensor, "b q"], Float[Tensor, "b k"]]:
    """One factor of the rollout: rows times `(E_h A + I) / 2`, whose rows sum to one as the rows of A do.

    A query that pools tokens has no skip connection, and gives all it has.
    """
    share = 1 if layer.pooling else 2
    return rows / share, pull(layer, rows, attention).mean(dim=1) / share


def build(*, start_layer: int = 0, zero_readout: bool = False, readout: str = "equal") -> Walk:
    """Attention multiplied through the layers, half of it carried by the skip connection.

    Args:
        start_layer: the first layer that takes part, counted from zero.
        zero_readout: set the readout's own entry to zero.
        readout: how the rows the prediction reads share the start: `equal`, or by the norm of the `gradient` there.
    """

    def step(rows: Float[Tensor, "b q"], layer: Layer) -> tuple[Float[Tensor, "b q"], Float[Tensor, "b k"]]:
        check_start_layer(start_layer, layer)
        if layer.index < start_layer:
            return rows, torch.zeros_like(layer.valid, dtype=rows.dtype)
        return roll(rows, layer)

    def finish(walked: Walked) -> Result:
        own = None if walked.start is None else walked.start == 1  # a mean over tokens has no entry of its own
        scores = walked.scores if own is None or not zero_readout else walked.scores.masked_fill(own, 0.0)
        return Result(scores)

    return Walk(step, check_choice("readout", readout, STARTS), finish, needs=frozenset())


def build_raw(*, rows: str = "readout", zero_readout: bool = False) -> LayerReader:
    """The attention of the readout in the last layer.

    Args:
        rows: `readout` reads the readout's row, `mean` the mean over all queries.
        zero_readout: set the readout's own entry to zero.
    """
    choose, finish = check_choice("rows", rows, ROWS), without_readout(zero_readout)
    return last_layer(lambda layer: pull(layer, choose(layer), attention).mean(dim=1), finish, gradients=False)
