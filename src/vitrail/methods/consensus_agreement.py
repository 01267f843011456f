"""How little the parts of a consensus agree."""

from itertools import combinations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Parts = Float[Tensor, "b p t"]
Content = Bool[Tensor, "b t"]
Apart = Float[Tensor, " b"] | None


def ranks(scores: Parts, content: Content) -> Parts:
    """The rank of each score among the content of its sample, equal scores sharing theirs; zero elsewhere."""
    hidden = ~content[:, None].expand_as(scores)
    values = scores.masked_fill(hidden, torch.inf).contiguous()
    ordered = values.sort(dim=2).values
    low, high = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return ((low + high) / 2).to(scores.dtype).masked_fill(hidden, 0.0)


def disagreement(parts: Parts, content: Content) -> Apart:
    """One minus the mean of Spearman's correlation over pairs of parts; a constant part agrees with none."""
    if parts.shape[1] < 2:
        return None
    count = content.sum(dim=1)[:, None, None]
    ranked = ranks(parts, content)
    centred = (ranked - ranked.sum(dim=2, keepdim=True) / count).masked_fill(~content[:, None], 0.0)
    length = centred.norm(dim=2, keepdim=True)
    shape = centred / length.clamp(min=1e-6)  # lengths of ranks are zero or at least about one
    pairs = [(shape[:, i] * shape[:, j]).sum(dim=1) for i, j in combinations(range(parts.shape[1]), 2)]
    return 1 - torch.stack(pairs).mean(dim=0)
