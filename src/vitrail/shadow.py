"""A shadow of a model: a copy of its modules that shares every parameter and buffer with it.

Everything Vitrail changes on the way to an explanation (hooks, evaluation mode, checkpointing, precision, stand-ins for
a module's result) is changed on the shadow. The user's model is never touched, not even for a moment, so another thread
may train it or infer with it meanwhile.

A shadow is lent to one call at a time and kept for the next call, as long as the model lives and its structure stays
the same. Two calls at once get two shadows.
"""

import copy
import gc
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitrail.errors import AnatomyError, InputError

CHECKPOINTING = ("grad_checkpointing", "gradient_checkpointing")
WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
"""Modules that only pass a call on, by the name of what they wrap: torch.compile and data parallelism."""
SHARDED = ("FullyShardedDataParallel", "FSDPModule")
ATOMS = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.CodeType, torch.dtype)
UNCOPYABLE = (type(threading.Lock()), type(threading.RLock()), types.GeneratorType)
LARGEST_SEARCH = 500_000
"""Objects looked at for tensors and modules that hide in plain attributes."""


@contextmanager
def shadow(model: nn.Module) -> Iterator[nn.Module]:
    """A shadow of the model for the time of the block, for this call alone."""
    if not isinstance(model, nn.Module):
        raise InputError(f"a model is a torch.nn.Module, not {type(model).__name__}.")
    found, known = _taken(model)
    yield found
    if known is not None:  # after an error nobody knows what it was left in: it is not used again
        _idle.setdefault(model, []).append((known, found))


_idle: "weakref.WeakKeyDictionary[nn.Module, list[tuple[Structure, nn.Module]]]" = weakref.WeakKeyDictionary()


def _taken(model: nn.Module) -> "tuple[nn.Module, Structure | None]":
    """A shadow that nobody uses and that still fits the model, or a new one."""
    waiting = _idle.get(model, [])
    while waiting:
        try:
            known, found = waiting.pop()
        except IndexError:  # another thread was faster
            break
        if known.holds(model):
            return found, known
    return _copied(model), structure_of(model)


@contextmanager
def in_precision(own: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Give a shadow copies of its weights in another precision for the time of the block; None leaves it as it is."""
    if dtype is None:
        yield
        return
    kept = [(module, dict(module._parameters), dict(module._buffers)) for module in every_module(own)]
    copies: dict[int, Tensor] = {}
    try:
        for module, parameters, buffers in kept:
            _replace(module._parameters, {name: _converted(x, dtype, copies) for name, x in parameters.items()})
            _replace(module._buffers, {name: _converted(x, dtype, copies) for name, x in buffers.items()})
        yield
    finally:
        for module, parameters, buffers in kept:
            _replace(module._parameters, parameters)
            _replace(module._buffers, buffers)


def _replace(held: Any, tensors: Any) -> None:  # noqa: ANN401  (a module's own table, whatever torch calls its type)
    held.update(tensors)


@contextmanager
def autograd(*, gradients: bool) -> Iterator[None]:
    """Autograd on or off, whatever the caller's own setting, and never inference mode."""
    with torch.inference_mode(mode=False), torch.set_grad_enabled(gradients):
        yield


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


def _converted(x: Tensor | None, dtype: torch.dtype, copies: dict[int, Tensor]) -> Tensor | None:
    """A weight in another precision, once for all the names it has."""
    if x is None or not x.is_floating_point():
        return x
    if id(x) not in copies:
        copies[id(x)] = x.detach().to(dtype).requires_grad_(x.requires_grad)
    return copies[id(x)]


def _copied(model: nn.Module) -> nn.Module:
    """The copy: every tensor shared, evaluating, without checkpointing, compilation and data parallelism."""
    modules = every_module(model)
    _refuse_sharded(modules)
    if any(p is not None and p.is_inference() for module in modules for p in module._parameters.values()):
        raise InputError("the model was made inside torch.inference_mode, so autograd cannot run. Make it outside.")
    found = list(_reachable([model]))
    # Tensors are shared, wherever they are; what cannot be copied, and what the user's hooks report to, is shared too.
    memo: dict[int, Any] = {id(x): x for x in found if isinstance(x, (Tensor, *UNCOPYABLE))}
    memo |= {id(x): x for module in modules for x in _hook_owners(module)}
    try:
        shadow = copy.deepcopy(model, memo)
    except Exception as error:
        raise AnatomyError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}), and Vitrail explains a copy "
            "of the modules so that the model itself is never changed. Remove the attribute that copy.deepcopy refuses."
        ) from error
    shadow = _unwrapped(shadow)
    for module in every_module(shadow):
        _quiet(module)
    twins = {id(module): memo[id(module)] for module in modules if id(module) in memo}
    _move_closures(shadow, twins)
    _refuse_leaks(model, shadow, {id(m) for m in modules})
    return shadow


