"""The interception of attention calls of unmodified models.

One `TorchFunctionMode` intercepts every torch function of the current thread. Three kinds matter: the fused
`scaled_dot_product_attention`, the functional form of `nn.MultiheadAttention` (which would hide the
former), and hand-written attention (a softmax followed by a product with the values).
"""

from vitrail.capture.seams.call import AttentionCall
from vitrail.capture.seams.intercept import attention_calls

__all__ = ["AttentionCall", "attention_calls"]
