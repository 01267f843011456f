"""A shadow of a model: other modules, the same parameters.

Every pass of Vitrail runs on a shadow. A shadow is a copy of the module tree in which every parameter is the user's own
tensor, in evaluation mode, without gradient checkpointing, compilation and data parallelism. Hooks, flags, swapped
weights and replaced results are changed on the shadow alone. The user's model is never touched, not even for a moment,
so another thread may infer with it meanwhile.

Each call gets a copy of the model as it is now. The last copy is used again if neither it nor the model has changed;
otherwise it is filled anew. Its root stays the same object as long as the structure of the model stays the same, so
that what was measured of a structure can be kept by it. Two calls at once get two shadows.

Caches of keys and values among the arguments of a model are the caller's: the shadow fills a copy.
"""

import copy
import gc
import random
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import is_
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.capture.copying import copied
from vitrail.capture.graphs import active
from vitrail.capture.references import (
    ATOMS,
    CONTAINERS,
    HEAP_TYPE,
    REFERRING,
    VISIBLE,
    global_names,
    methods,
    referents,
)
from vitrail.capture.torch_errors import explained_error
from vitrail.capture.torch_private import uncompiled, without_functions, writes_to_all
from vitrail.capture.writes import DRAWING, UNSEEN, SharedMemory, refusing, uses_names
from vitrail.errors import InputError, VitrailError
from vitrail.models.taking import every_module, taken

T = TypeVar("T")
NAMES = frozenset({"past_key_values", "past_key_value", "past", "mems"})
"""Keywords under which models take what they computed of earlier tokens."""


