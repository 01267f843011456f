"""The matrix of a module that is affine, whatever it stores.

A projection may be a plain `nn.Linear`, but also carry LoRA adapters, hold integers that it dequantises, or make its
weight anew in every pass. Its matrix is what it does: `f(x) - f(0)`, measured by calling it.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from vitrail.capture.recording import widen

PLAIN = (nn.Linear, NonDynamicallyQuantizableLinear)
PROBE = 64.0
"""The length of a probe. In half precision a weight that is added to a larger bias is rounded as the bias is."""
ROWS = 1024
"""Probes in one call."""


def is_plain(module: nn.Module) -> bool:
    """Whether a module is torch's own linear layer, or Hugging Face's `Conv1D`, with a weight of its own."""
    weight, kind = module._parameters.get("weight"), type(module)
    known = kind in PLAIN or (kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils")
    stored = type(weight) in (nn.Parameter, Tensor) and weight is not None and weight.is_floating_point()
    return known and stored and "forward" not in vars(module)


def matrix(module: nn.Module, width: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """The weight `[out, in]` and the bias of an affine module.

    Args:
        width: how many channels it reads.
        like: a tensor of the device and, where the module stores no floating-point weight, of the dtype it reads.
    """
    if is_plain(module):
        weight, bias = module.weight, module.bias
        assert isinstance(weight, Tensor)
        weight = weight.detach() if type(module) in PLAIN else weight.detach().T  # GPT-2 stores it the other way round
        return weight, bias.detach() if isinstance(bias, Tensor) else None
    nothing = at_zero(module, width, like)
    eye = PROBE * torch.eye(width, dtype=_dtype(module, like), device=like.device)
    columns = [widen(_called(module, some)) - nothing for some in eye.split(ROWS)]
    return torch.cat(columns).T / PROBE, nothing


def at_zero(module: nn.Module, width: int, like: Tensor) -> Tensor:
    """What an affine module adds: its value at zero."""
    return widen(_called(module, torch.zeros(1, width, dtype=_dtype(module, like), device=like.device)))[0]


def _called(module: nn.Module, rows: Tensor) -> Tensor:
    """The module on rows of channels, each a sequence of its own; without hooks, whose users expect real inputs."""
    # Weights may be tensors of a class of their own, which have to hear of torch functions also where nobody else does.
    with torch.no_grad(), torch._C._EnableTorchFunction():
        out = module.forward(rows[:, None])
    return (out[0] if isinstance(out, (tuple, list)) else out)[:, 0]


def _dtype(module: nn.Module, like: Tensor) -> torch.dtype:
    weight = getattr(module, "weight", None)
    return weight.dtype if isinstance(weight, Tensor) and weight.is_floating_point() else like.dtype
