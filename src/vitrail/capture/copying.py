"""The copy of a model's modules that a shadow is made of.

`copy.deepcopy` would copy parameters, share functions that close over modules, follow weak references back to the model
and stop at locks and streams. Here each kind of object has its own treatment:

* parameters are shared, other tensors copied (large ones shared, and watched for writes);
* modules are copied attribute by attribute, whatever their own `__deepcopy__` does;
* functions, bound methods, partials and weak references lead to the copies of the modules they led to;
* what cannot be copied is shared, unless it leads to the model's own modules: that is an error.
"""

import copy
import functools
import io
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from vitrail.capture.references import (
    ATOMS,
    PROXIES,
    as_written,
    is_ordinary,
    known_to,
    methods,
    reachable,
    referents,
    slots,
)
from vitrail.capture.torch_private import without_functions, writes_to
from vitrail.errors import AnatomyError, InputError

CHECKPOINTING = ("grad_checkpointing", "gradient_checkpointing")
WRAPPERS = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module", "DataParallel": "module"}
"""Modules that only pass a call on, by the name of what they wrap."""
SHARDED = ("FullyShardedDataParallel", "FSDPModule")
SHARED = (
    type, types.ModuleType, Enum, types.BuiltinFunctionType, types.GeneratorType, io.IOBase, torch.Stream, torch.Event,
    torch.ScriptObject, torch.fx.Graph, type(threading.Lock()), type(threading.RLock()), threading.Condition,
    threading.Event, threading.Semaphore, threading.Thread, threading.local,
)  # fmt: skip
"""What a copy of a model works with as the model itself does."""
SHARED_BY_NAME = frozenset(
    {"PreTrainedTokenizerBase", "ProcessorMixin", "ImageProcessingMixin", "FeatureExtractionMixin", "Tokenizer"}
)
TABLES = frozenset(vars(nn.Module()))
"""What torch keeps in every module."""
LARGEST_BUFFER = 4 * 2**20
"""Bytes up to which a tensor that is no parameter is copied, so that nothing the model writes there is the user's."""
LARGEST_INDEX = 65_536
"""Entries up to which whole numbers are part of a structure: they may be an order of tokens."""