def copy_caches(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    """A hook before a model runs: it fills a copy of an empty cache; one that holds tokens is refused."""
    caches = {name: x for name, x in kwargs.items() if _is_cache(name, x)}
    if not caches:
        return None
    for name, cache in caches.items():
        if (held := _tokens_in(cache)) > 0:
            raise InputError(
                f"{name} holds {held} earlier tokens, which an explanation of the tokens after them would leave out. "
                "Pass the whole text as input_ids, and no cache."
            )
    # One that is made in advance has more places than the text has tokens; the model works as well without it.
    own = {name: None if getattr(x, "is_compileable", False) else copy.deepcopy(x) for name, x in caches.items()}
    return args, {**kwargs, **own}


def _is_cache(name: str, x: object) -> bool:
    return callable(getattr(x, "get_seq_length", None)) or (name in NAMES and x is not None)


def _tokens_in(cache: object) -> int:
    """Return the number of tokens in a cache: as it says, or by the size of the first tensor in it."""
    length = cast(Callable[[], Any] | None, getattr(cache, "get_seq_length", None))
    if callable(length):
        return int(length())
    waiting: list[object] = [cache]
    while waiting:
        x = waiting.pop()
        if isinstance(x, Tensor) and x.ndim > 1 and x.numel() > 0:
            return x.shape[-2]
        waiting += list(x.values()) if isinstance(x, Mapping) else x if isinstance(x, (tuple, list)) else []
    return 0


def _mend_batch_norms(own: nn.Module) -> None:
    """Hand the gradient of batch norms on in one piece.

    The backward pass of torch (2.15, on CPUs) takes the gradient of a single sample that is flattened into tokens for
    one whose channels stand last, and gives wrong numbers without an error.
    """
    for module in every_module(own):
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            module.register_forward_hook(lambda module, args, out: _in_one_piece(out))


def _in_one_piece(out: object) -> None:
    if isinstance(out, Tensor) and out.requires_grad and out.device.type == "cpu" and len(out) == 1:
        out.register_hook(Tensor.contiguous)


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
        """Return True if nothing was exchanged since."""
        now, named = gc.get_referents(*self.objects), [table.get(name) for table, name in self.names]
        return (
            len(now) == len(self.referents)
            and all(map(is_, now, self.referents))
            and list(map(len, self.sized)) == self.sizes
            and all(map(is_, named, self.named))
            and [(x.shape, x.dtype, x.device, x.requires_grad) for x in self.tensors] == self.forms
        )


def snapshot(module: nn.Module, model: nn.Module, *, classes: bool) -> Snapshot | None:
    """Return a snapshot of a module; None if something may change unseen, or leads back to the model.

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
    """Return True if the garbage collector sees all that an object refers to."""
    getattr(x, "__dict__", None)  # made when first asked for
    return kind in REFERRING or all(base in VISIBLE or base.__flags__ & HEAP_TYPE for base in kind.__mro__)


def _taken(objects: list[Any], tensors: list[Tensor], kinds: set[type]) -> Snapshot | None:
    """The snapshot of these objects, of the attributes of these classes and of the globals their methods read."""
    functions = [function for kind in kinds for _, function in methods(kind)]
    cells = [cell for function in functions for cell in function.__closure__ or ()]
    objects = [*objects, *cells, *(table for kind in kinds for table in gc.get_referents(vars(kind)))]
    names = list(
        {(id(f.__globals__), n): (f.__globals__, n) for f in functions for n in global_names(f.__code__)}.values()
    )
    named = [table.get(name) for table, name in names]
    if any(isinstance(x, nn.Module) for x in (*named, *gc.get_referents(*cells))):
        return None
    sized = [x for x in objects if isinstance(x, tuple(CONTAINERS))]
    forms = [(x.shape, x.dtype, x.device, x.requires_grad) for x in tensors]
    return Snapshot(objects, gc.get_referents(*objects), sized, list(map(len, sized)), tensors, forms, names, named)


@dataclass
class Memory:
    """Facts about the modules of a shadow, valid as long as they are these, and for the call that uses it now.

    Args:
        checked: forms of inputs whose passes wrote into nothing that is the user's; shared by all shadows of a model.
    """

    checked: set[Hashable] = field(default_factory=set)
    known: dict[Any, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)


class _Shadow:
    """A copy of a model, and whether it can be used again as it is.

    It can if nothing in the model and nothing in the copy was exchanged since, which a snapshot of both tells. Numbers
    in tensors that are no parameters are copied for every call.
    """

    def __init__(
        self, model: nn.Module, root: nn.Module | None, *, restless: bool = False, recorded: bool = False
    ) -> None:
        self.kind, self.copied = type(model), copied(model, root)
        self.root, self.restless = self.copied.root, restless  # one that changed itself in a call will do so again
        _mend_batch_norms(self.root)
        # A graph reads and writes this copy's memory as long as it lives, so no other call may use or free it.
        unkept = restless or recorded or bool(self.copied.watched)
        self.model = None if unkept else snapshot(model, model, classes=True)
        self.copy = None if self.model is None else snapshot(self.root, model, classes=False)
        self.memory = Memory(_forms_checked(model, self.copied.signature))
        _shadows[id(self.root)] = self

    @contextmanager
    def refuse_writes(self, form: Hashable) -> Iterator[None]:
        """Refuse writes into the user's model in a pass; if none is made, passes over such inputs are trusted."""
        unseen = once(self.root, "writes unseen", lambda: uses_names(self.root, UNSEEN))
        draws = once(self.root, "draws unseen", lambda: uses_names(self.root, DRAWING))
        with without_functions():
            shared = SharedMemory(self._shared(), every_module(self.root))
        with refusing(shared, arrays=unseen) as changes, _restoring_random(self.memory) if draws else nullcontext():
            yield
        if changes.converted:  # and will be in every call: its modules are converted before they are watched
            self.memory.known["writes unseen"] = unseen = True
        if not unseen and not draws:
            self.memory.checked.add(form)

    def _shared(self) -> list[tuple[str, Tensor]]:
        """Return the tensors that the copy shares with the model, by name."""
        held = {id(x) for x in (*self.copied.parameters, *(x for _, x, _ in self.copied.watched))}
        named = [*self.copied.leaves, *((where, x) for where, x, _ in self.copied.watched)]
        for module in every_module(self.root):
            tables = (*module._parameters.items(), *module._buffers.items())
            named += [(f"{type(module).__name__}.{name}", x) for name, x in tables if x is not None and id(x) in held]
        return named

    def rest(self) -> None:
        """Keep what can be used again; empty the root where the call has changed anything."""
        if self.copied.watched:
            self.copied.check_writes()
        if self.copy is None or not self.copy.holds():
            self.restless |= self.copy is not None
            self.copy = None
            vars(self.root).clear()  # nothing of the model is kept alive
            self.memory.known.clear()
        self.memory.call.clear()


@contextmanager
def _restoring_random(memory: Memory) -> Iterator[None]:
    """Put back what a pass draws of the random numbers of Python and NumPy, so that the next pass draws the same."""
    numbers, arrays = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
    finally:
        # NumPy's place in its numbers moves with each that is drawn.
        place = np.random.get_state(legacy=False)["state"]["pos"]
        drawn = random.getstate() != numbers or place != arrays["state"]["pos"]
        random.setstate(numbers)
        np.random.set_state(arrays)
        if drawn:
            memory.call["drawn"].append(True)


def _forms_checked(model: nn.Module, signature: list[object]) -> set[Hashable]:
    """The forms of inputs whose passes wrote into nothing of the model, as long as it has this structure."""
    known = _checked.get(model)
    if known is None or known[0] != signature:
        known = _checked[model] = signature, set()
    return known[1]


_checked: "weakref.WeakKeyDictionary[nn.Module, tuple[list[object], set[Hashable]]]" = weakref.WeakKeyDictionary()


_shadows: "weakref.WeakValueDictionary[int, _Shadow]" = weakref.WeakValueDictionary()
"""By the identity of their roots."""


def memory_of(root: nn.Module) -> Memory:
    """Return the memory of a shadow's modules; an empty one for any other model."""
    found = _shadows.get(id(root))
    return found.memory if found is not None and found.root is root else Memory()


def once(root: nn.Module, name: Hashable, find: Callable[[], T]) -> T:
    """Return a fact about a shadow, found once while nothing in it is exchanged; for any other model, found anew."""
    known = memory_of(root).known
    if name not in known:
        known[name] = find()
    return known[name]


def dtypes_of(root: nn.Module) -> set[torch.dtype]:
    """The precisions that the parameters of a shadow are in."""
    return once(root, "dtypes", lambda: {p.dtype for p in root.parameters()})


FIRST = 64
"""How many numbers of a tensor are looked at first."""
Place = tuple[int, str, str]
"""Where a tensor is: the number of its module, the table it is in, its name there."""
Known = dict[Hashable, tuple[Any, tuple[Place, ...]]]
"""By form of input and weights what was measured, and where tensors were zero then."""
MOST_FORMS = 256
"""How many forms of input are remembered for each thing that is measured of a model."""
TABLES: dict[str, Callable[[nn.Module], Mapping[str, object]]] = {
    "parameters": lambda module: module._parameters,
    "buffers": lambda module: module._buffers,
    "attributes": vars,
}


class Remembered:
    """The measurements of shadows, by name and for each form of their inputs, until the weights change.

    What a model does with its tokens may depend on its weights: a gate of zero hides what it closes. A measurement
    holds as long as the parameters are the same tensors, none was written to, and what was zero still is: torch does
    not count writes through `.data`, and buffers are copied for every call.

    """

    def __init__(self) -> None:
        self.kept: weakref.WeakKeyDictionary[nn.Module, dict[str, Known]] = weakref.WeakKeyDictionary()

    def get(self, model: nn.Module, what: str, form: Hashable, measure: Callable[[], T]) -> T:
        """Return what is known for this form, measured if it is not known or no longer holds."""
        kept = self.kept.setdefault(model, {}).setdefault(what, {})
        call = memory_of(model).call
        if "weights" not in call:  # the same for all measurements of one call
            call["modules"] = once(model, "modules", lambda: every_module(model))
            call["zeros"] = set[tuple[Place, ...]]()
            weights = once(model, "parameters", lambda: _parameters(call["modules"]))
            plain = once(model, "plain", lambda: [x for x in weights if type(x) is nn.Parameter and not x.is_meta])
            # Which tensors the parameters are, where they lie, and how often they were written to.
            call["weights"] = writes_to_all(weights), hash((*map(id, weights), *map(Tensor.data_ptr, plain)))
        key = form, call["weights"]
        found = kept.get(key)
        if found is None or (found[1] not in call["zeros"] and _any_nonzero(call["modules"], found[1])):
            if len(kept) >= MOST_FORMS:
                kept.clear()
            if "places" not in call:
                call["places"] = _zeros(call["modules"])
            found = kept[key] = measure(), call["places"]
        call["zeros"].add(found[1])
        return found[0]

    def forget(self, model: nn.Module) -> None:
        """Forget all that was measured of a shadow."""
        self.kept.pop(model, None)


remembered = Remembered()
"""All that was measured of models."""


def _parameters(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    return [x for module in modules for x in module._parameters.values() if x is not None]


def _is_plain(x: Tensor) -> bool:
    return type(x) in (Tensor, nn.Parameter) and not x.is_meta and x.is_floating_point()


def _zeros(modules: Sequence[nn.Module]) -> tuple[Place, ...]:
    """The places of all tensors that are zero everywhere."""
    tensors = [
        ((number, table, name), x.detach())
        for number, module in enumerate(modules)
        for table, found in TABLES.items()
        for name, x in found(module).items()
        if isinstance(x, Tensor) and _is_plain(x)
    ]
    # Nearly all tensors show by their first numbers that they are not zero.
    asked = [(place, x, (x.view(-1)[:FIRST] if x.is_contiguous() else x).any()) for place, x in tensors]
    rest = [(place, x.any()) for place, x, found in asked if not bool(found)]
    return tuple(place for place, found in rest if not bool(found))


def _any_nonzero(modules: Sequence[nn.Module], places: Sequence[Place]) -> bool:
    """Return True if a tensor in any of these places is not zero; asked once for all of a kind."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for number, table, name in places:
        x = TABLES[table](modules[number]).get(name)
        if not isinstance(x, Tensor):
            return True
        kinds.setdefault((x.device, x.dtype), []).append(x.detach().flatten())
    return any(bool(torch.cat(found).any()) for found in kinds.values())


_running: list[object] = []
"""The calls that run now, in all threads."""
_begun: list[object] = [None]
"""The call that began last."""
_random: list[Tensor] = []
"""The caller's random state, as it was when the first of these calls began."""
_counting = threading.Lock()


@contextmanager
def shadow(model: object, drawn: list[bool] | None = None) -> Iterator[nn.Module]:
    """A shadow of the model for the time of the block, for this call alone.

    Random numbers that models draw are put back when the last call of those that run side by side ends. Which call they
    belong to is known where no other runs beside it.

    Args:
        drawn: takes True when the block ends, if the model has drawn random numbers.
    """
    module = taken(model)
    if passes.running:
        raise InputError(WITHIN.format(type(module).__name__))
    own = _shadow_of(module)
    # Tensors are made on the CPU unless said otherwise, whatever the caller's default device: that is for the model.
    default = torch.get_default_device()
    if default.type != "cpu":
        own.memory.call["default_device"] = default
    handle = own.root.register_forward_pre_hook(copy_caches, with_kwargs=True, prepend=True)
    # If the parameters are written to meanwhile, the passes of one explanation are of several models.
    before = writes_to_all(own.copied.parameters)
    own.memory.call["drawn"] = drawn = [] if drawn is None else drawn
    call = object()
    with _counting:
        alone, _begun[0] = not _running, call
        _random[:] = _random if _running else [torch.get_rng_state()]
        _running.append(call)
    try:
        with nullcontext() if default.type == "cpu" else torch.device("cpu"):
            yield own.root
    except RuntimeError as error:  # autograd notices some of these writes by itself
        if writes_to_all(own.copied.parameters) != before:
            raise InputError(CHANGED) from error
        if isinstance(error, VitrailError) or (known := explained_error(error)) is None:
            raise
        raise known from error
    finally:
        handle.remove()
        with _counting:
            _running.remove(call)
            # A computation that is being recorded asks nothing of its own.
            if not _running and not active.answers and not torch.equal(_random[0], torch.get_rng_state()):
                torch.set_rng_state(_random[0])
                (drawn if alone and _begun[0] is call else []).append(True)
    if writes_to_all(own.copied.parameters) != before:
        raise InputError(CHANGED)
    own.rest()
    # After an error its state is not known, and it is not used again.
    _idle.setdefault(module, []).append(own)


def rewind_random() -> None:
    """Let the next pass of a call draw the random numbers of its first pass, where no other call runs beside it."""
    with _counting:
        if len(_running) == 1 and not active.answers:
            torch.set_rng_state(_random[0])


WITHIN = (
    "{} cannot be explained while a pass of another explanation runs: a hook on the model, or its own forward, calls "
    "vitrail in every pass. Remove the hook before explaining, or explain after the model has run."
)


class _Passes(threading.local):
    """The number of passes of shadows that this thread runs at this moment."""

    def __init__(self) -> None:
        self.running = 0


passes = _Passes()
"""Hooks that explain while a pass runs would be intercepted by it, and are refused."""


def callers_device(own: nn.Module) -> AbstractContextManager[object]:
    """The caller's default device, for a shadow or a part of it that runs."""
    return memory_of(own).call.get("default_device") or nullcontext()


SMALLEST_STEP = 16
"""Sizes of inputs count as the same up to the next power of two, and below this as they are."""


def pass_context(
    own: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
) -> AbstractContextManager[object]:
    """The caller's default device for a pass of a shadow; over inputs of a new form, also refuse writes."""
    memory = memory_of(own)
    device: AbstractContextManager[object] = memory.call.get("default_device") or nullcontext()
    # A pass in another precision runs with weights of its own. All in one function: every pass goes through it.
    form: list[object] = [memory.call.get("precision")]
    for name, x in (*enumerate(args), *kwargs.items()):
        if isinstance(x, Tensor):
            form += (name, x.dtype)
            for size in x.shape:
                form.append(size if size < SMALLEST_STEP else -size.bit_length())
    key = tuple(form)
    return device if key in memory.checked else _watched_pass(own, key, device)


@contextmanager
def _watched_pass(own: nn.Module, form: Hashable, device: AbstractContextManager[object]) -> Iterator[None]:
    found = _shadows.get(id(own))
    refused = nullcontext() if found is None or found.root is not own else found.refuse_writes(form)
    with device, refused:
        yield


CHANGED = (
    "the weights of the model were changed while it was explained, by another thread or by the model itself, so the "
    "result would mix several models. Explain it while nothing trains it, or explain copy.deepcopy(model)."
)


_idle: "weakref.WeakKeyDictionary[nn.Module, list[_Shadow]]" = weakref.WeakKeyDictionary()
"""Shadows not in use. Where one cannot be used again as it is, its root is filled anew if the structure is the same."""


def _shadow_of(model: nn.Module) -> _Shadow:
    """A shadow that was used before, or one that is made anew: in the same root if the structure is the same."""
    recorded = bool(active.answers)  # by a graph, to which the memory of this call belongs
    waiting = _idle.get(model, [])
    try:
        known = waiting.pop()
    except IndexError:
        return _Shadow(model, None, recorded=recorded)
    then = None if recorded or known.copy is None or known.kind is not type(model) else known.model
    if then is not None and then.holds():  # it is a copy of the model as it is now
        if not known.copied.tensors:
            return known
        with torch.inference_mode(mode=False), torch.no_grad(), without_functions():
            if known.copied.copy_numbers():
                return known
    found = _Shadow(model, known.root, restless=known.restless, recorded=recorded)
    same = found.copied.signature == known.copied.signature
    return found if same else _Shadow(model, None, recorded=recorded)


@contextmanager
def in_precision(own: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Give a shadow copies of its weights in another precision for the time of the block; None leaves it as it is."""
    if dtype is None:
        yield
        return
    tables: list[Any] = [
        table for module in every_module(own) for table in (module._parameters, module._buffers, vars(module))
    ]
    kept = [(table, {name: x for name, x in table.items() if isinstance(x, Tensor)}) for table in tables]
    copies: dict[int, Tensor] = {}
    call = memory_of(own).call
    before = call.get("precision")
    call["precision"] = dtype
    try:
        for table, tensors in kept:
            table.update({name: _converted(x, dtype, copies) for name, x in tensors.items()})
        yield
    finally:
        call["precision"] = before
        for table, tensors in kept:
            table.update(tensors)


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
    with torch.inference_mode(mode=False), torch.set_grad_enabled(gradients), uncompiled():
        yield


@contextmanager
def hooks(handles: list[torch.utils.hooks.RemovableHandle]) -> Iterator[None]:
    """Remove these hooks at the end, whatever happened."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
