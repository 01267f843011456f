"""The explanations that `consensus` adds up."""

from collections.abc import Callable

from torch import Tensor

from vitrail.capture.pass_options import PassOptions
from vitrail.methods import agcam, attention_gradients, attn_lrp, gae, le_grad, tokentm
from vitrail.methods.consensus_blanked import on_copies
from vitrail.methods.integrated_gradients import attributed
from vitrail.methods.levels import check_level
from vitrail.methods.paths import copies_summed, midpoints, path_sum, scaled
from vitrail.relevance import Result, Walk
from vitrail.relevance.runner import RerunMethod, Runner

WORDS, STEPS = "inputs_embeds", 3


def word_gradients() -> RerunMethod:
    """`integrated_gradients` at the word embeddings in few steps, without the passes that measure its completeness."""

    def explain(runner: Runner) -> Result:
        words: list[Tensor] = []

        def some(points: list[float]) -> Tensor:
            def at_root(x: Tensor) -> Tensor:
                words.append(x)
                return scaled(x, points, axis=0)

            with runner.again(pass_options=PassOptions(level=WORDS, at_root=at_root), copies=len(points)) as (
                run,
                part,
            ):
                ((_, gradient),) = run.at_roots(part)
            return copies_summed(gradient, len(points), axis=0)

        gradients = path_sum(some, midpoints(STEPS), batch=1)
        assert gradients is not None
        return Result(attributed(words[0].to(gradients.dtype), gradients, STEPS).sum(dim=2))

    return RerunMethod(explain, check=check_level(WORDS))


PARTS: dict[str, Callable[[str], Walk | RerunMethod]] = {
    "gae": lambda precision: gae.build(),
    "lengths": lambda precision: tokentm.build(direction=False, ffn=False, initial="identity", scalar="logit"),
    "attn_lrp": lambda precision: attn_lrp.build(precision=precision),
    "le_grad": lambda precision: le_grad.build(tokens="readout"),
    "integrated_gradients": lambda precision: word_gradients(),
    "blanked_lrp": lambda precision: on_copies(attn_lrp.build(precision=precision)),
    "att_grads": lambda precision: attention_gradients.build_att_grads(),
    "agcam": lambda precision: agcam.build(),
}
"""By name, the explanation that takes part, in a given precision where it is computed by rules."""
