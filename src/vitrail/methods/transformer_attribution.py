"""Transformer Attribution: relevance of attention maps times their gradients, multiplied through the layers.

Chefer, Gur and Wolf, "Transformer Interpretability Beyond Attention Visualization", CVPR 2021, arXiv:2012.09838.
Paper -> code: R^(n_b) -> relevance, grad A -> gradient, the readout's row of C -> row.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.capture.pass_options import PassOptions
from vitrail.capture.recording import Layer, Probs
from vitrail.errors import OptionError
from vitrail.methods.options import PRECISIONS, check_choice, check_rules
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import Result
from vitrail.relevance.lrp import propagating
from vitrail.relevance.lrp.deep_taylor import CONSERVING, tell_maps
from vitrail.relevance.runner import RerunMethod, Runner

Row = Float[Tensor, "b t"]
LEVEL = "embedding_output"


def weigh(gradient: Probs, relevance: Probs) -> Float[Tensor, "b q k"]:
    """Eq. 13 without the identity: the positive part of gradient times relevance, mean over heads."""
    return (gradient * relevance).clamp(min=0).mean(dim=1)


def pull(row: Float[Tensor, "b q"], mixing: Float[Tensor, "b q k"], *, normalise: bool, carried: bool) -> Row:
    """Eq. 14, read from the readout's row: `r <- r (I + A)`, the rows of `I + A` divided by their sums if asked for."""
    if normalise:
        row = row / (mixing.sum(dim=2) + carried)
    seen = (row[:, None] @ mixing).squeeze(1)
    return row + seen if carried else seen


def least_at_readout(row: Row, first: Layer) -> Row:
    """The readout's own entry replaced by the smallest of the real tokens' entries."""
    least = row.masked_fill(~first.valid, torch.inf).amin(dim=1, keepdim=True)
    return torch.where(first.readout == 1, least, row)


OWN: dict[str, Callable[[Row, Layer], Row]] = {
    "keep": lambda row, first: row,
    "minimum": least_at_readout,
    "zero": lambda row, first: row.masked_fill(first.readout == 1, 0.0),
}


def build(
    *, start_layer: int = 0, normalise: bool = False, own: str = "keep", precision: str = "float64"
) -> RerunMethod:
    """Gradient times relevance of every attention map, positive part, multiplied through the layers.

    Args:
        start_layer: the first layer that takes part, counted from zero; -1 is the last.
        normalise: divide the rows of every layer's matrix by their sums.
        own: `keep` the readout's own entry, or replace it by the row's `minimum` or by `zero`.
        precision: `float64` or `float32`.
    """
    dtype = check_choice("precision", precision, PRECISIONS)
    finish = check_choice("own", own, OWN)

    def explain(runner: Runner) -> Result:
        layers = runner.recorded(frozenset({"output_grad"}), PassOptions(dtype=dtype))
        lowest = start_layer % len(layers)
        state = {"row": layers[-1].readout}

        def see(index: int, relevance: Probs) -> None:
            layer = layers[index]
            mixing = weigh(layer.probs_grad, relevance)
            state["row"] = pull(state["row"], mixing, normalise=normalise, carried=not layer.pooling)

        tell_maps(runner.run, runner.part, see, lowest=lowest)
        return Result(finish(state["row"], layers[0]))

    rules = check_rules("transformer_attribution", LEVEL)

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        rules(model, body, inputs)
        depth = len(body.blocks) + (body.pool is not None)
        if not -depth <= start_layer < depth:
            raise OptionError(f"start_layer={start_layer}, but the model's layers are 0 to {depth - 1}.")

    pass_options = PassOptions(level=LEVEL, dtype=dtype, within=partial(propagating, CONSERVING))
    return RerunMethod(explain, pass_options, check=check)
