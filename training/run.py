"""What every training command shares: a seed, a log, a schedule, a checkpoint."""

import json
import math
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm


class Log:
    """Write lines above the progress bar and, with the time since the start, into a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.start = path, time.monotonic()

    def __call__(self, line: str) -> None:
        """Write one line."""
        line = f"[{time.monotonic() - self.start:7.1f} s] {line}"
        tqdm.write(line)
        with self.path.open("a") as file:
            file.write(line + "\n")


def seed_everything(seed: int) -> None:
    """Seed the generators of torch on every device."""
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def warm_cosine(step: int, *, warmup: int, steps: int) -> float:
    """The share of the peak learning rate at a step: a linear rise, then half a cosine down to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))


def decay_groups(modules: list[torch.nn.Module], weight_decay: float) -> list[dict[str, Any]]:
    """The trainable weights in two groups: matrices with weight decay, vectors without."""
    weights = [weight for module in modules for weight in module.parameters() if weight.requires_grad]
    return [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": weight_decay},
        {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
    ]


def save_config(config: Any, path: Path) -> None:  # noqa: ANN401 - any frozen dataclass
    """Write a configuration as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(config), indent=2) + "\n")


def save_checkpoint(path: Path, **state: Any) -> None:  # noqa: ANN401 - state dicts and numbers
    """Write a checkpoint so that a run stopped in the middle of it keeps the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    torch.save(state, fresh)
    os.replace(fresh, path)


def load_checkpoint(path: Path, device: str) -> dict[str, Any]:
    """Read a checkpoint of `save_checkpoint`."""
    return torch.load(path, map_location=device, weights_only=True)


def progress(total: int, *, start: int = 0, label: str) -> tqdm:
    """A progress bar that stays quiet where nobody watches it."""
    return tqdm(total=total, initial=start, desc=label, unit="step", mininterval=5, dynamic_ncols=True)
