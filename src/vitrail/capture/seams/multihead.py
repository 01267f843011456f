"""The functional form of `nn.MultiheadAttention`, made audible.

`F.multi_head_attention_forward` hands itself to the active mode and then runs with the mode switched off,
so the fused call inside is silent; entering the mode again would only make it hand itself over again.
We run the same code object with globals in which nobody asks for an override.
"""

import types
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor


def _nobody_overrides(*_: object) -> bool:
    return False


def _transparent(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a python function that never hands itself to a torch function mode."""
    assert isinstance(function, types.FunctionType)
    namespace = dict(function.__globals__, has_torch_function=_nobody_overrides)
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


transparent_multihead: Callable[..., tuple[Tensor, Tensor | None]] = _transparent(F.multi_head_attention_forward)
