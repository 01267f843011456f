"""Refuse what a forward would write into memory that a shadow shares with the user's model.

A shadow shares parameters and large buffers. Small buffers are copied for each call. torch counts most writes, but it
does so after they happened, and it does not count writes through `.data` at all. So the passes over inputs of a new
form run below a mode that sees each operation before it runs. The passes of models whose own code uses `.data` or
`.numpy()` all do.
"""

import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.capture.references import LIBRARIES, global_names, methods
from vitrail.capture.torch_private import DispatchMode
from vitrail.errors import InputError
from vitrail.models.taking import every_module

UNSEEN = frozenset({"data", "numpy", "asarray", "__array__", "vector_to_parameters"})
"""Names in code that can write where torch does not count."""
PLAIN = (Tensor, nn.Parameter)


class SharedMemory:
    """The memory that a shadow shares with the user's model.

    Args:
        named: parameters and buffers, with their places in words.
    """

    def __init__(self, named: Sequence[tuple[str, Tensor]]) -> None:
        self.kept = [x for _, x in named if _is_plain(x)]
        self.places = {_memory(x): where for where, x in named if _is_plain(x)}
        self.parameters = {_memory(x) for x in self.kept if isinstance(x, nn.Parameter)}
        self.users = {id(x) for x in self.kept if isinstance(x, nn.Parameter) or x.requires_grad}

    def holds(self, x: object) -> bool:
        """Return True if a tensor lies in this memory."""
        return isinstance(x, PLAIN) and _is_plain(x) and _memory(x) in self.places

    def refusal(self, written: Tensor) -> InputError:
        """The error for a write into a tensor of this memory."""
        where = self.places[_memory(written)]
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


class _RefuseExchange(TorchFunctionMode):
    """Raise before a parameter is given other memory, and hand out arrays of shared memory for reading only."""

    def __init__(self, shared: SharedMemory) -> None:
        super().__init__()
        self.shared = shared
        self.lent: Tensor | None = None  # the last tensor of which an array was handed out

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if func == _SET_DATA and id(args[0]) in self.shared.users:
            raise self.shared.refusal(args[0])
        found = func(*args, **(kwargs or {}))
        if func in (Tensor.numpy, Tensor.__array__) and self.shared.holds(args[0]):
            found.flags.writeable = False
            self.lent = args[0]
        return found


_SET_DATA = Tensor.data.__set__  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def refusing(shared: SharedMemory, *, exchange: bool) -> Iterator[None]:
    """Refuse writes into shared memory within a block.

    Args:
        exchange: also refuse to exchange the memory of a parameter, and writes through arrays.
    """
    arrays = _RefuseExchange(shared)
    try:
        with arrays if exchange else nullcontext(), _RefuseWrites(shared):
            yield
    except (ValueError, TypeError) as error:
        if arrays.lent is None or "read-only" not in str(error):
            raise
        raise shared.refusal(arrays.lent) from error


def writes_unseen(root: nn.Module) -> bool:
    """Return True if code of the model uses an attribute of tensors through which a forward could write unseen.

    Searched are the forward of each class that belongs to no library, functions that modules hold, such as hooks, and
    whatever these name.
    """
    modules = every_module(root)
    if any(_class_uses_unseen(kind) for kind in {type(module) for module in modules}):
        return True
    seen = set[types.CodeType]()
    return any(_uses_unseen(function, {}, seen) for module in modules for function in _held(vars(module)))


def _class_uses_unseen(kind: type) -> bool:
    own = dict(reversed(list(methods(kind))))  # of a name that several bases have, the first counts
    return "forward" in own and _uses_unseen(own["forward"], own, set())


def _uses_unseen(start: types.FunctionType, own: Mapping[str, types.FunctionType], seen: set[types.CodeType]) -> bool:
    """Search a function, and those it reaches by the names of methods, by global names and by its closure."""
    waiting = [start]
    while waiting:
        function = waiting.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        names = _names_in(function.__code__)
        if names & UNSEEN:
            return True
        waiting += [own[name] for name in names if name in own]
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
