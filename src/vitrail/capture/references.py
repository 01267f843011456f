"""The objects that an object refers to: attributes, closures, methods, and all modules reached from it."""

import dis
import functools
import gc
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

ATOMS = frozenset(
    {str, bytes, int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented), range, slice}
    | {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, types.CodeType}
)
"""Types whose objects cannot change."""
LIBRARIES = frozenset({"torch", "torchvision", "transformers", "timm", "builtins", "collections", "peft"})
"""Packages whose classes refer to no module of one model in their code."""
PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
HEAP_TYPE = 1 << 9
"""Python's flag for classes that are made at run time."""
CONTAINERS = frozenset({dict, OrderedDict, defaultdict, list, tuple, set, frozenset, deque})
REFERRING = frozenset(
    {types.MethodType, types.BuiltinMethodType, types.CellType, types.MappingProxyType, functools.partial}
)
"""Besides containers, types of which the garbage collector sees all that an object refers to."""
VISIBLE = CONTAINERS | ATOMS | {object}
"""Types that a class written in Python may derive from, so that the garbage collector still sees all it refers to."""
LARGEST_SEARCH = 500_000
"""Objects looked at for modules that hide in plain attributes."""


def slots(x: object) -> Iterator[tuple[str, Any]]:
    """The attributes of an object that are not in its dictionary."""
    for kind in type(x).__mro__:
        for slot in vars(kind).values() if "__slots__" in vars(kind) else ():
            if isinstance(slot, types.MemberDescriptorType):  # by its descriptor: private names are mangled
                try:
                    yield slot.__name__, slot.__get__(x)
                except AttributeError:  # never set
                    continue


def is_ordinary(kind: type) -> bool:
    """Return True if all that an object holds is in its attributes, and no code of its own is needed to copy it."""
    own = ("__deepcopy__", "__copy__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__getinitargs__")
    plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    state = kind.__getstate__ is object.__getstate__
    made = all(base is object or base.__flags__ & HEAP_TYPE for base in kind.__mro__)  # written in Python
    return plain and state and made and not any(hasattr(kind, name) for name in own)


def methods(kind: type, *, every: bool = False) -> Iterator[tuple[str, types.FunctionType]]:
    """The functions of a class and its parents; those of libraries only if asked for."""
    for base in kind.__mro__:
        if base not in (nn.Module, object) and (every or base.__module__.split(".")[0] not in LIBRARIES):
            for name, value in list(vars(base).items()):
                if isinstance(value, types.FunctionType):
                    yield name, value


def known_to(function: types.FunctionType) -> Iterator[object]:
    """Modules that a function of a class leads to by its closure or by a global name."""
    found = (function.__globals__.get(name) for name in global_names(function.__code__))
    yield from (x for x in found if isinstance(x, nn.Module))
    if function.__closure__:
        yield from (x for x in reachable(referents(function)) if isinstance(x, nn.Module))


def as_written(value: Any) -> Any:  # noqa: ANN401
    """The function that torch.compile was given, if this is what it made of it."""
    plain = getattr(value, "_torchdynamo_orig_callable", None)
    if plain is None or getattr(value, "_torchdynamo_disable", False):
        return value
    return plain


def reachable(roots: Iterable[object], *, through_modules: bool = True) -> Iterator[object]:
    """Every object that can be reached from these, each once; tensors and modules among them."""
    waiting, seen = list(roots), set[int]()
    while waiting and len(seen) < LARGEST_SEARCH:
        x = waiting.pop()
        if type(x) in ATOMS or isinstance(x, (type, types.ModuleType)) or id(x) in seen:
            continue
        seen.add(id(x))
        yield x
        if through_modules or not isinstance(x, nn.Module):
            waiting += referents(x)


def referents(x: Any) -> list[Any]:  # noqa: ANN401
    """Return what `x` refers to: for a tensor nothing, for a function its closure, for a module its attributes."""
    kind = type(x)
    if isinstance(x, (Tensor, torch.fx.Graph)):
        return []
    if kind is weakref.ReferenceType:
        return [x()]
    if kind in PROXIES:
        return [x.__repr__.__self__]
    if isinstance(x, nn.Module):
        return list(vars(x).values())
    if isinstance(x, types.FunctionType):
        return [*(x.__closure__ or ()), x.__defaults__, x.__kwdefaults__, x.__dict__]
    return gc.get_referents(x)


@functools.lru_cache(maxsize=4096)
def global_names(code: types.CodeType) -> frozenset[str]:
    """The global names that a function and the functions inside it read.

    `co_names` would not do: it lists attributes too, so `self.model` would be taken for a global `model`.
    """
    own = (step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    inner = (global_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return frozenset(own).union(*inner)


SETTING = (bool, int, float, str, type(None))


def settings_of(model: nn.Module) -> list[tuple[type, str, object]]:
    """Return the settings of modules beside tensors: their classes and values, switched adapters, numbers of hooks."""
    found: list[tuple[type, str, object]] = []
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, SETTING):
                found.append((type(module), name, value))
            elif "_hooks" in name:
                found.append((type(module), name, len(value)))
            elif isinstance(value, (dict, list, tuple)):
                entries = value.values() if isinstance(value, dict) else value
                if all(isinstance(x, SETTING) for x in entries):
                    found.append((type(module), name, str(value)))
    return found
