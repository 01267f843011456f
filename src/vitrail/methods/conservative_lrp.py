"""Conservative propagation: gradient times input with constant attention and constant norms.

Ali et al., "XAI for Transformers: Better Explanations through Conservative Propagation", ICML 2022, arXiv:2202.07304.
"""

from functools import partial

from vitrail.circumstances import How
from vitrail.errors import OptionError
from vitrail.methods.levels import at_level, check_rules
from vitrail.methods.options import PRECISIONS, check_choice
from vitrail.relevance import Result
from vitrail.rules import RuleSet, propagating
from vitrail.rules.constants import CONSERVATIVE, CONSERVATIVE_LXT, CONSERVATIVE_MEAN
from vitrail.subject import Procedure, Subject

RULES: dict[tuple[str, bool], RuleSet] = {
    ("paper", False): CONSERVATIVE,
    ("paper", True): CONSERVATIVE_MEAN,
    ("lxt", False): CONSERVATIVE_LXT,
}


def gradient_times_input(name: str, table: RuleSet, level: str, precision: str) -> Procedure:
    """The relevance where the gradient ends: the input times its gradient on the bent graph, summed over channels."""

    def explain(subject: Subject) -> Result:
        ((x, gradient),) = subject.gradient()
        return at_level(level, subject, x * gradient)

    how = How(level=level, dtype=check_choice("precision", precision, PRECISIONS), within=partial(propagating, table))
    return Procedure(explain, how, check=check_rules(name, level))


def build(
    *,
    rules: str = "paper",
    detach_mean: bool = False,
    level: str = "embedding_output",
    precision: str = "float64",
) -> Procedure:
    """Gradient times input with attention and the scale of norms held constant.

    Args:
        rules: `paper`, or `lxt`: activations by the identity rule and gates constant as well, as in the LXT library.
        detach_mean: hold the mean of layer norms constant too.
        level: where the input is taken: `embedding_output`, `inputs_embeds` (text) or `pixels` (images).
        precision: `float64` or `float32`.
    """
    check_choice("rules", rules, {"paper": 0, "lxt": 0})
    if (rules, detach_mean) not in RULES:
        raise OptionError("detach_mean applies to rules='paper' only.")
    return gradient_times_input("conservative_lrp", RULES[rules, detach_mean], level, precision)
