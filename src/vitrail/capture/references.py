"""What an object refers to: attributes, closures, methods, and every module that can be reached from it.

A `Snapshot` remembers all of that, and tells later, much faster than by copying, whether anything was exchanged since.
"""

import dis
import functools
import gc
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from operator import is_
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
    """Whether all that an object holds is in its attributes, and no code of its own is needed to copy it."""
    own = ("__deepcopy__", "__copy__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__getinitargs__")
    plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    state = kind.__getstate__ is object.__getstate__
    made = all(base is object or base.__flags__ & HEAP_TYPE for base in kind.__mro__)  # written in Python
    return plain and state and made and not any(hasattr(kind, name) for name in own)


def compiled_methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The methods of a class that torch.compile has compiled, as they were written."""
    for name, method in methods(kind, every=True):
        if (plain := uncompiled(method)) is not method:
            yield name, plain


def methods(kind: type, *, every: bool = False) -> Iterator[tuple[str, types.FunctionType]]:
    """The functions of a class and its parents; those of libraries only if asked for."""
    for base in kind.__mro__:
        if base not in (nn.Module, object) and (every or base.__module__.split(".")[0] not in LIBRARIES):
            for name, value in list(vars(base).items()):
                if isinstance(value, types.FunctionType):
                    yield name, value


def known_to(function: types.FunctionType) -> Iterator[object]:
    """Modules that a function of a class leads to by its closure or by a global name."""
    found = (function.__globals__.get(name) for name in _global_names(function.__code__))
    yield from (x for x in found if isinstance(x, nn.Module))
    if function.__closure__:
        yield from (x for x in reachable(referents(function)) if isinstance(x, nn.Module))


def uncompiled(value: Any) -> Any:  # noqa: ANN401
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
    """What an object refers to: of a tensor nothing, of a function its closure, of a module its attributes."""
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
def _global_names(code: types.CodeType) -> frozenset[str]:
    """The global names that a function and the functions inside it read.

    `co_names` would not do: it lists attributes too, so `self.model` would be taken for a global `model`.
    """
    own = (step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    inner = (_global_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return frozenset(own).union(*inner)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Every object that belongs to some modules, and all that each of them referred to.

    Nothing was exchanged as long as each of them refers to the very same objects. What changes in place is seen where
    it is a container or an object written in Python; of tensors shape, type, device and `requires_grad`.
    """

    objects: list[Any]
    referents: list[Any]
    sized: Sequence[Sized]
    sizes: list[int]
    tensors: list[Tensor]
    forms: list[tuple[torch.Size, torch.dtype, torch.device, bool]]
    names: list[tuple[dict[str, Any], str]]  # global names that methods read
    named: list[Any]

    def holds(self) -> bool:
        """Whether nothing was exchanged since."""
        now, named = gc.get_referents(*self.objects), [table.get(name) for table, name in self.names]
        return (
            len(now) == len(self.referents)
            and all(map(is_, now, self.referents))
            and list(map(len, self.sized)) == self.sizes
            and all(map(is_, named, self.named))
            and [(x.shape, x.dtype, x.device, x.requires_grad) for x in self.tensors] == self.forms
        )


def snapshot(module: nn.Module, model: nn.Module, *, classes: bool) -> Snapshot | None:
    """What belongs to a module; None if something may change unseen, or leads back to the model.

    A snapshot that led back to a model would keep it alive for ever.

    Args:
        classes: whether the attributes of the classes of all modules belong to it too.
    """
    if any("__slots__" in vars(base) for base in type(module).__mro__):
        return None
    objects: list[Any] = []  # not the module itself, which would live for ever
    tensors: list[Tensor] = []
    kinds: set[type] = {type(module)}
    waiting, seen, back = [vars(module)], {id(module)}, id(model)
    while waiting:
        x = waiting.pop()
        kind, own = type(x), id(x)
        if own == back:
            return None
        if kind in ATOMS or own in seen or kind is types.ModuleType or isinstance(x, type):
            continue
        seen.add(own)
        if isinstance(x, Tensor):
            tensors.append(x)
        elif kind is types.FunctionType:  # its globals are no part of the model
            waiting += referents(x)
        elif kind in CONTAINERS or _is_visible(x, kind):
            objects.append(x)
            kinds.add(kind)
            waiting += gc.get_referents(x)
        else:
            return None
    modules = {base for kind in kinds if issubclass(kind, nn.Module) for base in kind.__mro__}
    return _taken(objects, tensors, modules - {nn.Module, object} if classes else set())


def _is_visible(x: object, kind: type) -> bool:
    """Whether the garbage collector sees all that an object refers to."""
    getattr(x, "__dict__", None)  # made when first asked for
    return kind in REFERRING or all(base in VISIBLE or base.__flags__ & HEAP_TYPE for base in kind.__mro__)


def _taken(objects: list[Any], tensors: list[Tensor], kinds: set[type]) -> Snapshot | None:
    """The snapshot of these objects, of the attributes of these classes and of the globals their methods read."""
    functions = [function for kind in kinds for _, function in methods(kind)]
    cells = [cell for function in functions for cell in function.__closure__ or ()]
    objects = [*objects, *cells, *(table for kind in kinds for table in gc.get_referents(vars(kind)))]
    names = list(
        {(id(f.__globals__), n): (f.__globals__, n) for f in functions for n in _global_names(f.__code__)}.values()
    )
    named = [table.get(name) for table, name in names]
    if any(isinstance(x, nn.Module) for x in (*named, *gc.get_referents(*cells))):
        return None
    sized = [x for x in objects if isinstance(x, tuple(CONTAINERS))]
    forms = [(x.shape, x.dtype, x.device, x.requires_grad) for x in tensors]
    return Snapshot(objects, gc.get_referents(*objects), sized, list(map(len, sized)), tensors, forms, names, named)