class _Passing(nn.Module):
    """Stands where a model has a compiled or distributed module that has hooks of its own, and calls what it wraps."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return vars(self)["_wrapped"](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(vars(self)["_wrapped"], name)


@dataclass(frozen=True, eq=False)
class Copied:
    """A copy of a model.

    Args:
        signature: what the model is made of, as plain values: equal for the same structure.
        parameters: those of the model, which the copy shares.
        leaves: further tensors that the copy shares, with where they are.
        watched: tensors that are too large to be copied, with the number of writes they had seen.
        tensors: what was copied, with what `_place_of` said of it.
        storages: the memory of these tensors, the model's own and the copy's.
    """

    root: nn.Module
    signature: list[object]
    parameters: list[Tensor]
    leaves: list[tuple[str, Tensor]]
    watched: list[tuple[str, Tensor, int]]
    tensors: list[tuple[Tensor, object]]
    storages: list[tuple[torch.UntypedStorage, torch.UntypedStorage]]

    def check_writes(self) -> None:
        """Raise if the copy wrote into a tensor that it shares with the model."""
        for where, x, version in self.watched:
            if writes_to(x) != version:
                raise InputError(
                    f"the forward of the model writes into {where}, a tensor of {x.nbytes / 2**20:.0f} MiB that is no "
                    "parameter, such as a cache of keys and values. It is too large to be copied for each call, so the "
                    "model's own has been written to. Explain copy.deepcopy(model), and reset that tensor."
                )

    def copy_numbers(self) -> bool:
        """Copy the numbers of all copied tensors again; whether they still are where they were, whole numbers too."""
        if any(_place_of(x) != place for x, place in self.tensors):
            return False
        for own, other in self.storages:
            other.copy_(own)
        return True


def copied(model: nn.Module, root: nn.Module | None = None) -> Copied:
    """A copy of the model that shares its parameters.

    Args:
        root: an empty module of the model's class that becomes the copy's root.
    """
    with torch.inference_mode(mode=False), torch.no_grad(), without_functions():
        return _Copier().copy(model, root)


class _Copier:
    """Copies each object once."""

    def __init__(self) -> None:
        self.memo: dict[int, Any] = {}
        self.originals: list[object] = []  # kept alive, so that no other object gets their identity
        self.waiting: list[tuple[nn.Module, nn.Module]] = []
        self.modules: dict[int, nn.Module] = {}  # the model's own, by identity
        self.opaque: list[tuple[str, object]] = []  # copied by others' code, or shared
        self.storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.parameters: list[Tensor] = []
        self.leaves: list[tuple[str, Tensor]] = []
        self.tensors: list[tuple[Tensor, object]] = []
        self.classes: dict[type, list[tuple[str, Callable[..., Any]]]] = {}
        self.slotted: dict[type, bool] = {}
        self.signature: list[object] = []
        self.watched: list[tuple[str, Tensor, int]] = []
        self.pending: set[int] = set()
        self.where = ""

    def copy(self, model: nn.Module, root: nn.Module | None) -> Copied:
        """The whole model."""
        inner = model
        while (child := _wrapped(inner)) is not None and not _hooked(inner):
            inner = child
        if root is not None and type(root) is type(inner):
            self._start(inner, root)
        found = self(inner)
        while self.waiting:
            self._fill(*self.waiting.pop())
        self._refuse_leaks(model)
        storages = list(self.storages.values())
        return Copied(found, self.signature, self.parameters, self.leaves, self.watched, self.tensors, storages)

    def __call__(self, x: Any) -> Any:  # noqa: ANN401
        """The copy of any object."""
        kind = type(x)
        if kind in ATOMS:
            self.signature.append(x)
            return x
        if id(x) in self.memo:
            return self.memo[id(x)]
        treat = TREATMENTS.get(kind) or _treatment(x)
        made = treat(self, x)
        self._keep(x, made)
        return made

    def _keep(self, x: object, made: object) -> None:
        self.memo[id(x)] = made
        self.originals.append(x)

    def _start(self, module: nn.Module, twin: nn.Module) -> nn.Module:
        """Take note of a module whose attributes are copied later: nested calls would be too deep."""
        self._keep(module, twin)
        self.modules[id(module)] = module
        self.waiting.append((module, twin))
        return twin

    def _module(self, module: nn.Module) -> nn.Module:
        if type(module) not in self.slotted:  # once for each class
            _refuse_kind(module)
        inner = _wrapped(module)
        if inner is None:
            return self._start(module, object.__new__(type(module)))
        self.modules[id(module)] = module
        passing = _Passing()
        self._keep(module, passing)
        name = WRAPPERS[type(module).__name__]
        vars(passing)["_wrapped"] = passing._modules[name] = self(inner)
        vars(passing).update({key: self._hooks(x) for key, x in vars(module).items() if key.endswith("_hooks")})
        return passing

    def _fill(self, module: nn.Module, twin: nn.Module) -> None:
        """Copy the attributes of a module to its twin, and let the twin evaluate."""
        said, own = self.signature, vars(twin)
        kind = type(module)
        said.append(kind)
        own.clear()
        for name, value in list(vars(module).items()):
            said.append(name)
            if type(value) in ATOMS:
                said.append(value)
                own[name] = value
                continue
            if name in TABLES and not value:
                own[name] = type(value)()
                continue
            self.where = f"{kind.__name__}.{name}"
            own[name] = self._hooks(value) if name.endswith("_hooks") else self(value)
        for name, value in slots(module) if self._has_slots(kind) else ():
            self.where = f"{kind.__name__}.{name}"
            object.__setattr__(twin, name, self(value))
        self._quiet(twin)

    def _has_slots(self, kind: type) -> bool:
        """Return True if objects of a class have attributes outside of their dictionary; computed once per class."""
        if kind not in self.slotted:
            self.slotted[kind] = any("__slots__" in vars(base) for base in kind.__mro__)
        return self.slotted[kind]

    def _quiet(self, twin: nn.Module) -> None:
        """Evaluation mode, no checkpointing, no compiled code, one device: what a pass must not meet."""
        own, kind = vars(twin), type(twin)
        own["training"] = False
        for name in CHECKPOINTING:
            if (own[name] if name in own else getattr(kind, name, None)) is True:
                own[name] = False
        if own.get("_compiled_call_impl") is not None:
            own["_compiled_call_impl"] = None
        if isinstance(twin, nn.DataParallel):
            own["device_ids"] = []  # then it calls its module as it is
        if kind not in self.classes:
            pairs = [(name, method, as_written(method)) for name, method in methods(kind, every=True)]
            self.classes[kind] = [(name, plain) for name, method, plain in pairs if plain is not method]
        for name, plain in self.classes[kind]:
            own.setdefault(name, types.MethodType(plain, twin))

    def _hooks(self, table: Any) -> Any:  # noqa: ANN401
        """A table of hooks: those that know no module stay the user's own, so that what they report arrives."""
        if not isinstance(table, dict):
            return self(table)
        made = type(table)()
        self._keep(table, made)
        for key, hook in table.items():
            self.signature.append(getattr(getattr(hook, "__func__", hook), "__code__", type(hook)))
            knows = any(isinstance(x, nn.Module) for x in reachable([hook]))
            made[key] = self(hook) if knows else hook
        return made

    def _tensor(self, x: Tensor) -> Tensor:
        """Parameters and leaves of a graph are shared, all else is copied or watched."""
        _refuse_tensor(x, self.where)
        self.signature.append((type(x), x.shape, x.dtype, x.device))
        plain = type(x) is Tensor and x.layout is torch.strided and not x.is_quantized and x.device.type != "meta"
        if isinstance(x, nn.Parameter):
            self.parameters.append(x)
        if not plain or (x.is_leaf and x.requires_grad):
            self.leaves.append((self.where, x))
            return x
        self.signature.append(_index_of(x))
        size = x.untyped_storage().nbytes()
        if size <= LARGEST_BUFFER or x.is_inference():
            return self._own_tensor(x)
        alias = x.data  # the same numbers, but writes are counted separately
        self.watched.append((self.where, alias, writes_to(alias)))
        return alias

    def _own_tensor(self, x: Tensor) -> Tensor:
        """A copy of a tensor; tensors that share memory still do."""
        self.tensors.append((x, _place_of(x)))
        if x.is_conj() or x.is_neg():
            return x.detach().clone()
        storage = x.untyped_storage()
        if storage._cdata not in self.storages:
            self.storages[storage._cdata] = storage, storage.clone()
        made = torch.empty(0, dtype=x.dtype, device=x.device)
        return made.set_(self.storages[storage._cdata][1], x.storage_offset(), x.size(), x.stride())

    def _dict(self, x: Any) -> Any:  # noqa: ANN401
        made = defaultdict(self(x.default_factory)) if isinstance(x, defaultdict) else type(x)()
        self._keep(x, made)
        if x:
            plain = all(type(key) in ATOMS for key in x)
            self.signature += x if plain else [len(x)]
            made.update({key if plain else self._key(key): self(value) for key, value in x.items()})
        return made

    def _key(self, key: Any) -> Any:  # noqa: ANN401
        return self(key) if isinstance(key, (nn.Module, tuple)) else key

    def _list(self, x: Any) -> Any:  # noqa: ANN401
        made = deque(maxlen=x.maxlen) if isinstance(x, deque) else type(x)()
        self._keep(x, made)
        self.signature.append(len(x))
        made.extend([self(value) for value in x])
        return made

    def _set(self, x: Any) -> Any:  # noqa: ANN401
        self.signature.append(len(x))
        return type(x)([self._key(value) for value in x])

    def _tuple(self, x: tuple) -> tuple:
        made = tuple([self(value) for value in x])
        self.signature.append(len(x))
        return x if all(a is b for a, b in zip(x, made, strict=True)) else made

    def _builtin(self, x: Any) -> Any:  # noqa: ANN401
        """A method of a list, a dictionary or the like belongs to its copy."""
        owner = x.__self__
        if owner is None or isinstance(owner, (type, types.ModuleType, Tensor)):
            return x
        return getattr(self(owner), x.__name__)

    def _partial(self, x: functools.partial) -> functools.partial:
        made = functools.partial(self(x.func), *self(x.args), **self(x.keywords))
        made.__dict__.update(self(x.__dict__))
        return made

    def _reference(self, x: weakref.ref) -> weakref.ref:
        target = x()
        return weakref.ref(self(target)) if isinstance(target, nn.Module) else x

    def _proxy(self, x: Any) -> Any:  # noqa: ANN401
        target = x.__repr__.__self__  # a proxy hands attributes of what it stands for, which know their owner
        return weakref.proxy(self(target)) if isinstance(target, nn.Module) else x

    def _array(self, x: np.ndarray) -> Any:  # noqa: ANN401
        self.signature.append((x.shape, x.dtype))
        return self._object(x) if x.dtype.hasobject else x.copy()

    def _function(self, function: types.FunctionType) -> Any:  # noqa: ANN401
        """The function, or one like it over the copies of the modules it knows."""
        plain = as_written(function)
        if plain is not function:
            return self(plain)
        self.signature.append(function.__code__)
        held = (function.__closure__, function.__defaults__, function.__kwdefaults__, function.__dict__)
        if not any(held) or not any(isinstance(x, nn.Module) for x in reachable(referents(function))):
            return function
        cells = tuple(self.memo.get(id(cell)) or types.CellType() for cell in function.__closure__ or ())
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
        self._keep(function, made)
        for old, new in zip(function.__closure__ or (), cells, strict=True):
            self._fill_cell(old, new)
        made.__defaults__, made.__kwdefaults__ = self(function.__defaults__), self(function.__kwdefaults__)
        made.__dict__.update(self(function.__dict__))
        made.__qualname__, made.__module__ = function.__qualname__, function.__module__
        return made

    def _fill_cell(self, old: types.CellType, new: types.CellType) -> None:
        if id(old) in self.memo:
            return
        self._keep(old, new)
        try:
            content = old.cell_contents
        except ValueError:  # an empty cell
            return
        knows = any(isinstance(x, nn.Module) for x in reachable([content]))
        new.cell_contents = self(content) if knows else content

    def _object(self, x: Any) -> Any:  # noqa: ANN401
        """An object of any other class: copied attribute by attribute, by its own code, or not at all."""
        kind = type(x)
        self.signature.append(kind)
        if isinstance(x, SHARED) or any(base.__name__ in SHARED_BY_NAME for base in kind.__mro__):
            return x
        if not is_ordinary(kind):
            return self._by_own_code(x)
        made = object.__new__(kind)
        self._keep(x, made)
        for name, value in list(vars(x).items()) if hasattr(x, "__dict__") else ():
            self.signature.append(name)
            vars(made)[name] = self(value)
        for name, value in slots(x):
            object.__setattr__(made, name, self(value))
        return made

    def _by_own_code(self, x: Any) -> Any:  # noqa: ANN401
        """Return what `copy.deepcopy` makes of an object, over copies of modules; the object itself if it fails."""
        if id(x) in self.pending:  # a circle that only its own code could close
            self.opaque.append((self.where, x))
            return x
        self.pending.add(id(x))
        inside = [y for y in reachable([x], through_modules=False) if y is not x]
        for y in inside:
            if isinstance(y, (Tensor, nn.Module, *REFERRING, *SHARED)):
                self(y)
        try:
            made = copy.deepcopy(x, self.memo)
        except Exception as error:
            if any(isinstance(y, nn.Module) for y in inside):
                raise AnatomyError(
                    f"{self.where} holds a {type(x).__name__} that leads to modules and cannot be copied "
                    f"({type(error).__name__}: {error}). Vitrail explains a copy of the modules, so that the model "
                    "itself is never changed. Remove that attribute."
                ) from error
            made = x
        self._say(made)
        self.opaque.append((self.where, made))
        return made

    def _say(self, x: object, depth: int = 4) -> None:
        """Add the settings that an object holds to the signature."""
        held = x if isinstance(x, dict) else getattr(x, "__dict__", None)
        values = held.items() if isinstance(held, dict) else enumerate(x) if isinstance(x, (list, tuple)) else ()
        for name, value in values:
            self.signature += [name] if isinstance(name, (str, int)) else []
            if type(value) in ATOMS:
                self.signature.append(value)
            elif depth and not isinstance(value, (Tensor, nn.Module)):
                self._say(value, depth - 1)

    def _refuse_leaks(self, model: nn.Module) -> None:
        """Refuse a copy that still leads to modules of the model itself: they would run instead of their copies."""
        for where, x in self.opaque:
            leak = next((y for y in reachable([x]) if id(y) in self.modules and isinstance(y, nn.Module)), None)
            if leak is not None:
                raise _leak(f"{where} of {type(model).__name__}", leak)
        for kind in self.classes:
            for name, function in methods(kind):
                leak = next((y for y in known_to(function) if id(y) in self.modules), None)
                if leak is not None and name != "__init__":  # a copy is not built anew
                    raise _leak(f"{name} of the class {kind.__name__}", leak)


