"""AttCAT and CAT: signed impact scores from features, their gradients and attention; and Grads, their baseline.

Qiang et al., "AttCAT: Explaining Transformers via Attentive Class Activation Tokens", NeurIPS 2022.
Paper -> code: h -> the residual stream, CAT -> `class_activation`, alpha -> `received`. The paper takes the output of
each layer, the released code its input. Grads is the last layer's attention gradient.
"""

import warnings
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.layer import Layer
from vitrail.methods.options import ROWS, check_choice, last_layer
from vitrail.relevance import LayerReader, Result, attention, gradient, pull

Scores = Float[Tensor, "b t"]
STATES = {"input": ("entering", "entering_grad"), "output": ("leaving", "leaving_grad")}


def class_activation(layer: Layer, names: tuple[str, str]) -> Scores:
    """Eq. 10: the gradient of the target times the state, summed over channels."""
    state, its_gradient = names
    return (layer.state(its_gradient) * layer.state(state)).sum(dim=2)


def received(layer: Layer) -> Scores:
    """Eq. 11: the attention each token receives, the mean over heads and real queries."""
    return pull(layer, layer.every_query, attention).mean(dim=1)


def _read(impact: Callable[[Layer], Scores], names: tuple[str, str], *, last_only: bool = False) -> LayerReader:
    """Eq. 12: the impact of every layer, and their sum."""

    def step(found: tuple[Scores, ...], layer: Layer) -> tuple[Scores, ...]:
        return found if layer.pooling or (last_only and found) else (impact(layer), *found)

    def finish(found: tuple[Scores, ...], first: Layer) -> Result:
        layers = torch.stack(found, dim=1)
        return Result(layers.sum(dim=1), layers=layers)

    return LayerReader(step, lambda last: (), finish, needs=frozenset(names))


def build(*, states: str = "output", mask_special_tokens: bool = False) -> LayerReader:
    """Attentive class activation tokens: CAT weighted by the attention received, summed over layers.

    Args:
        states: take each layer's `output` (paper) or `input` (released code).
        mask_special_tokens: run the model with [CLS] and [SEP] masked out, as the released notebooks do.
    """
    names = check_choice("states", states, STATES)
    return _read(lambda layer: received(layer) * class_activation(layer, names), names)


def build_cat(*, states: str = "output", blocks: str = "all") -> LayerReader:
    """Class activation tokens: gradient times state, summed over channels and layers.

    Args:
        states: take each layer's `output` (paper) or `input`.
        blocks: sum `all` layers, or read the `last` one only (the paper's Eq. 10 to the letter).
    """
    names = check_choice("states", states, STATES)
    last_only = check_choice("blocks", blocks, {"all": False, "last": True})
    if last_only and states == "output":
        warnings.warn(
            "the output of the last layer has a gradient only where the prediction is read: with a class token, "
            "cat(blocks='last', states='output') is zero at every other token.",
            stacklevel=2,
        )
    return _read(lambda layer: class_activation(layer, names), names, last_only=last_only)


def build_grads(*, rows: str = "mean") -> LayerReader:
    """The last layer's attention gradient, signed, mean over heads.

    Args:
        rows: the `mean` over all queries, or the `readout`'s row.
    """
    choose = check_choice("rows", rows, ROWS)
    return last_layer(lambda layer: pull(layer, choose(layer), gradient).mean(dim=1))
