"""Contexts that change a model for a moment and put it back, also after an error."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import nn

from vitrail.errors import InputError

_locks: "WeakKeyDictionary[nn.Module, threading.RLock]" = WeakKeyDictionary()
_locks_lock = threading.Lock()
CHECKPOINTING = ("grad_checkpointing", "gradient_checkpointing")


@contextmanager
def alone(model: nn.Module) -> Iterator[None]:
    """Let one thread at a time record a model; different models do not wait for each other."""
    with _locks_lock:
        lock = _locks.setdefault(model, threading.RLock())
    with lock:
        yield


def every_module(model: nn.Module) -> list[nn.Module]:
    """The model and all modules inside it, each once, as `model.modules()` but many times faster."""
    found, waiting = {}, [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            waiting += [child for child in module._modules.values() if child is not None]
    return list(found.values())


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Switch dropout off, and give every module its own flag back."""
    training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def keeping(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Switch checkpointing off: what it computes again in the backward pass could no longer be heard."""
    # Read past `__getattr__`, which is slow where there is no such flag, as in nearly every module.
    flags = [(m, name) for m in modules for name in CHECKPOINTING if _flag(m, name) is True]
    try:
        for module, name in flags:
            setattr(module, name, False)
        yield
    finally:
        for module, name in flags:
            setattr(module, name, True)


def _flag(module: nn.Module, name: str) -> object:
    own = vars(module)
    return own[name] if name in own else getattr(type(module), name, None)


@contextmanager
def prepared(model: nn.Module, owner: nn.Module, *, gradients: bool) -> Iterator[None]:
    """The state in which a model is recorded: alone, evaluating, not compiled, with autograd as needed.

    Whether weights require gradients is left as it is: torch sums some products in another order when they do not.

    Args:
        owner: the module that holds the blocks, which several wrappers may share.
    """
    modules = every_module(model)
    if any(p is not None and p.is_inference() for module in modules for p in module._parameters.values()):
        raise InputError("the model was made inside torch.inference_mode, so autograd cannot run. Make it outside.")
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code cannot be heard
        stack.enter_context(alone(owner))
        stack.enter_context(evaluating(modules))
        stack.enter_context(keeping(modules))
        stack.enter_context(torch.set_grad_enabled(gradients))
        yield


@contextmanager
def hooks(handles: list[torch.utils.hooks.RemovableHandle]) -> Iterator[None]:
    """Remove these hooks at the end, whatever happened."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
