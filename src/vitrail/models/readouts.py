"""Which tokens a prediction is read from, as weights over positions that sum to one."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import SeamError

Valid = Bool[Tensor, "b t"]
Weights = Float[Tensor, "b t"]


def dtype_of(valid: Valid) -> torch.dtype:
    """The dtype of weights: float64 where the device has it."""
    return torch.float32 if valid.device.type == "mps" else torch.float64  # Apple's GPUs have no float64


def _normalised(chosen: Valid) -> Weights:
    weights = chosen.to(dtype_of(chosen))
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=1)


def position(valid: Valid, index: Tensor | int) -> Weights:
    """All weight on one position, the same for all samples or one for each."""
    rows = torch.as_tensor(index, device=valid.device).expand(valid.shape[0])
    weights = torch.zeros(valid.shape, dtype=dtype_of(valid), device=valid.device)
    return weights.scatter_(1, rows[:, None] % valid.shape[1], 1.0)


def cls(valid: Valid, content: Valid) -> Weights:
    """The first token, which is where models read it, padding or not."""
    weights = torch.zeros(valid.shape, dtype=dtype_of(valid), device=valid.device)
    weights[:, 0] = 1.0
    return weights


def last(valid: Valid, content: Valid) -> Weights:
    """The last real token, whichever side the padding is on."""
    return position(valid, last_position(valid))


def last_position(valid: Valid) -> Tensor:
    """The index of the last real token of each sample."""
    return valid.shape[1] - 1 - valid.to(torch.int64).flip(1).argmax(dim=1)


def mean(valid: Valid, content: Valid) -> Weights:
    """The mean of all real patches or words, without prefix tokens."""
    return _normalised(valid & content)


def mean_all(valid: Valid, content: Valid) -> Weights:
    """The mean of all real tokens."""
    return _normalised(valid)


def cls_mean(valid: Valid, content: Valid) -> Weights:
    """The class token beside the mean of the patches, as in DINOv2's classifier."""
    return (cls(valid, content) + mean(valid, content)) / 2


def first_two(valid: Valid, content: Valid) -> Weights:
    """Equal weights for the class token and the distillation token, as in a distilled DeiT."""
    chosen = torch.zeros_like(valid)
    chosen[:, :2] = True
    return _normalised(chosen)


READOUTS: dict[str, Callable[[Valid, Valid], Weights]] = {
    "cls": cls,
    "last": last,
    "mean": mean,
    "mean_all": mean_all,
    "cls_mean": cls_mean,
    "first_two": first_two,
}

MEASURED = ("pool", "position", "auto")
"""Readouts that only the run itself can tell: a pooling query, a position named by the target, a gradient."""


def by_gradient(gradient: Float[Tensor, "b t d"], valid: Valid) -> tuple[Weights, Weights]:
    """The real tokens whose gradient is not zero, with equal weights and weighted by its norm."""
    dtype = dtype_of(valid)
    norms = gradient.to(dtype).norm(dim=2) * valid
    alike = (valid & (gradient != 0).any(dim=2)).to(dtype)
    tiny = torch.finfo(dtype).tiny
    return alike / alike.sum(dim=1, keepdim=True).clamp(min=1), norms / norms.sum(dim=1, keepdim=True).clamp(min=tiny)


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
    """What to say where the gradient contradicts the rows that are named.

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