def _hook_owners(module: nn.Module) -> Iterator[object]:
    """The objects that a module's hooks belong to, as long as they are no modules themselves and hold none."""
    for name, table in vars(module).items():
        if name.endswith("_hooks") and isinstance(table, dict):
            for hook in table.values():
                owner = getattr(hook, "__self__", hook)
                if not any(isinstance(x, nn.Module) for x in _reachable([owner])):
                    yield owner


def _refuse_sharded(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        if any(base.__name__ in SHARDED for base in type(module).__mro__):
            raise AnatomyError(
                f"{type(module).__name__} spreads the weights over processes, so they cannot be read in one place. "
                "Load the whole model in one process to explain it."
            )


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model without wrappers that only pass a call on, wherever they are in the tree."""
    for module in every_module(model):
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = _inner(child)
    return _inner(model)


def _inner(module: nn.Module) -> nn.Module:
    while (name := WRAPPERS.get(type(module).__name__)) is not None and type(module).__module__.startswith("torch."):
        module = cast(nn.Module, getattr(module, name))
    return module


def _quiet(module: nn.Module) -> None:
    """Evaluation mode, no checkpointing, no compiled code: what a pass must not meet."""
    module.training = False
    own = vars(module)
    for name in CHECKPOINTING:
        if (own[name] if name in own else getattr(type(module), name, None)) is True:
            setattr(module, name, False)
    if own.get("_compiled_call_impl") is not None:
        own["_compiled_call_impl"] = None
    for name, value in list(own.items()):
        if (plain := _uncompiled(value)) is not value:
            own[name] = plain
    for name in dir(type(module)):
        compiled = getattr(type(module), name, None)
        if isinstance(compiled, types.FunctionType) and (plain := _uncompiled(compiled)) is not compiled:
            own.setdefault(name, types.MethodType(plain, module))


def _uncompiled(value: Any) -> Any:  # noqa: ANN401
    """The function that torch.compile was given, if this is what it made of it."""
    if not callable(value) or isinstance(value, (nn.Module, type)):
        return value
    plain = getattr(value, "_torchdynamo_orig_callable", None)
    if plain is None or getattr(value, "_torchdynamo_disable", False):
        return value
    owner = getattr(value, "__self__", None)
    return types.MethodType(plain, owner) if owner is not None and not hasattr(plain, "__self__") else plain


def _move_closures(shadow: nn.Module, twins: dict[int, nn.Module]) -> None:
    """Let functions that a module holds, and that close over modules, close over their copies."""
    for module in every_module(shadow):
        for name, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType):
                vars(module)[name] = _moved(value, twins)
            elif name.endswith("_hooks") and isinstance(value, dict):
                value.update({key: _moved(hook, twins) for key, hook in value.items()})


def _moved(function: Any, twins: dict[int, nn.Module]) -> Any:  # noqa: ANN401
    """The same function over the copies of the modules it closes over."""
    if not isinstance(function, types.FunctionType) or function.__closure__ is None:
        return function
    cells = [_cell_content(cell) for cell in function.__closure__]
    if not any(id(x) in twins for x in cells):
        return function
    closure = tuple(
        types.CellType(twins[id(x)]) if id(x) in twins else cell
        for x, cell in zip(cells, function.__closure__, strict=True)
    )
    moved = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, closure
    )
    moved.__kwdefaults__ = function.__kwdefaults__
    moved.__dict__.update(function.__dict__)
    return moved


def _cell_content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _refuse_leaks(model: nn.Module, shadow: nn.Module, own: set[int]) -> None:
    """Refuse a model whose copy still leads to modules of the model itself: they would run instead of the copies."""
    for module in every_module(shadow):
        for name, value in vars(module).items():
            leak = next((x for x in _reachable([value]) if isinstance(x, nn.Module) and id(x) in own), None)
            if leak is not None:
                raise AnatomyError(
                    f"the attribute {name!r} of {type(module).__name__} inside {type(model).__name__} holds on to a "
                    f"{type(leak).__name__} of the model in a way that cannot be copied, such as a function inside "
                    "another function. Vitrail explains a copy of the modules, so that the model itself is never "
                    "changed. Reach the module through self instead."
                )


def _reachable(roots: Iterable[object]) -> Iterator[object]:
    """Every object that can be reached from these, each once; tensors and modules among them."""
    waiting, seen = list(roots), set[int]()
    while waiting and len(seen) < LARGEST_SEARCH:
        x = waiting.pop()
        if isinstance(x, ATOMS) or id(x) in seen:
            continue
        seen.add(id(x))
        yield x
        waiting += _referents(x)


def _referents(x: object) -> list[Any]:
    """What an object refers to: of a tensor nothing, of a function its closure, of a module its attributes."""
    if isinstance(x, Tensor):
        return []
    if isinstance(x, nn.Module):
        return list(vars(x).values())
    if isinstance(x, types.FunctionType):
        cells = [_cell_content(cell) for cell in x.__closure__ or ()]
        return [*cells, x.__defaults__, x.__kwdefaults__, x.__dict__]
    if isinstance(x, weakref.ReferenceType):
        return []
    return gc.get_referents(x)


class Structure:
    """What a shadow was made of: the identity of every module, attribute, tensor and setting of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = [weakref.ref(module) for module in every_module(model)]
        self.kept: list[object] = []  # settings stay alive, so that no other object gets their identity
        self.state = [_attributes(module, self.kept.append) for module in every_module(model)]

    def holds(self, model: nn.Module) -> bool:
        """Whether the model still is what it was."""
        modules = every_module(model)
        return (
            len(modules) == len(self.modules)
            and all(known() is module for known, module in zip(self.modules, modules, strict=True))
            and all(_attributes(m, _ignored) == known for m, known in zip(modules, self.state, strict=True))
        )


def structure_of(model: nn.Module) -> Structure | None:
    """What the model is made of; None where plain attributes hold modules, so that keeping it would keep the model."""
    for module in every_module(model):
        for name, value in vars(module).items():
            if name not in TREES and any(isinstance(x, nn.Module) for x in _reachable([value])):
                return None
    return Structure(model)


TREES = frozenset({"_modules"})


def _attributes(module: nn.Module, keep: Callable[[object], None], depth: int = 3) -> tuple[Any, ...]:
    """The identities of a module's attributes, and of what containers and settings among them hold."""
    own = vars(module)
    nested = [
        _inside(value, keep, depth)
        for name, value in own.items()
        if name not in TREES and value and not isinstance(value, (nn.Module, Tensor, *ATOMS))
    ]
    return (*map(id, own.values()), *own, *nested)


def _inside(value: object, keep: Callable[[object], None], depth: int) -> Any:  # noqa: ANN401
    """The identities of what a container or an object with attributes holds."""
    if isinstance(value, dict):
        items: Iterable[object] = value.values()
        names: Iterable[object] = value
    elif isinstance(value, (list, tuple, set, frozenset)):
        items, names = value, ()
    elif hasattr(value, "__dict__") and not isinstance(value, (types.FunctionType, types.MethodType)):
        keep(value)
        items, names = vars(value).values(), vars(value)
    else:
        return None
    known = [id(x) for x in items]
    if depth == 0:
        return (*known,)
    deeper = [_inside(x, keep, depth - 1) for x in items if not isinstance(x, (nn.Module, Tensor, *ATOMS))]
    return (*known, *names, *deeper)


def _ignored(value: object) -> None:
    """Keep nothing."""
