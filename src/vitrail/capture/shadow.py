"""A shadow of a model: other modules, the same parameters.

Every pass of Vitrail runs on a shadow. A shadow is a copy of the module tree in which every parameter is the user's own
tensor, in evaluation mode, without gradient checkpointing, compilation and data parallelism. Hooks, flags, swapped
weights and replaced results are changed on the shadow alone. The user's model is never touched, not even for a moment,
so another thread may infer with it meanwhile.

A shadow is filled anew for every call, so it always is a copy of the model as it is now. Its root stays the same object
from call to call as long as the structure of the model stays the same: what was measured of a structure can be kept by
it. Two calls at once get two shadows.
"""

import sys
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.caches import copy_caches
from vitrail.capture.copying import Copied, copied
from vitrail.models.taking import taken


@contextmanager
def shadow(model: object) -> Iterator[nn.Module]:
    """A shadow of the model for the time of the block, for this call alone."""
    module = taken(model)
    made = _filled(module)
    made.root.register_forward_pre_hook(copy_caches, with_kwargs=True, prepend=True)
    yield made.root
    made.check_writes()
    vars(made.root).clear()  # a kept shadow keeps nothing of the model alive
    # After an error nobody knows what it was left in: then it is not used again.
    _idle.setdefault(module, []).append((made.signature, made.root))


_idle: "weakref.WeakKeyDictionary[nn.Module, list[tuple[list[object], nn.Module]]]" = weakref.WeakKeyDictionary()
"""Empty roots of shadows that nobody uses, with the structure each of them stood for."""


def _filled(model: nn.Module) -> Copied:
    """The model's copy: in a root that was used before for the same structure, or in a new one."""
    waiting = _idle.get(model, [])
    try:
        known, root = waiting.pop()
    except IndexError:
        return copied(model)
    found = copied(model, root)
    return found if found.signature == known else copied(model)


@contextmanager
def in_precision(own: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Give a shadow copies of its weights in another precision for the time of the block; None leaves it as it is."""
    if dtype is None:
        yield
        return
    tables = [table for module in every_module(own) for table in (module._parameters, module._buffers, vars(module))]
    kept = [(table, {name: x for name, x in table.items() if isinstance(x, Tensor)}) for table in tables]
    copies: dict[int, Tensor] = {}
    try:
        for table, tensors in kept:
            _replace(table, {name: _converted(x, dtype, copies) for name, x in tensors.items()})
        yield
    finally:
        for table, tensors in kept:
            _replace(table, tensors)


def _replace(held: Any, tensors: Any) -> None:  # noqa: ANN401  (a module's own table, whatever torch calls its type)
    held.update(tensors)


def _converted(x: Tensor, dtype: torch.dtype, copies: dict[int, Tensor]) -> Tensor:
    """A weight in another precision, once for all the names it has; what is no plain tensor of numbers stays."""
    if x.dtype is dtype or not x.is_floating_point() or type(x) not in (Tensor, nn.Parameter):
        return x
    if id(x) not in copies:
        copies[id(x)] = x.detach().to(dtype)
        if isinstance(x, nn.Parameter):  # offloading fills a parameter on its way in, and looks at its class
            copies[id(x)] = nn.Parameter(copies[id(x)], requires_grad=x.requires_grad)
    return copies[id(x)]


@contextmanager
def autograd(*, gradients: bool) -> Iterator[None]:
    """Autograd on or off, whatever the caller's own setting; never inference mode, and nothing compiled."""
    with torch.inference_mode(mode=False), torch.set_grad_enabled(gradients), _uncompiled():
        yield


def _uncompiled() -> AbstractContextManager[None]:
    """Let functions that torch.compile made run as they were written, in this thread only.

    A shadow has no compiled modules, but a model's code may call compiled functions that belong to no module. Compiled
    code would follow hooks and modes into its graph. torch's own stance cannot be used: it is that of all threads.
    """
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # if nobody imported it, nothing is compiled
    return getattr(dynamo, "_use_eager_on_nested_compile", nullcontext)()


@contextmanager
def hooks(handles: list[torch.utils.hooks.RemovableHandle]) -> Iterator[None]:
    """Remove these hooks at the end, whatever happened."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def every_module(model: nn.Module) -> list[nn.Module]:
    """The model and all modules inside it, each once, as `model.modules()` but many times faster."""
    found, waiting = {}, [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            waiting += [child for child in module._modules.values() if child is not None]
    return list(found.values())
