"""Where a result comes from: model, versions, time."""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import torch
from torch import Tensor, nn

SAMPLES = 256
READABLE = (torch.strided, torch.sparse_coo)
PACKAGES = ("vitrail", "torch", "transformers", "timm")


def fingerprint(model: nn.Module) -> str:
    """A hash of the names, shapes and dtypes of all weights and of 256 evenly spaced values of each.

    Cheap enough for every call and on any device: fine-tuning changes it, moving the model does not. It is no
    proof against someone who alters single weights on purpose. Of weights whose values are not there (offloaded to the
    CPU or a disk) only names, shapes and dtypes count; `unread` says how many they are.
    """
    state = list(_state(model))
    digest = hashlib.sha256("".join([f"{n} {tuple(x.shape)} {x.dtype}\n" for n, x in state]).encode())
    samples: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    with torch.no_grad(), torch._C.DisableTorchFunction():
        for _, x in state:
            for plain in _plain_parts(x):
                samples.setdefault((plain.device, plain.dtype), []).append(_spaced(plain))
        for some in samples.values():  # one copy from a device, not one for each tensor
            digest.update(torch.cat(some).cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def unread(model: nn.Module) -> int:
    """How many weights have no values that can be read, so that the fingerprint knows their shapes alone."""
    return sum(not _plain_parts(x) for _, x in _state(model))


def _plain_parts(x: Tensor) -> list[Tensor]:
    """The plain tensors that a weight is made of: itself, or the parts of a quantized one; none if it has no values."""
    if x.device.type == "meta":
        return []
    if x.is_quantized:
        return [x.int_repr()]
    if type(x) in (Tensor, nn.Parameter):
        return [x if x.layout is torch.strided else x.coalesce().values()] if x.layout in READABLE else []
    if hasattr(x, "__tensor_flatten__"):  # tensors of other libraries, such as torchao
        names, _ = cast(Any, x).__tensor_flatten__()
        return [part for name in names for part in _plain_parts(getattr(x, name))]
    # Parameters of other classes that still are tensors of numbers, such as those of bitsandbytes.
    return [x.data.as_subclass(Tensor)] if x.layout is torch.strided else []


def _state(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of `module.state_dict()` in their order, many times faster."""
    transient = module._non_persistent_buffers_set
    for name, x in (*module._parameters.items(), *module._buffers.items()):
        if x is not None and name not in transient:
            yield prefix + name, x
    for name, child in module._modules.items():
        if child is not None:
            yield from _state(child, f"{prefix}{name}.")


def _spaced(x: Tensor) -> Tensor:
    """At most 256 values of a tensor at equal distances."""
    step = max(1, x.numel() // SAMPLES)
    if not x.is_contiguous():
        return x.reshape(-1)[::step][:SAMPLES]
    return x.as_strided((min(SAMPLES, -(-x.numel() // step)),), (step,))


@cache
def versions() -> dict[str, str]:
    """The versions of the libraries a result depends on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def provenance(
    model: nn.Module, *, seconds: float, backend: str, samples: int, identity: str | None = None
) -> dict[str, Any]:
    """What every result carries beside method, preset, options and target.

    Args:
        identity: the model's fingerprint, if it was taken before.
    """
    huggingface = getattr(getattr(model, "config", None), "name_or_path", "")
    timm = (getattr(model, "pretrained_cfg", None) or {}).get("architecture", "")
    name = huggingface or timm or type(model).__name__
    return {
        "model": name,
        "model_class": type(model).__name__,
        "model_hash": identity or fingerprint(model),
        **({"model_hash_lacks": f"the values of {lacking} weights"} if (lacking := unread(model)) else {}),
        "versions": dict(versions()),
        "backend": backend,
        "samples": samples,
        "seconds": seconds,
    }
