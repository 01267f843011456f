"""The files of the embedded models: checked against their hashes when they are read, weights in 8 bits.

Every row of a matrix is stored as integers from -127 to 127 times one scale. In a file the integers have the weight's
own name, and the scales that name with `.scale`.
"""

import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import ModelError

WEIGHTS: Traversable = files("vitrail.models.zoo") / "weights"
HASHES = "sha256.json"
REPAIR = "Install vitrail again."


def read_checked(path: str) -> bytes:
    """The content of a shipped file such as `photo/config.json`, if it is the one that was shipped."""
    content = _read(path)
    try:
        table = json.loads(_read(HASHES))
    except ValueError as error:
        raise ModelError(f"{WEIGHTS / HASHES} is corrupt: {error}. {REPAIR}") from error
    if not isinstance(table, dict):
        raise ModelError(f"{WEIGHTS / HASHES} is corrupt: it holds no table of hashes. {REPAIR}")
    expected = table.get(path)
    if expected is None:
        raise ModelError(f"{HASHES} in {WEIGHTS} names no file {path}: it is not the one that was shipped. {REPAIR}")
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ModelError(
            f"{WEIGHTS / path} is corrupt or cut short: its {len(content):,} bytes have the SHA-256 {found[:16]}…, "
            f"but {expected[:16]}… was shipped. {REPAIR}"
        )
    return content


def read_json(path: str) -> dict[str, Any]:
    """A shipped JSON file."""
    return json.loads(read_checked(path))


def _read(path: str) -> bytes:
    try:
        return WEIGHTS.joinpath(path).read_bytes()
    except OSError as error:
        raise ModelError(f"{WEIGHTS / path} cannot be read ({error.strerror}). {REPAIR}") from error


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
    wide = {name: weight.float() for name, weight in weights.items() if not name.endswith(SCALE)}
    for name, weight in wide.items():
        if (scale := weights.get(name + SCALE)) is not None:
            wide[name] = weight * scale.float().reshape(-1, *[1] * (weight.ndim - 1))
    return wide
