"""Layer-wise relevance propagation, down to the pixels or the embeddings, and partial LRP, to the last attention map.

LRP: Bach et al., PLoS ONE 2015. Partial LRP: Voita et al., ACL 2019, arXiv:1905.09418. Both in the form that Chefer,
Gur and Wolf, CVPR 2021, arXiv:2012.09838, compare with.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.layer import Probs
from vitrail.methods.options import at_level, check_choice, check_rules, under_rules, without_readout
from vitrail.methods.transformer_attribution import CONSERVING, ORIG, map_relevance
from vitrail.relevance import Result
from vitrail.relevance.lrp import RuleSet
from vitrail.relevance.runner import RerunMethod, Runner

RULES: dict[str, RuleSet] = {"orig": ORIG, "conserving": CONSERVING}


def build(*, rules: str = "orig", level: str = "embedding_output", precision: str = "float64") -> RerunMethod:
    """Relevance of one, given to the target and propagated back through every layer.

    Args:
        rules: `orig`, as published for the baseline, or `conserving`, those of Transformer Attribution.
        level: how far back: to the picture (`pixels`) or to what the first block reads (`embedding_output`).
        precision: `float64`, or `float32`, in which full LRP is badly conditioned.
    """
    table = check_choice("rules", rules, RULES)

    def explain(runner: Runner) -> Result:
        ((_, relevance),) = runner.gradient()
        return at_level(level, runner, relevance)

    return RerunMethod(explain, under_rules(table, level, precision), check=check_rules("lrp", level))


LEVEL = "embedding_output"


def readout_of(relevance: Probs, readout: Float[Tensor, "b q"]) -> Float[Tensor, "b t"]:
    """The positive part of every head, their mean, and of that the readout's row."""
    return (readout[:, None] @ relevance.clamp(min=0).mean(dim=1).to(readout.dtype)).squeeze(1)


def build_partial(*, rules: str = "orig", zero_readout: bool = False, precision: str = "model") -> RerunMethod:
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

        map_relevance(runner.run, runner.part, see, lowest=last.index)
        return without_readout(zero_readout)(torch.stack(found).sum(dim=0), last)

    pass_options = under_rules(table, LEVEL, precision, wide_range=True, last_block=True)
    return RerunMethod(explain, pass_options, check=check_rules("partial_lrp", LEVEL))
