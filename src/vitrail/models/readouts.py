"""The tokens that a prediction is read from, as weights over positions that sum to one."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import SeamError

Valid = Bool[Tensor, "b t"]
Weights = Float[Tensor, "b t"]


def normalised(chosen: Valid) -> Weights:
    """Equal weights for the chosen tokens, in float64 where the device has it."""
    weights = chosen.to(torch.float32 if chosen.device.type == "mps" else torch.float64)  # Apple's GPUs have no float64
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=1)


def position(valid: Valid, index: Tensor | int) -> Weights:
    """All weight on one position, the same for all samples or one for each."""
    rows = torch.as_tensor(index, device=valid.device).expand(valid.shape[0])
    return normalised(torch.zeros_like(valid).scatter_(1, rows[:, None] % valid.shape[1], value=True))


def first(valid: Valid, count: int) -> Weights:
    """The first tokens, which is where models read them, padding or not."""
    chosen = torch.zeros_like(valid)
    chosen[:, :count] = True
    return normalised(chosen)


def last_position(valid: Valid) -> Tensor:
    """The index of the last real token of each sample."""
    return valid.shape[1] - 1 - valid.to(torch.int64).flip(1).argmax(dim=1)


READOUTS: dict[str, Callable[[Valid, Valid], Weights]] = {
    "cls": lambda valid, content: first(valid, 1),
    "last": lambda valid, content: position(valid, last_position(valid)),  # whichever side the padding is on
    "mean": lambda valid, content: normalised(valid & content),
    "mean_all": lambda valid, content: normalised(valid),
    "cls_mean": lambda valid, content: (first(valid, 1) + normalised(valid & content)) / 2,  # as in DINOv2's classifier
    "first_two": lambda valid, content: first(valid, 2),  # class and distillation token, as in a distilled DeiT
}
"""From which tokens are real, and which are patches or words, to weights."""

MEASURED = ("pool", "position", "auto")
"""Readouts that only the run itself can tell: a pooling query, a position named by the target, a gradient."""


def by_gradient(gradient: Float[Tensor, "b t d"], valid: Valid) -> tuple[Weights, Weights]:
    """The real tokens whose gradient is not zero, with equal weights and weighted by its norm."""
    alike = normalised(valid & (gradient != 0).any(dim=2))
    norms = gradient.to(alike.dtype).norm(dim=2) * valid
    return alike, norms / norms.sum(dim=1, keepdim=True).clamp(min=torch.finfo(norms.dtype).tiny)


def contradicted(claimed: Weights, measured: Weights, *, coarse: bool) -> Bool[Tensor, " b"]:
    """The samples in which other rows are read than those that are said to be, by the gradient.

    Args:
        coarse: whether small gradients may have vanished, as in half precision.
    """
    said, seen = claimed > 0, measured > 0
    known = seen.any(dim=1, keepdim=True)  # a gradient that is zero everywhere says nothing
    missed = torch.zeros_like(said) if coarse else said & ~seen
    return (known & ((seen & ~said) | missed)).any(dim=1)


def contradiction(claimed: Weights, measured: Weights, sample: int, *, named: str) -> SeamError:
    """Return the error for a gradient that contradicts the rows that are named.

    Args:
        named: what names them.
    """
    said, seen = claimed > 0, measured > 0
    return SeamError(
        f"{named} says that the prediction is read from tokens {_listed(said[sample])}, but the gradient of the target "
        f"arrives at tokens {_listed(seen[sample])} of the last block. Leave the readout out, and it is measured: "
        "vitrail.Anatomy(readout='auto')."
    )


def _listed(chosen: Tensor) -> str:
    places = chosen.nonzero()[:, 0].tolist()
    return ", ".join(map(str, places[:6])) + (f" and {len(places) - 6} more" if len(places) > 6 else "") or "none"
