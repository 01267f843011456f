"""Relative absolute magnitude propagation (absLRP), contrasted with all other classes.

Vukadin et al., "Advancing Attribution-Based Neural Network Explainability through Relative Absolute Magnitude
Layer-Wise Relevance Propagation and Multi-Component Evaluation", 2024, arXiv:2412.09311.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.pass_options import PassOptions
from vitrail.errors import TargetError
from vitrail.methods.options import PRECISIONS, at_level, check_choice, check_rules
from vitrail.relevance import Result
from vitrail.relevance.lrp import propagating
from vitrail.relevance.lrp.absolute import PLAIN, absolute_rules
from vitrail.relevance.runner import RerunMethod, Runner

_MIXED = "its relevance is divided by each sample's absolute sum, and there samples share an axis"
REFUSED = {
    "MultiheadAttention": _MIXED,
    "AttentionPoolLatent": "no rule is published for a query that pools the tokens",
    "Conv1D": _MIXED,
    "RMSNorm": "no rule is published for norms without a mean",
}
"""Modules the rules do not cover, by the end of their class's name."""


def seeds(runner: Runner, logits: Float[Tensor, "b c"]) -> tuple[Tensor, Tensor]:
    """Relevance of one for the target's class, and of one shared by all other classes."""
    if runner.part.target.name not in {"logit", "probability"} or logits.ndim != 2:
        raise TargetError(f"abs_lrp contrasts one class with all others; it cannot explain {runner.part.target}.")
    chosen = torch.zeros_like(logits)
    chosen[runner.rows, torch.as_tensor(runner.part.target.first, device=logits.device)] = 1.0
    return chosen, (1 - chosen) / max(logits.shape[1] - 1, 1)


def contrast(wanted: Tensor, others: Tensor) -> Tensor:
    """What speaks for the class rather than for the others, each sample divided by its largest absolute value."""
    found = wanted - others
    largest = found.abs().amax(dim=tuple(range(1, found.ndim)), keepdim=True)
    return found / torch.where(largest == 0, torch.ones_like(largest), largest)


def build(*, level: str = "embedding_output", precision: str = "float64") -> RerunMethod:
    """Relevance by absolute magnitudes, for the class less for all others.

    Args:
        level: how far back: to the picture (`pixels`) or to what the first block reads (`embedding_output`).
        precision: `float64` or `float32`.
    """
    dtype = check_choice("precision", precision, PRECISIONS)

    def explain(runner: Runner) -> Result:
        rules = absolute_rules(runner.run.capture.notes)
        with runner.again(pass_options=PassOptions(level=level, dtype=dtype, within=partial(propagating, rules))) as (
            run,
            _,
        ):
            wanted, others = (run.pull_back(seed) for seed in seeds(runner, run.output.logits))
        return at_level(level, runner, contrast(wanted, others))

    pass_options = PassOptions(level=level, dtype=dtype, within=partial(propagating, PLAIN))
    return RerunMethod(explain, pass_options, check=check_rules("abs_lrp", level, refused=REFUSED))
