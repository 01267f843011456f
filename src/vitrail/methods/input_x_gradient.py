"""Gradient times input, where the model's inputs become vectors.

Shrikumar et al., "Not Just a Black Box: Learning Important Features Through Propagating Activation Differences", 2016,
arXiv:1605.01713. Paper -> code: x -> the embeddings or pixels where the gradient ends, summed over channels.
"""

from vitrail.capture.pass_options import PassOptions
from vitrail.methods.options import at_level, check_level
from vitrail.relevance import Result
from vitrail.relevance.runner import RerunMethod, Runner


def build(*, level: str = "embedding_output") -> RerunMethod:
    """The gradient of the target times the input, summed over channels.

    Args:
        level: take the input where the first block reads it (`embedding_output`), at the word embeddings
            (`inputs_embeds`, text) or at the picture (`pixels`, images).
    """

    def explain(runner: Runner) -> Result:
        ((x, gradient),) = runner.gradient()
        return at_level(level, runner, x * gradient)

    return RerunMethod(explain, PassOptions(level=level), check=check_level(level))
