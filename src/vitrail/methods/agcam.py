"""AGCAM: the positive gradient of attention, times the sigmoid of its scores.

Leem and Seo, "Attention Guided CAM: Visual Explanations of Vision Transformer Guided by Self-Attention", AAAI 2024,
arXiv:2402.04563. Paper -> code: F -> sigmoid of scores, alpha -> positive part of probs_grad, the class token's row ->
the readout's row. Blocks and heads are added, not averaged.
"""

from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.layer import Layer, Probs
from vitrail.capture.recording.pass_options import PassOptions
from vitrail.capture.seams.intercept import BLIND
from vitrail.methods.options import check_blocks
from vitrail.relevance import LayerReader, pull
from vitrail.relevance.runner import RerunMethod


def weigh(layer: Layer) -> Probs:
    """The positive gradient, weighted by the sigmoid of what enters the softmax; zero where a key is masked."""
    return layer.probs_grad.clamp(min=0) * layer.scores.sigmoid()


def step(found: Float[Tensor, "b t"] | float, layer: Layer) -> Float[Tensor, "b t"]:
    """The sum over blocks and heads of the readout's row."""
    return found + pull(layer, layer.readout, weigh).sum(dim=1)


NEEDS = frozenset({"output_grad", "softmax_input"})
READER = LayerReader(step, lambda last: 0.0, needs=NEEDS)


def build(*, detach: bool = False) -> LayerReader | RerunMethod:
    """The positive attention gradient times the sigmoid of the scores, added over blocks and heads.

    Args:
        detach: stop gradients at the inputs of attention, as the released code does: gradients reach earlier blocks
            only through skip connections and feed-forward layers.
    """
    if not detach:
        return READER
    check = check_blocks("agcam(detach=True)")
    return RerunMethod(lambda runner: runner.read_by(READER)[0], PassOptions(override=BLIND), NEEDS, check=check)
