"""Grads and AttGrads: attention gradients alone, and attention times its positive gradient.

Grads is AttCAT's baseline, the last layer's attention gradient. AttGrads is Grad-SAM: Barkan et al., "Grad-SAM:
Explaining Transformers via Gradient Self-Attention Maps", CIKM 2021, arXiv:2204.11073, all layers.
"""

from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Layer
from vitrail.methods.options import ROWS, check_choice
from vitrail.relevance import Walk, gradient, positive, pull
from vitrail.relevance.walk import plain


def build_grads(*, rows: str = "mean") -> Walk:
    """The last layer's attention gradient, signed, mean over heads.

    Args:
        rows: the `mean` over all queries, or the `readout`'s row.
    """
    choose = check_choice("rows", rows, ROWS)

    def step(found: Float[Tensor, "b t"] | None, layer: Layer) -> Float[Tensor, "b t"] | None:
        return pull(layer, choose(layer), gradient).mean(dim=1) if layer.is_last else found

    return Walk(lambda last: None, step, plain, last_only=True)


def build_att_grads(*, rows: str = "mean") -> Walk:
    """Attention times the positive part of its gradient, mean over layers, heads and queries.

    Args:
        rows: the `mean` over all queries, or the `readout`'s row.
    """
    choose = check_choice("rows", rows, ROWS)

    def step(found: Float[Tensor, "b t"] | float, layer: Layer) -> Float[Tensor, "b t"]:
        return found + pull(layer, choose(layer), positive).mean(dim=1) / layer.depth

    return Walk(lambda last: 0.0, step, plain)