REFERRING = (
    types.FunctionType, types.MethodType, types.BuiltinMethodType, functools.partial, weakref.ref, torch.Generator,
)  # fmt: skip
"""Objects that may lead to a module without being one."""
TREATMENTS: dict[type, Callable[[_Copier, Any], Any]] = {
    **dict.fromkeys((nn.Parameter, Tensor), _Copier._tensor),
    **dict.fromkeys((dict, OrderedDict, defaultdict), _Copier._dict),
    **dict.fromkeys((list, deque), _Copier._list),
    **dict.fromkeys((set, frozenset), _Copier._set),
    tuple: _Copier._tuple,
    types.FunctionType: _Copier._function,
    types.MethodType: lambda copier, x: types.MethodType(copier(x.__func__), copier(x.__self__)),
    types.BuiltinMethodType: _Copier._builtin,
    functools.partial: _Copier._partial,
    weakref.ReferenceType: _Copier._reference,
    **dict.fromkeys(PROXIES, _Copier._proxy),
    torch.Generator: lambda copier, x: x.clone_state(),
    np.ndarray: _Copier._array,
}


def _treatment(x: object) -> Callable[[_Copier, Any], Any]:
    """Return the treatment of an object whose own class is not in the table."""
    if isinstance(x, nn.Module):
        return _Copier._module
    return _Copier._tensor if isinstance(x, Tensor) else _Copier._object


