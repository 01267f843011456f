"""How models are run, wherever a worker stands."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

Broken = dict[str, str]
"""By key, why an example cannot be read."""


@dataclass(frozen=True)
class Settings:
    """How models are run."""

    device: str = "cpu"
    dtype: torch.dtype | None = None
    forward_batch: int = 64
    preset: str = "recommended"
    seed: int = 0

    def precision(self) -> AbstractContextManager[Any]:
        """The precision of the perturbed passes."""
        return nullcontext() if self.dtype is None else torch.autocast(torch.device(self.device).type, self.dtype)
