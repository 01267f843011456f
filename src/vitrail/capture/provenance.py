"""The origin of a result: the model and its weights, and the libraries that computed it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitrail.attribution import versions
from vitrail.capture.shadow import once
from vitrail.capture.torch_private import without_functions

SAMPLES = 256
READABLE = (torch.strided, torch.sparse_coo)


def fingerprint(model: nn.Module) -> str:
    """A hash of the names, shapes and dtypes of all weights and of 256 evenly spaced values of each.

    Cheap enough for every call and on any device: fine-tuning changes it, moving the model does not. It is no
    proof against someone who alters single weights on purpose. Of weights whose values are not there (offloaded to the
    CPU or a disk) only names, shapes and dtypes count; `provenance` says how many they are.
    """
    return hashed(*sampled_weights(model))


def sampled_weights(model: nn.Module) -> tuple[bytes, list[Tensor]]:
    """Return the parts of a fingerprint: the names of all weights, and their samples by device and type.

    Nothing waits for a device: a recording of an explanation takes them along.
    """
    weights, held = once(model, "state", lambda: _read_weights(model)), once(model, "samples", dict[str, Any])
    addresses = list(map(Tensor.data_ptr, weights.plain))
    samples: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    with torch.no_grad(), without_functions():
        if held.get("addresses") != addresses:  # views are kept until a weight moves in memory
            held.update(addresses=addresses, views={id(x): _sample(x) for x in weights.plain})
        views = held["views"]
        for x in weights.tensors:
            for some in [views[id(x)]] if id(x) in views else [_sample(part) for part in _plain_parts(x)]:
                samples.setdefault((some.device, some.dtype), []).append(some)
        # One copy from a device, not one for each tensor.
        return weights.header, [torch.cat(some) for some in samples.values()]


def _sample(x: Tensor) -> Tensor:
    """Return evenly spaced values of a tensor."""
    step = max(1, x.numel() // SAMPLES)
    size = min(SAMPLES, -(-x.numel() // step))
    return x.as_strided((size,), (step,)) if x.is_contiguous() else x.reshape(-1)[::step][:size]


def hashed(header: bytes, samples: Sequence[Tensor]) -> str:
    """The fingerprint of names and samples."""
    digest = hashlib.sha256(header)
    for some in samples:
        digest.update(some.cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


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


@dataclass(frozen=True)
class _Weights:
    """The tensors of a model's state; those that are contiguous; names, shapes and dtypes as bytes.

    Args:
        lacking: how many have no values.
    """

    tensors: list[Tensor]
    plain: list[Tensor]
    header: bytes
    lacking: int


def _read_weights(model: nn.Module) -> _Weights:
    state = _state(model)
    header = "".join([f"{n} {tuple(x.shape)} {x.dtype}\n" for n, x in state]).encode()
    tensors, parts = [x for _, x in state], [_plain_parts(x) for _, x in state]
    plain = [x for x, found in zip(tensors, parts, strict=True) if len(found) == 1 and found[0] is x]
    return _Weights(tensors, [x for x in plain if x.is_contiguous()], header, sum(not found for found in parts))


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The tensors of `model.state_dict()` in their order, many times faster."""
    found: list[tuple[str, Tensor]] = []
    waiting = [("", model)]
    while waiting:
        prefix, module = waiting.pop()
        transient = module._non_persistent_buffers_set
        for table in (module._parameters, module._buffers):
            if table:
                found += [(prefix + n, x) for n, x in table.items() if x is not None and n not in transient]
        if module._modules:
            children = [(f"{prefix}{name}.", child) for name, child in module._modules.items() if child is not None]
            waiting += reversed(children)
    return found


DRAWN = "the model draws random numbers, as by dropout or noise that stays on: the scores are those of one draw"


def provenance(model: nn.Module, *, samples: int, identity: str | None = None) -> dict[str, Any]:
    """Return the facts about its model that every result of a call carries, beside those of its own.

    Args:
        identity: the model's fingerprint, if it was taken before.
    """
    lacking = once(model, "state", lambda: _read_weights(model)).lacking
    huggingface = getattr(getattr(model, "config", None), "name_or_path", "")
    timm = (getattr(model, "pretrained_cfg", None) or {}).get("architecture", "")
    name = huggingface or timm or type(model).__name__
    return {
        "model": name,
        "model_class": type(model).__name__,
        "model_hash": identity or fingerprint(model),
        **({"model_hash_lacks": f"the values of {lacking} weights"} if lacking else {}),
        "versions": dict(versions()),
        "samples": samples,
    }
