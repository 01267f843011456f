"""Grad-ECLIP for models as they are: many heads, any class logit. Our extension, not the authors'.

Zhao et al., ICML 2024, arXiv:2502.18816, define their method for a last block recomputed with one head (`grad_eclip`).
Here the model's own pass is explained: every head has its own gradient g_h, its own values v_h and its own similarity
of queries and keys, without the output projection, which mixes heads; the heads are added up.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vitrail.capture.recording import Layer
from vitrail.methods.grad_eclip import queries, seen, spread
from vitrail.relevance import Result, Walk, gradient, pull


def head_evidence(layer: Layer) -> Float[Tensor, "b h t"]:
    """`sum_d g_hd v_hjd`, head by head: the gradient at the head's map, in the readout's row."""
    return pull(layer, layer.readout, gradient)


def head_looseness(layer: Layer) -> Float[Tensor, "b h t"]:
    """`lambda_hj = minmax_j cos(q_h,readout, k_hj)`."""
    row = layer.readout[:, None, None, :] @ queries(layer)
    chosen = seen(layer)[:, None].expand(-1, row.shape[1], -1)
    return spread(F.cosine_similarity(row, layer.keys, dim=3), chosen)


def build(*, similarity: bool = True) -> Walk:
    """Our extension of Grad-ECLIP: last layer's gradient by values and by query-key similarity, summed over heads.

    Args:
        similarity: weigh each token by the similarity of its key to the readout's query, head by head.
    """

    def step(found: Float[Tensor, "b h t"] | None, layer: Layer) -> Float[Tensor, "b h t"] | None:
        if not layer.is_last:
            return found
        heads = head_evidence(layer)
        return heads * head_looseness(layer) if similarity else heads

    def finish(heads: Float[Tensor, "b h t"], first: Layer) -> Result:
        """`m_j = [sum_h .]^+`."""
        return Result(heads.sum(dim=1).clamp(min=0), heads=heads)

    return Walk(lambda last: None, step, finish, last_only=True)