def _leak(where: str, leak: object) -> AnatomyError:
    return AnatomyError(
        f"{where} holds on to a {type(leak).__name__} of the model in a way that cannot be copied. Vitrail explains a "
        "copy of the modules, so that the model itself is never changed. Reach the module through self instead."
    )


def _refuse_kind(module: nn.Module) -> None:
    """Refuse modules whose weights or code are not here."""
    if isinstance(module, torch.jit.ScriptModule):
        raise AnatomyError(
            f"{type(module).__name__} is TorchScript: its code is compiled, so attention cannot be intercepted. "
            "Explain the Python model that torch.jit was given."
        )
    if any(base.__name__ in SHARDED for base in type(module).__mro__):
        raise AnatomyError(
            f"{type(module).__name__} spreads the weights over processes, so they cannot be read in one place. "
            "Load the whole model in one process to explain it."
        )


def _refuse_tensor(x: Tensor, where: str) -> None:
    if type(x) is Tensor:
        return
    if isinstance(x, (UninitializedBuffer, UninitializedParameter)):
        raise InputError(f"{where} has no shape yet, because the model is lazy. Run the model once, then explain it.")
    if type(x).__name__ == "DTensor":
        raise AnatomyError(
            f"{where} is spread over processes (a DTensor), so it cannot be read in one place. Load the whole model in "
            "one process to explain it."
        )
    if isinstance(x, nn.Parameter) and x.is_inference():
        raise InputError("the model was made inside torch.inference_mode, so autograd cannot run. Make it outside.")


def _wrapped(module: nn.Module) -> nn.Module | None:
    """Return the module that a compiled or distributed module calls; None if the module is neither."""
    kind = type(module)
    name = WRAPPERS.get(kind.__name__)
    return cast(nn.Module, getattr(module, name)) if name and kind.__module__.startswith("torch.") else None


def _hooked(module: nn.Module) -> bool:
    """Return True if a module has hooks of its own."""
    return any(table for name, table in vars(module).items() if name.endswith("_hooks") and isinstance(table, dict))


def _index_of(x: Tensor) -> object:
    """Return a value that identifies a tensor of whole numbers, which may be an order of tokens; else None."""
    if x.is_floating_point() or x.is_complex():
        return None
    if x.device.type == "cpu" and x.numel() <= LARGEST_INDEX:
        return hash(x.contiguous().numpy().tobytes())
    return (id(x), x.data_ptr(), writes_to(x))


def _place_of(x: Tensor) -> object:
    """Return a tensor's place in memory, and its whole numbers; never the same for one that is computed when read."""
    if x.is_conj() or x.is_neg():
        return object()
    return x.data_ptr(), x.storage_offset(), x.shape, x.stride(), x.dtype, x.device, _index_of(x)
