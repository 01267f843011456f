"""Layer-wise relevance propagation, down to the pixels or the embeddings.

Bach et al., PLoS ONE 2015; in the form that Chefer, Gur and Wolf, CVPR 2021, arXiv:2012.09838, compare with.
"""

from functools import partial

from vitrail.capture.pass_options import PassOptions
from vitrail.methods.options import PRECISIONS, at_level, check_choice, check_rules
from vitrail.relevance import Result
from vitrail.relevance.lrp import RuleSet, propagating
from vitrail.relevance.lrp.deep_taylor import CONSERVING, ORIG
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

    pass_options = PassOptions(
        level=level, dtype=check_choice("precision", precision, PRECISIONS), within=partial(propagating, table)
    )
    return RerunMethod(explain, pass_options, check=check_rules("lrp", level))
