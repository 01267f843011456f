"""Partial LRP: the relevance of the last block's attention, and no further.

Voita et al., ACL 2019, arXiv:1905.09418, in the form that Chefer, Gur and Wolf, CVPR 2021, compare with.
"""

from functools import partial

from jaxtyping import Float
from torch import Tensor

from vitrail.circumstances import How
from vitrail.methods.levels import check_rules
from vitrail.methods.lrp import RULES
from vitrail.methods.options import PRECISIONS, check_choice, without_readout
from vitrail.recording import Layer, Probs
from vitrail.relevance import Result
from vitrail.rules import propagating
from vitrail.rules.maps import tell_maps
from vitrail.subject import Procedure, Subject

LEVEL = "embedding_output"


def readout_of(relevance: Probs, layer: Layer) -> Float[Tensor, "b t"]:
    """The positive part of every head, their mean, and of that the readout's row."""
    return (layer.readout[:, None] @ relevance.clamp(min=0).mean(dim=1).to(layer.readout.dtype)).squeeze(1)


def build(*, rules: str = "orig", zero_readout: bool = False, precision: str = "float64") -> Procedure:
    """The relevance of the last layer's attention map, positive part, mean over heads.

    Args:
        rules: `orig`, as published for the baseline, or `conserving`, those of Transformer Attribution.
        zero_readout: set the readout's own entry to zero.
        precision: `float64` or `float32`.
    """
    table = check_choice("rules", rules, RULES)

    def explain(subject: Subject) -> Result:
        last = subject.layers(frozenset(), last_only=True)[-1]
        found: dict[int, Probs] = {}
        tell_maps(subject.run, subject.part, found.__setitem__, lowest=last.index)
        return without_readout(zero_readout)(readout_of(found[last.index], last), last)

    how = How(level=LEVEL, dtype=check_choice("precision", precision, PRECISIONS), within=partial(propagating, table))
    return Procedure(explain, how, check=check_rules("partial_lrp", LEVEL))
