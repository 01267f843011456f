"""The effect of an output projection on vectors of tokens, and that of the norms and scales behind it.

A projection may be a plain `nn.Linear`, but also carry LoRA adapters, hold integers that it dequantises, or make its
weight anew in every pass. Its matrix is what it does: `f(x) - f(0)`, measured by calling it.

A norm is not linear. Its statistics are those of the pass: with them fixed, it multiplies each token's row by a number
(one over the deviation or root mean square of what the projection gave there) and then by one matrix for all tokens.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from vitrail.capture.graphs import decided
from vitrail.capture.recording.layer import widen
from vitrail.capture.torch_private import with_functions

PLAIN_LINEAR = (nn.Linear, NonDynamicallyQuantizableLinear)
PASSING = ("Dropout", "Identity", "DropPath", "StochasticDepth")
"""Modules that give what they were given, by the end of their class's name."""
EPSILONS = ("eps", "variance_epsilon", "epsilon")
PROBE = 64.0
"""The length of a probe. In half precision a weight that is added to a larger bias is rounded as the bias is."""
ROWS = 1024
"""Probes in one call."""
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
QUANTISED = 5e-2
"""How far results may be from what a matrix says, by the largest entry; the second for modules that quantise."""


class Unknown(Exception):
    """The error for an update that cannot be put together from what is known; says why."""


