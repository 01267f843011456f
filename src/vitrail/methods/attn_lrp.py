"""AttnLRP: relevance through attention and its softmax, for encoders and decoders.

Achtibat et al., "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers", ICML 2024,
arXiv:2402.05602. The relevance is gradient times input on a graph in which

* a product of two activations gives each of them half (uniform rule);
* one number for each token, such as the weight a router gives to an expert, is a constant: experts share by their gate;
* the softmax is differentiated as it is (Taylor decomposition without bias);
* an elementwise function f is differentiated as `f(x) / x` (identity rule);
* the deviation of a norm is a constant.

In `softmax(q k^T) v` the product with v gives v one half and the map the other; of that half, the product `q k^T` gives
q and k one half each. So fused attention is differentiated by its own kernel, with the gradients of q and k times 1/4
and of v times 1/2: no map is computed, and the pass runs in the model's precision.
"""

from dataclasses import replace

from torch import Tensor

from vitrail.methods.conservative_lrp import (
    GRADIENT,
    NORMS,
    attention,
    gradient_times_input,
    identity_gradient,
    router_constant,
    sampled,
)
from vitrail.relevance.lrp import Operation, RuleSet
from vitrail.relevance.runner import RerunMethod

SHARES = (0.25, 0.25, 0.5)


def evenly(operation: Operation) -> Tensor:
    """A product of activations shares relevance evenly between them."""
    share = 1 / len(operation.active)
    factors = {id(x): operation.shared(x, share) for x in operation.active}
    for old in operation.active:
        operation.same(old, factors[id(old)])
    return operation.again(factors)


def gate(operation: Operation) -> Tensor:
    """An entrywise product: one function of each entry, such as `x sigmoid(x)` written out, or two activations."""
    if operation.source is None:
        return evenly(operation)
    return identity_gradient(replace(operation, active=(operation.source,)))


ATTN = RuleSet(
    "AttnLRP",
    {
        **GRADIENT,
        **NORMS,
        "attention": attention(SHARES),
        "sampled": sampled,
        "product": evenly,
        "einsum": evenly,
        "gate": router_constant(gate),
        "activation": identity_gradient,
    },
)


def build(*, level: str = "embedding_output", precision: str = "model") -> RerunMethod:
    """Gradient times input with products shared evenly, activations by the identity rule.

    Args:
        level: where the input is taken: `embedding_output`, `inputs_embeds` (text) or `pixels` (images).
        precision: `model` runs the model as it is; `float64` and `float32` run a copy of its weights.
    """
    return gradient_times_input("attn_lrp", ATTN, level, precision)
