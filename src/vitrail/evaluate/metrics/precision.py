"""Average precision of many rankings at once, where the scores are."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def average_precision(
    scores: Float[Tensor, "b n"], positive: Bool[Tensor, "b n"], counted: Bool[Tensor, "b n"]
) -> Float[Tensor, " b"]:
    """`sum_k (R_k - R_(k-1)) P_k` over the distinct scores, from the highest; 0 where nothing is positive.

    Args:
        scores: the ranking; equal scores are one step of the sum.
        positive: what should be ranked high.
        counted: entries that are not counted change neither precision nor recall.
    """
    ranked, order = scores.sort(dim=1, descending=True)
    found = (positive & counted).gather(1, order).cumsum(dim=1)
    seen = counted.gather(1, order).cumsum(dim=1)
    last = torch.ones_like(positive)  # of a run of equal scores
    last[:, :-1] = ranked[:, 1:] != ranked[:, :-1]
    # Counts never fall, so the running maximum holds the count at the end of the run before.
    before = torch.zeros_like(found)
    before[:, 1:] = (found * last).cummax(dim=1).values[:, :-1]
    steps = ((found - before) * last).to(scores.dtype) * found / seen.clamp(min=1)
    return steps.sum(dim=1) / found[:, -1].clamp(min=1)