def is_plain(module: nn.Module) -> bool:
    """Return True for torch's own linear layer, or Hugging Face's `Conv1D`, with a weight of its own."""
    weight, kind = module._parameters.get("weight"), type(module)
    known = kind in PLAIN_LINEAR or (kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils")
    stored = type(weight) in (nn.Parameter, Tensor) and weight is not None and weight.is_floating_point()
    return known and stored and "forward" not in vars(module)


def is_norm(module: nn.Module) -> bool:
    """Return True for a norm over channels, by the name of its class."""
    name = type(module).__name__.lower()
    over_channels = "batch" not in name and "group" not in name
    return isinstance(module, (nn.LayerNorm, nn.RMSNorm)) or (name.endswith("norm") and over_channels)


def passes(module: nn.Module) -> bool:
    """Return True for a module that gives what it is given."""
    return type(module).__name__.endswith(PASSING)


def scales(module: nn.Module) -> bool:
    """Return True for a layer scale."""
    return "scale" in type(module).__name__.lower() and len(list(module.parameters())) == 1


def hands_on(module: nn.Module) -> bool:
    """Return True if a module computes nothing new of a result: a norm, a dropout, a layer scale."""
    return is_norm(module) or passes(module) or scales(module)


def width_of(module: nn.Module) -> int | None:
    """Return how many channels a linear layer of any class reads: as it says, or by the shape of its own weight."""
    width, weight = getattr(module, "in_features", None), module._parameters.get("weight")
    if isinstance(width, int):
        return width
    return weight.shape[-1] if weight is not None and weight.ndim == 2 else None


def is_affine(module: nn.Module, given: Tensor) -> bool:
    """Return True if a module is affine on some rows: f(-2x) - f(0) == -2 (f(x) - f(0))."""
    rows = given.detach().flatten(0, -2)[:ROWS]
    try:
        nothing = at_zero(module, rows.shape[-1], rows)
        once, twice = (widen(_call_rows(module, factor * rows)) - nothing for factor in (1, -2))
    except Unknown:
        return False
    return are_alike(twice, -2 * once, given.dtype)


def matrix(module: nn.Module, width: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the weight `[out, in]` and the bias of an affine module.

    Args:
        width: how many channels it reads.
        like: a tensor of the device and, where the module stores no floating-point weight, of the dtype it reads.
    """
    if is_plain(module):
        weight, bias = module.weight, module.bias
        assert isinstance(weight, Tensor)
        # GPT-2 stores it the other way round.
        weight = weight.detach() if type(module) in PLAIN_LINEAR else weight.detach().T
        return weight, bias.detach() if isinstance(bias, Tensor) else None
    nothing = at_zero(module, width, like)
    eye = PROBE * torch.eye(width, dtype=_dtype_of(module, like), device=like.device)
    columns = [widen(_call_rows(module, some)) - nothing for some in eye.split(ROWS)]
    return torch.cat(columns).T / PROBE, nothing


def at_zero(module: nn.Module, width: int, like: Tensor) -> Tensor:
    """Return what an affine module adds: its value at zero."""
    return widen(_call_rows(module, torch.zeros(1, width, dtype=_dtype_of(module, like), device=like.device)))[0]


def _call_rows(module: nn.Module, rows: Tensor) -> Tensor:
    """Call a module on rows of channels, each a sequence of its own; without hooks, whose users expect real inputs."""
    # Weights of a tensor class of their own handle torch functions themselves, also where modes are off.
    try:
        with torch.no_grad(), with_functions():
            out = module.forward(rows[:, None])
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # modules fail in any way
        raise Unknown(f"{type(module).__name__} takes no rows of channels, as a convolution does not") from error
    return (out[0] if isinstance(out, (tuple, list)) else out)[:, 0]


def _dtype_of(module: nn.Module, like: Tensor) -> torch.dtype:
    weight = getattr(module, "weight", None)
    return weight.dtype if isinstance(weight, Tensor) and weight.is_floating_point() else like.dtype


Step = tuple[nn.Module, Tensor, Tensor]
"""A norm or scale that a result went through, with what it was given and what it gave."""


def through(steps: Iterable[Step], weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the matrix after norms and scales, and what each row is multiplied by beside.

    Args:
        steps: with states `[b, t, d]`.
        weight: the matrix before them.
    """
    rows: Tensor | None = None
    for module, given, gave in steps:
        centred, gain, factor = norm_step(module, widen(given), widen(gave), given.dtype)
        weight = widen(weight).to(gain.dtype)
        weight = gain[:, None] * (weight - weight.mean(dim=0) if centred else weight)
        if factor is not None:
            rows = factor if rows is None else rows * factor
    return weight, rows


def norm_step(module: nn.Module, given: Tensor, gave: Tensor, dtype: torch.dtype) -> tuple[bool, Tensor, Tensor | None]:
    """Find a norm with its statistics as they were, or a scale: if the mean is taken off, gain, rows' factors."""
    ones, zero = torch.ones_like(given[0, 0]), torch.zeros_like(given[0, 0])
    held = {name: widen(x.detach()) for name, x in module.named_parameters() if x.shape == ones.shape}
    gains = [ones, *(y for x in held.values() for y in (x, 1 + x))]
    shifts = [zero, *held.values()]
    coarse = torch.float32 if dtype is torch.float64 else dtype  # norms compute in float32 also where they read more
    eps = next((float(x) for name in EPSILONS if isinstance(x := getattr(module, name, None), (int, float))), 1e-6)
    for centred in (False, True):
        rest = given - given.mean(dim=-1, keepdim=True) if centred else given
        factor = (rest.square().mean(dim=-1, keepdim=True) + eps).rsqrt() if is_norm(module) else None
        unit = rest if factor is None else rest * factor
        for gain in gains:
            for shift in shifts:
                if are_alike(unit * gain + shift, gave, coarse):
                    return centred, gain, None if factor is None else factor[..., 0]
    raise Unknown(
        f"{type(module).__name__} stands between the output projection and the residual stream, and is neither a norm "
        "nor a scale of a form that is known"
    )


def are_alike(x: Tensor, y: Tensor, dtype: torch.dtype, rounding: Tensor | float = 0.0) -> bool:
    """Return True if two tensors agree up to rounding, measured by the largest entry."""
    allowed = TOLERANCES.get(dtype, QUANTISED) * y.abs().amax() + rounding
    return decided((x - y).abs().amax() <= allowed)
