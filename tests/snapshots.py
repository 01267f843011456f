"""What a model and the process around it are made of, and what of it has changed since."""

import random
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch._dynamo.eval_frame as dynamo
from torch import Tensor, nn


class Snapshot:
    """Everything about a model that a call could change, by identity and bit for bit.

    The values stay alive, so that no new object can have the identity of an old one.
    """

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any] | None = None) -> None:
        self.model, self.inputs = model, inputs
        self.held = dict(_held(model, inputs))
        self.tensors = {name: _Kept(x) for name, x in self.held.items() if isinstance(x, Tensor)}
        self.settings = _settings(model)
        self.around = surroundings()

    def from_now(self) -> "Snapshot":
        """The same, with the process as it is now."""
        self.around = surroundings()
        return self

    def changes(self, *, values: bool = True) -> list[str]:
        """What is not as it was, in words; nothing if all is.

        Args:
            values: compare tensors bit for bit too, not only by identity and version.
        """
        now = dict(_held(self.model, self.inputs))
        found = [f"{name} is new" for name in now.keys() - self.held.keys()]
        found += [f"{name} is gone" for name in self.held.keys() - now.keys()]
        found += [f"{name} is another object" for name, x in self.held.items() if name in now and now[name] is not x]
        found += [f"{name} {what}" for name, kept in self.tensors.items() for what in kept.changes(values=values)]
        if _settings(self.model) != self.settings:
            found.append("a setting in a configuration changed")
        return found + self.changes_around() if values else found

    def changes_around(self) -> list[str]:
        """What changed in the process."""
        return [f"{name}: {old!s:.60} -> {new!s:.60}" for name, old, new in _apart(self.around, surroundings())]


class _Kept:
    """One tensor: its values, version, gradient and flags."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.value = x, x.detach().clone()
        self.state = self._state()

    def _state(self) -> dict[str, Any]:
        x = self.x
        return {
            "version": None if x.is_inference() else x._version,
            "requires_grad": x.requires_grad,
            "dtype": x.dtype,
            "storage": x.data_ptr(),
            "hooks": None if x._backward_hooks is None else tuple(x._backward_hooks),
        }

    def changes(self, *, values: bool) -> list[str]:
        found = [f"has another {name}: {old} -> {new}" for name, old, new in _apart(self.state, self._state())]
        if values and not torch.equal(self.x.detach(), self.value):
            found.append("has other values")
        return found


def _held(model: nn.Module, inputs: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """Every object a model holds on to, by where it is: modules, attributes, tables, tensors and their gradients."""
    seen: set[int] = set()
    waiting = [("model", model)]
    while waiting:
        path, module = waiting.pop()
        yield path, module
        if id(module) in seen:
            continue
        seen.add(id(module))
        for name, value in vars(module).items():
            place = f"{path}.{name}"
            yield place, value
            yield from _inside(place, value)
            if isinstance(value, nn.Module):  # one that hides from torch's table
                waiting.append((place, value))
        waiting += [(f"{path}/{name}", child) for name, child in module._modules.items() if child is not None]
    for name, value in (inputs or {}).items():
        yield f"input {name}", value
        yield from _inside(f"input {name}", value)


def _inside(place: str, value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, x in value.items():
            yield f"{place}[{key!r}]", x
            if isinstance(x, Tensor) and x.is_leaf:
                yield f"{place}[{key!r}].grad", x.grad
    elif isinstance(value, (list, tuple)):
        yield from ((f"{place}[{index}]", x) for index, x in enumerate(value))
    elif isinstance(value, Tensor) and value.is_leaf:
        yield f"{place}.grad", value.grad
    elif isinstance(value, types.MethodType):
        yield f"{place}.__self__", value.__self__


def _settings(model: nn.Module) -> list[str]:
    """What each configuration says; most modules of a model share one."""
    found = {id(config): config for m in model.modules() if (config := getattr(m, "config", None)) is not None}
    return [repr(vars(config)) for config in found.values() if hasattr(config, "__dict__")]


def _apart(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(name, x, new[name]) for name, x in old.items() if new[name] != x]


def surroundings() -> dict[str, Any]:
    """The state of the process and of this thread that a call could leave changed."""
    kind, numbers, *place = np.random.get_state()
    hooks = torch.nn.modules.module
    return {
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (
            torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled(),
        ),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "random of python": random.getstate(),
        "random of numpy": (kind, numbers.tobytes(), *place),
        "random of torch": torch.get_rng_state().numpy().tobytes(),
        "stance": repr(dynamo._stance),
        "function modes": [id(mode) for mode in torch.overrides._get_current_function_mode_stack()],
        "anomaly": torch.is_anomaly_enabled(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "multi-head fast path": torch.backends.mha.get_fastpath_enabled(),
        "fused attention": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
        ),
        "hooks of all modules": [
            list(table)
            for table in (hooks._global_forward_hooks, hooks._global_forward_pre_hooks, hooks._global_backward_hooks)
        ],
    }  # fmt: skip
