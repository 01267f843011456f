"""Partial LRP: the relevance of the last block's attention, and no further.

Voita et al., ACL 2019, arXiv:1905.09418, in the form that Chefer, Gur and Wolf, CVPR 2021, compare with.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.pass_options import PassOptions
from vitrail.capture.recording import Probs
from vitrail.methods.lrp import RULES
from vitrail.methods.options import PRECISIONS, check_choice, check_rules, without_readout
from vitrail.relevance import Result
from vitrail.relevance.lrp import propagating
from vitrail.relevance.lrp.deep_taylor import tell_maps
from vitrail.relevance.runner import RerunMethod, Runner

LEVEL = "embedding_output"


def readout_of(relevance: Probs, readout: Float[Tensor, "b q"]) -> Float[Tensor, "b t"]:
    """The positive part of every head, their mean, and of that the readout's row."""
    return (readout[:, None] @ relevance.clamp(min=0).mean(dim=1).to(readout.dtype)).squeeze(1)


def build(*, rules: str = "orig", zero_readout: bool = False, precision: str = "model") -> RerunMethod:
    """The relevance of the last layer's attention map, positive part, mean over heads.

    Args:
        rules: `orig`, as published for the baseline, or `conserving`, those of Transformer Attribution.
        zero_readout: set the readout's own entry to zero.
        precision: `model` runs the model as it is, and the rules of the last block in float32 at least; `float64` and
            `float32` run a copy of its weights.
    """
    table = check_choice("rules", rules, RULES)

    def explain(runner: Runner) -> Result:
        last = runner.layers(frozenset(), last_only=True)[-1]
        found: list[Float[Tensor, "b t"]] = []

        def see(index: int, relevance: Probs, rows: slice) -> None:
            if index == last.index:
                found.append(readout_of(relevance, last.readout[:, rows]))

        tell_maps(runner.run, runner.part, see, lowest=last.index)
        return without_readout(zero_readout)(torch.stack(found).sum(dim=0), last)

    pass_options = PassOptions(
        level=LEVEL,
        dtype=check_choice("precision", precision, PRECISIONS),
        wide_range=True,
        last_block=True,
        within=partial(propagating, table),
    )
    return RerunMethod(explain, pass_options, check=check_rules("partial_lrp", LEVEL))
