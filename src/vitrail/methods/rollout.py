"""Attention rollout, and the last layer's attention as it is.

Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020, arXiv:2005.00928. Both are class-agnostic.
Paper -> code: the readout's row of the product of the normalised matrices -> relevance; E_h A^L, the last layer's raw
attention -> `pull(last, rows, attention).mean(1)`.
"""

from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Layer
from vitrail.methods.options import ROWS, check_choice, check_start_layer, last_layer, without_readout
from vitrail.relevance import Walk, attention, pull
from vitrail.relevance.walk import STARTS


def rolled(relevance: Float[Tensor, "b q"], layer: Layer) -> Float[Tensor, "b t"]:
    """One factor of the rollout: the row times `(E_h A + I) / 2`, whose rows sum to one as the rows of A do."""
    seen = pull(layer, relevance, attention).mean(dim=1)
    return seen if layer.pooling else (layer.carry(relevance) + seen) / 2


def build(*, start_layer: int = 0, zero_readout: bool = False, readout: str = "equal") -> Walk:
    """Attention multiplied through the layers, half of it carried by the skip connection.

    Args:
        start_layer: the first layer that takes part, counted from zero.
        zero_readout: set the readout's own entry to zero.
        readout: how the rows the prediction reads share the start: `equal`, or by the norm of the `gradient` there.
    """
    rows = check_choice("readout", readout, STARTS)

    def start(last: Layer) -> Float[Tensor, "b q"]:
        check_start_layer(start_layer, last)
        return rows(last)

    def step(relevance: Float[Tensor, "b q"], layer: Layer) -> Float[Tensor, "b t"]:
        return rolled(relevance, layer) if layer.index >= start_layer else relevance

    def across(rows: Float[Tensor, "r q"], layer: Layer) -> tuple[Float[Tensor, "r q"], Float[Tensor, "r k"]]:
        return rows / 2, pull(layer, rows, attention).mean(dim=1) / 2

    return Walk(start, step, without_readout(zero_readout), needs=frozenset(), across=across)


def build_raw(*, rows: str = "readout", zero_readout: bool = False) -> Walk:
    """What the readout attends to in the last layer.

    Args:
        rows: `readout` reads the readout's row, `mean` the mean over all queries.
        zero_readout: set the readout's own entry to zero.
    """
    choose, finish = check_choice("rows", rows, ROWS), without_readout(zero_readout)
    return last_layer(lambda layer: pull(layer, choose(layer), attention).mean(dim=1), finish, gradients=False)
