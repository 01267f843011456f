"""Refuse what a forward would write into memory that a shadow shares with the user's model.

A shadow shares parameters, their gradients, and large buffers. Small buffers are copied for each call. torch counts
most writes, but it does so after they happened, and it does not count writes through `.data` at all. So the passes over
inputs of a new form run below modes that see each operation before it runs. The passes of models whose own code uses
`.data`, `.grad` or `.numpy()` all do, and those of models that convert their modules.
"""

import functools
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.capture.references import LIBRARIES, global_names, methods
from vitrail.capture.torch_private import DispatchMode
from vitrail.errors import InputError
from vitrail.models.taking import every_module

UNSEEN = frozenset(
    {"data", "numpy", "asarray", "__array__", "vector_to_parameters", "grad", "backward", "zero_grad", "requires_grad"}
    | {"requires_grad_", "register_hook", "register_post_accumulate_grad_hook"}
)
"""Names in code that can write where torch does not count."""
DRAWING = frozenset({"random", "choice", "choices", "shuffle", "randint", "sample", "uniform"})
"""Names in code that can draw random numbers of Python or NumPy."""
PLAIN = (Tensor, nn.Parameter)


class SharedMemory:
    """The memory that a shadow shares with the user's model.

    Args:
        named: parameters and buffers, with their places in words.
        modules: the modules of the shadow.
    """

    def __init__(self, named: Sequence[tuple[str, Tensor]], modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        self.kept = [x for _, x in named if _is_plain(x)]
        self.places = {_memory(x): where for where, x in named if _is_plain(x)}
        self.parameters = {_memory(x) for x in self.kept if isinstance(x, nn.Parameter)}
        self.users = {id(x): where for where, x in named if isinstance(x, nn.Parameter) or x.requires_grad}
        self.of_gradients: dict[int, str] = {}
        # Held, so that no other tensor gets their memory while a pass runs.
        self.storages = [x.untyped_storage() for x in self.kept]

    def holds(self, x: object) -> bool:
        """Return True if a tensor lies in this memory."""
        return isinstance(x, PLAIN) and _is_plain(x) and _memory(x) in self.places

    def refusal(self, written: Tensor) -> InputError:
        """The error for a write into a tensor of this memory."""
        where = self.places[_memory(written)]
        if _memory(written) in self.of_gradients:
            return gradient_refusal(where)
        if _memory(written) in self.parameters:
            return InputError(
                f"the forward of the model writes into the parameter {where}. This was stopped before the write: else "
                "the weights of the model were changed while it was explained. Make it a buffer (register_buffer), "
                "which is copied for each call."
            )
        if any(x.requires_grad and _memory(x) == _memory(written) for x in self.kept):
            return InputError(
                f"the forward of the model writes into {where}, a tensor that requires gradients, which the explained "
                "copy shares. This was stopped before the write. Make it a buffer (register_buffer), which is copied "
                "for each call."
            )
        return InputError(
            f"the forward of the model writes into {where}, a tensor of "
            f"{written.untyped_storage().nbytes() / 2**20:.0f} MiB that is no parameter, such as a cache of keys and "
            "values. It is too large to be copied for each call, so the write was stopped before it changed the "
            "model's own. Explain the model without that cache (for example use_cache=False), or with one of at most "
            "4 MiB."
        )

    def convert(self, parameter: Tensor, converted: Tensor) -> None:
        """Give the shadow a parameter of its own, converted, where the model converts one of its modules."""
        own = nn.Parameter(converted, requires_grad=parameter.requires_grad)
        for module in self.modules:
            for name, x in module._parameters.items():
                if x is parameter:
                    module._parameters[name] = own

    def add_gradient(self, gradient: Tensor, parameter: Tensor) -> None:
        """Hold the gradient of a parameter that the model asks for. Others are not read: a thread may be training."""
        if _is_plain(gradient):
            self.kept.append(gradient)
            self.storages.append(gradient.untyped_storage())
            self.places[_memory(gradient)] = self.of_gradients[_memory(gradient)] = self.users[id(parameter)]


def gradient_refusal(where: str) -> InputError:
    """The error for a forward that changes the gradient of a parameter, or whether it has one."""
    return InputError(
        f"the forward of the model changes the gradient of {where}, or how it is made (.grad, backward, requires_grad, "
        "register_hook). The explained copy shares its parameters with the model, so this was stopped. Do it "
        "outside of forward; torch.autograd.grad changes nothing."
    )


def _is_plain(x: Tensor) -> bool:
    return type(x) in PLAIN and x.layout is torch.strided and x.device.type != "meta"


def _memory(x: Tensor) -> int:
    return x.untyped_storage()._cdata


class _RefuseWrites(DispatchMode):
    """Raise before an operation writes into shared memory."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler at the first operation

    def __init__(self, shared: SharedMemory) -> None:
        super().__init__()
        self.shared = shared

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        for place, name in _written_arguments(func):
            given = args[place] if place < len(args) else kwargs.get(name)
            for x in given if isinstance(given, (list, tuple)) else (given,):
                if self.shared.holds(x):
                    raise self.shared.refusal(x)
        return func(*args, **kwargs)


@functools.lru_cache(maxsize=4096)
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:  # noqa: ANN401
    """Position and name of the arguments that an operation writes into, by its schema."""
    schema = getattr(func, "_schema", None)
    arguments = enumerate(() if schema is None else schema.arguments)
    return tuple((i, x.name) for i, x in arguments if x.alias_info is not None and x.alias_info.is_write)


class RefuseChanges(TorchFunctionMode):
    """Raise before a parameter is given other memory or a gradient, and lend arrays of shared memory for reading only.

    Where the model converts one of its modules, as `router.to(torch.float32)` does, only the shadow's is converted.
    """

    def __init__(self, shared: SharedMemory, *, arrays: bool) -> None:
        super().__init__()
        self.shared, self.arrays = shared, arrays
        self.lent: Tensor | None = None  # the last tensor of which an array was handed out
        self.converted = False

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if func in _CHANGES and not self._check(func, args, kwargs or {}):
            return None
        found = func(*args, **(kwargs or {}))
        if func == _GET_GRAD and isinstance(found, Tensor) and id(args[0]) in self.shared.users:
            self.shared.add_gradient(found, args[0])
        elif self.arrays and func in (Tensor.numpy, Tensor.__array__) and self.shared.holds(args[0]):
            array: Any = found
            array.flags.writeable = False
            self.lent = args[0]
        return found

    def _check(self, func: Any, args: tuple, kwargs: Mapping[str, Any]) -> bool:  # noqa: ANN401
        """Refuse a change of what the model has; return False if it was made on the shadow instead."""
        x, shared = args[0], self.shared
        if func == Tensor.backward:
            if kwargs.get("inputs") is None:
                raise gradient_refusal("parameters")
        elif func == _SET_DATA:
            if id(x) in shared.users and not _is_conversion():
                raise shared.refusal(x)
            if id(x) in shared.users and _memory(args[1]) != _memory(x):
                shared.convert(x, args[1])
                self.converted = True
                return False
            # The gradient of a parameter that was converted, which no pass reads.
            return not (_is_plain(x) and _memory(x) in shared.of_gradients and _is_conversion())
        elif id(x) in shared.users and not (func in _SWITCHES and _switched_to(args, kwargs) is x.requires_grad):
            raise gradient_refusal(shared.users[id(x)])
        return True


def _switched_to(args: tuple, kwargs: Mapping[str, Any]) -> bool:
    return args[1] if len(args) > 1 else kwargs.get("requires_grad", True)


def _is_conversion() -> bool:
    """Return True if a module is being converted, by its `to` and the like."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is nn.Module._apply.__code__:
            return True
        frame = frame.f_back
    return False


_SET_DATA = Tensor.data.__set__  # pyright: ignore[reportAttributeAccessIssue]
_GET_GRAD = Tensor.grad.__get__  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
_SET_GRAD = Tensor.grad.__set__  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
_SET_REQUIRES_GRAD = Tensor.requires_grad.__set__  # pyright: ignore[reportAttributeAccessIssue]
_SWITCHES = frozenset({_SET_REQUIRES_GRAD, Tensor.requires_grad_})
_HOOKS = frozenset({Tensor.register_hook, Tensor.register_post_accumulate_grad_hook})
_CHANGES = _SWITCHES | _HOOKS | {_SET_DATA, _SET_GRAD, Tensor.backward}


@contextmanager
def refusing(shared: SharedMemory, *, arrays: bool) -> Iterator["RefuseChanges"]:
    """Refuse writes into shared memory within a block, and changes of parameters and their gradients.

    Args:
        arrays: also refuse writes through arrays.
    """
    changes = RefuseChanges(shared, arrays=arrays)
    try:
        with changes, _RefuseWrites(shared):
            yield changes
    except (ValueError, TypeError) as error:
        if changes.lent is None or "read-only" not in str(error):
            raise
        raise shared.refusal(changes.lent) from error


def uses_names(root: nn.Module, names: frozenset[str]) -> bool:
    """Return True if code of the model uses one of these names, as a global name or as an attribute.

    Searched are the forward of each class that belongs to no library, functions that modules hold, such as hooks, and
    whatever these name.
    """
    modules = every_module(root)
    if any(_class_uses(kind, names) for kind in {type(module) for module in modules}):
        return True
    seen = set[types.CodeType]()
    return any(_function_uses(function, names, {}, seen) for module in modules for function in _held(vars(module)))


def _class_uses(kind: type, names: frozenset[str]) -> bool:
    own = dict(reversed(list(methods(kind))))  # of a name that several bases have, the first counts
    return "forward" in own and _function_uses(own["forward"], names, own, set())


def _function_uses(
    start: types.FunctionType,
    names: frozenset[str],
    own: Mapping[str, types.FunctionType],
    seen: set[types.CodeType],
) -> bool:
    """Search a function, and those it reaches by the names of methods, by global names and by its closure."""
    waiting = [start]
    while waiting:
        function = waiting.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        used = _names_in(function.__code__)
        if used & names:
            return True
        waiting += [own[name] for name in used if name in own]
        waiting += _functions_named(function)
    return False


def _held(attributes: Mapping[str, object]) -> Iterator[types.FunctionType]:
    """The functions that a module holds: as attributes, in containers and as hooks."""
    waiting: list[object] = list(attributes.values())
    while waiting:
        x = waiting.pop()
        if isinstance(x, types.MethodType):
            x = x.__func__
        if isinstance(x, functools.partial):
            waiting.append(x.func)
        elif isinstance(x, types.FunctionType):
            if _is_own(x):
                yield x
        elif isinstance(x, dict):
            waiting += x.values()
        elif isinstance(x, (list, tuple)) and type(x) in (list, tuple):
            waiting += x


def _is_own(function: types.FunctionType) -> bool:
    """Return True if a function belongs to no library, and is no hook that a pass of ours has set."""
    module = function.__module__ or ""
    return module.split(".")[0] not in LIBRARIES and not module.startswith("vitrail.capture")


def _functions_named(function: types.FunctionType) -> list[types.FunctionType]:
    """The plain functions that a function reads from its globals and its closure, those of libraries aside."""
    found: list[object] = [function.__globals__.get(name) for name in global_names(function.__code__)]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            found.append(cell.cell_contents)
    return [x for x in found if isinstance(x, types.FunctionType) and _is_own(x)]


def _names_in(code: types.CodeType) -> frozenset[str]:
    """Return the names of attributes and globals that a function and the functions inside it use."""
    inner = [_names_in(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return frozenset(code.co_names).union(*inner)
