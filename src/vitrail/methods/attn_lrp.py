"""AttnLRP: relevance through attention and its softmax, for encoders and decoders.

Achtibat et al., "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers", ICML 2024,
arXiv:2402.05602.
"""

from vitrail.capture.runner import RerunMethod
from vitrail.methods.conservative_lrp import gradient_times_input
from vitrail.relevance.lrp.constants import ATTN


def build(*, level: str = "embedding_output", precision: str = "float64") -> RerunMethod:
    """Gradient times input with products shared evenly, activations by the identity rule.

    Args:
        level: where the input is taken: `embedding_output`, `inputs_embeds` (text) or `pixels` (images).
        precision: `float64` or `float32`.
    """
    return gradient_times_input("attn_lrp", ATTN, level, precision)
