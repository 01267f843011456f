"""Random numbers of the bench: drawn from a seed of its own, while the caller's generators stay as they are."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

State = tuple[Callable[[Any], Any], Any]


@contextmanager
def own_generators(*, device: str = "cpu", seed: int | None = None) -> Iterator[None]:
    """Inside the block the global generators may be drawn from; after it, also after an error, they are as before.

    Args:
        device: the device whose generators are kept beside those of the CPU. A CUDA that the block does not use is not
            initialised, and a seed that waits for its start is not replaced.
        seed: of torch's generators inside the block; without it they go on from where they are.
    """
    kept = _states(torch.device(device).type)
    try:
        if seed is not None:
            _seed(torch.device(device).type, seed)
        yield
    finally:
        for restore, state in kept:
            restore(state)


def _states(kind: str) -> list[State]:
    """The state of every global generator that the block may move, and the function that puts it back."""
    found: list[State] = [
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),
        (torch.default_generator.set_state, torch.default_generator.get_state()),
    ]
    if kind == "cuda" or torch.cuda.is_initialized():
        found.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    if kind == "mps":
        found.append((torch.mps.set_rng_state, torch.mps.get_rng_state()))
    return found


def _seed(kind: str, seed: int) -> None:
    """Seed the generators of the CPU and of the device. `torch.manual_seed` would seed every device there is."""
    torch.default_generator.manual_seed(seed)
    if kind == "cuda":
        torch.cuda.manual_seed_all(seed)
    if kind == "mps":
        torch.mps.manual_seed(seed)
