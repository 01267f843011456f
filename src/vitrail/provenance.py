"""Where a result comes from: model, versions, time."""

import hashlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

SAMPLES = 256
PACKAGES = ("vitrail", "torch", "transformers", "timm")


def fingerprint(model: nn.Module) -> str:
    """A hash of the names, shapes and dtypes of all weights and of 256 evenly spaced values of each.

    Cheap enough for every call and on any device: fine-tuning changes it, moving the model does not. It is no
    proof against someone who alters single weights on purpose.
    """
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):  # a module may keep more than tensors in its state
            continue
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // SAMPLES)][:SAMPLES]
        digest.update(some.to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """The versions of the libraries a result depends on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def provenance(model: nn.Module, *, seconds: float, backend: str, samples: int) -> dict[str, Any]:
    """What every result carries beside method, preset, options and target."""
    huggingface = getattr(getattr(model, "config", None), "name_or_path", "")
    timm = (getattr(model, "pretrained_cfg", None) or {}).get("architecture", "")
    name = huggingface or timm or type(model).__name__
    return {
        "model": name,
        "model_class": type(model).__name__,
        "model_hash": fingerprint(model),
        "versions": versions(),
        "backend": backend,
        "samples": samples,
        "seconds": seconds,
    }
