"""Conservative propagation: gradient times input with constant attention and constant norms.

Ali et al., "XAI for Transformers: Better Explanations through Conservative Propagation", ICML 2022, arXiv:2202.07304.
"""

from functools import partial

from vitrail.capture.pass_options import PassOptions
from vitrail.errors import OptionError
from vitrail.methods.options import PRECISIONS, at_level, check_choice, check_rules
from vitrail.relevance import Result
from vitrail.relevance.lrp import RuleSet, propagating
from vitrail.relevance.lrp.conservative import CONSERVATIVE, CONSERVATIVE_LXT, CONSERVATIVE_MEAN
from vitrail.relevance.runner import RerunMethod, Runner

RULES: dict[tuple[str, bool], RuleSet] = {
    ("paper", False): CONSERVATIVE,
    ("paper", True): CONSERVATIVE_MEAN,
    ("lxt", False): CONSERVATIVE_LXT,
}


def gradient_times_input(name: str, table: RuleSet, level: str, precision: str) -> RerunMethod:
    """The relevance where the gradient ends: the input times its gradient by the rules, summed over channels."""

    def explain(runner: Runner) -> Result:
        ((x, gradient),) = runner.gradient()
        return at_level(level, runner, x * gradient)

    pass_options = PassOptions(
        level=level, dtype=check_choice("precision", precision, PRECISIONS), within=partial(propagating, table)
    )
    return RerunMethod(explain, pass_options, check=check_rules(name, level))


def build(
    *,
    rules: str = "paper",
    detach_mean: bool = False,
    level: str = "embedding_output",
    precision: str = "model",
) -> RerunMethod:
    """Gradient times input with attention and the scale of norms held constant.

    Args:
        rules: `paper`, or `lxt`: activations by the identity rule and gates constant as well, as in the LXT library.
        detach_mean: hold the mean of layer norms constant too.
        level: where the input is taken: `embedding_output`, `inputs_embeds` (text) or `pixels` (images).
        precision: `model` runs the model as it is; `float64` and `float32` run a copy of its weights.
    """
    check_choice("rules", rules, {"paper": 0, "lxt": 0})
    if (rules, detach_mean) not in RULES:
        raise OptionError("detach_mean applies to rules='paper' only.")
    return gradient_times_input("conservative_lrp", RULES[rules, detach_mean], level, precision)
