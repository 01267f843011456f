"""Weights in 8 bits: every row of a matrix as integers from -127 to 127 times one scale.

In a file the integers stand under the weight's own name and the scales under that name and `.scale`.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

SCALE = ".scale"
SMALLEST = 4096  # fewer numbers than this stay in half precision: they cost nothing and often matter most
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8)


def quantise(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with every large matrix in 8 bits and the rest in half precision."""
    small: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.ndim > 1 and weight.shape[0] > 1 and weight.numel() >= SMALLEST:
            small[name], small[name + SCALE] = quantise_rows(weight.float())
        else:
            small[name] = weight.half()
    return small


def quantise_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The integers and scales of one matrix, each row clipped where its squared error is least."""
    rows = weight.flatten(start_dim=1)
    tries = [_round_rows(rows, clip) for clip in CLIPS]
    errors = torch.stack([(rows - whole * scale[:, None]).square().sum(dim=1) for whole, scale in tries])
    best = errors.argmin(dim=0)
    every = torch.arange(len(rows))
    integers = torch.stack([whole for whole, _ in tries])[best, every]
    scales = torch.stack([scale for _, scale in tries])[best, every]
    return integers.to(torch.int8).reshape(weight.shape), scales.half()


def _round_rows(rows: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """One try: integers and scales, the scales already as half precision will hold them."""
    scales = (rows.abs().amax(dim=1) * clip / 127).half().float()
    scales = torch.where(scales > 0, scales, 1.0)
    return (rows / scales[:, None]).round().clamp(-127, 127), scales


def dequantise(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a file of `quantise` in single precision."""
    return {name: _widen(name, weights) for name in _own_names(weights)}


def _own_names(weights: Mapping[str, Tensor]) -> Iterable[str]:
    return (name for name in weights if not name.endswith(SCALE))


def _widen(name: str, weights: Mapping[str, Tensor]) -> Tensor:
    weight, scale = weights[name].float(), weights.get(name + SCALE)
    return weight if scale is None else weight * scale.float().reshape(-1, *[1] * (weight.ndim - 1))
