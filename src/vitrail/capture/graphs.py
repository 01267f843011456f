"""A computation that is recorded once and replayed on new values in the same memory.

A CUDA graph holds kernels and the addresses they read, and nothing of what Python decided on the way. So that a replay
is right, every answer that Python took from the device is logged while the computation runs for the first time, given
again while the graph is recorded, and compared on the device in every replay: a replay tells whether Python would have
decided the same. Checks for NaN are such answers.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitrail.capture.torch_private import without_functions
from vitrail.errors import VitrailError

T = TypeVar("T")

READS = {
    Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.item, Tensor.tolist, torch.is_nonzero,
}  # fmt: skip
"""Functions by which Python takes values of a tensor."""
COMPARISONS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    **dict.fromkeys((torch.equal, Tensor.equal), lambda a, b: (a == b).all()),
    **dict.fromkeys((torch.allclose, Tensor.allclose), lambda *args, **kwargs: torch.isclose(*args, **kwargs).all()),
}
"""Functions that take a truth value of two tensors, and the same without waiting for it."""
CONSTANTS = {torch.tensor, torch.as_tensor, Tensor.new_tensor}
INDEXING = {Tensor.__getitem__, Tensor.__setitem__}
MOVES = {Tensor.to, Tensor.cuda, Tensor.type_as}
"""Functions that may copy a tensor from the host to a device."""


class GraphError(VitrailError, RuntimeError):
    """A computation cannot be recorded as a graph."""


@dataclass(frozen=True, eq=False)
class RecordedValue:
    """A value that Python took from the device, or put there, at one place of a computation.

    Args:
        name: of the function.
        value: the number or list that was taken, or the data a constant was made of.
        expected: the value on the device, or the constant itself.
    """

    name: str
    value: Any
    expected: Tensor


class HostAnswers(TorchFunctionMode):
    """Log what Python takes from a device, and give it again without asking the device.

    Args:
        device: the type of device that is meant; tensors elsewhere are left alone.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.log: list[RecordedValue] = []
        self.flags: list[Tensor] = []
        self.replaying, self.place = False, 0

    def __enter__(self) -> "HostAnswers":
        """Answer for the functions of this thread."""
        active.answers.append(self)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Answer no more."""
        super().__exit__(*error)
        active.answers.remove(self)

    def decided(self, flag: Tensor) -> bool:
        """A truth value that is asked for where torch functions are not intercepted."""
        with without_functions():
            return self._taken(Tensor.__bool__, flag, lambda: bool(flag))

    def again(self) -> "HostAnswers":
        """The same answers, to be given from the start."""
        self.replaying, self.place = True, 0
        self.flags = []
        return self

    def agree(self) -> Tensor:
        """Return a boolean tensor: whether every value that was taken is what it was when it was logged."""
        if self.place != len(self.log):
            raise GraphError(f"Python asked the device {len(self.log)} times at first and {self.place} times later.")
        return torch.stack(self.flags).all() if self.flags else torch.ones((), dtype=torch.bool, device=self.device)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:  # noqa: ANN401
        """Run one function, or answer for it."""
        kwargs = kwargs or {}
        if func in READS and args[0].device.type == self.device:
            return self._taken(func, args[0], lambda: func(*args, **kwargs))
        if func in COMPARISONS and args[0].device.type == self.device:
            return self._taken(func, COMPARISONS[func](*args, **kwargs), lambda: func(*args, **kwargs))
        if func in CONSTANTS:
            return self._made(func, args, kwargs)
        if func in MOVES and args[0].device.type != self.device == _destination(func, args, kwargs):
            return self._moved(func, args, kwargs)
        if func in INDEXING and args[0].device.type == self.device:
            args = (args[0], self._index(args[0], args[1]), *(_on_device(x, args[0]) for x in args[2:]))
        return func(*args, **kwargs)

    def _taken(self, func: Callable[..., Any], x: Tensor, ask: Callable[[], Any]) -> Any:  # noqa: ANN401
        if not self.replaying:
            value = ask()
            self.log.append(RecordedValue(func.__name__, value, x.detach().clone()))
            return value
        answer = self._next(func.__name__)
        if answer.expected.shape != x.shape:
            raise GraphError(f"{func.__name__} was asked of {tuple(answer.expected.shape)}, then of {tuple(x.shape)}.")
        self.flags.append((x.detach() == answer.expected).all())
        return answer.value

    def _made(self, func: Callable[..., Any], args: tuple, kwargs: dict) -> Tensor:
        """A tensor made of Python numbers: made once, and copied on the device after that."""
        data: Any = args[1] if func is Tensor.new_tensor else args[0] if args else kwargs["data"]
        if isinstance(data, Tensor):
            return func(*args, **kwargs)
        data = data.tolist() if hasattr(data, "tolist") else data  # arrays of NumPy
        if not self.replaying:
            made = func(*args, **kwargs)
            if made.device.type == self.device:
                self.log.append(RecordedValue(func.__name__, data, made))
                return made.clone()
            return made
        target = kwargs.get("device", args[0].device if func is Tensor.new_tensor else "cpu")
        if torch.device("cpu" if target is None else target).type != self.device:
            return func(*args, **kwargs)
        answer = self._next(func.__name__)
        if answer.value != data:
            raise GraphError(f"{func.__name__} was given {answer.value} at first and {data} later.")
        return answer.expected.clone()

    def _moved(self, func: Callable[..., Any], args: tuple, kwargs: dict) -> Tensor:
        """A tensor of the host on the device: copied there once, and on the device after that."""
        source: Tensor = args[0].detach()
        if not self.replaying:
            made = func(*args, **kwargs)
            self.log.append(RecordedValue(func.__name__, source.clone(), made.detach()))
            return made.clone()
        answer = self._next(func.__name__)
        with without_functions():
            same = answer.value.dtype is source.dtype and torch.equal(answer.value, source)
        if not same:
            raise GraphError("a tensor that is sent to the device holds other numbers than before.")
        return answer.expected.clone()

    def _index(self, x: Tensor, index: Any) -> Any:  # noqa: ANN401
        """An index whose lists of numbers, and tensors of the host, are tensors on the device."""
        if isinstance(index, tuple):
            return tuple(self._index(x, one) for one in index)
        if isinstance(index, Tensor) and index.device.type != self.device:
            return self._moved(Tensor.to, (index, x.device), {})
        if isinstance(index, list) and index and all(type(one) is int for one in index):
            return self._made(torch.tensor, (index,), {"device": x.device})
        return index

    def _next(self, name: str) -> RecordedValue:
        if self.place == len(self.log) or self.log[self.place].name != name:
            expected = self.log[self.place].name if self.place < len(self.log) else "nothing more"
            raise GraphError(f"Python asked for {name} where it had asked for {expected} before.")
        self.place += 1
        return self.log[self.place - 1]


def _destination(func: Callable[..., Any], args: tuple, kwargs: dict) -> str | None:
    """The type of device that a function moves a tensor to; None where it stays."""
    if func is Tensor.cuda:
        return "cuda"
    for given in (*args[1:], *kwargs.values()):
        if isinstance(given, Tensor):
            return given.device.type
        if isinstance(given, (torch.device, str)):
            return torch.device(given).type
    return None


def _on_device(value: Any, like: Tensor) -> Any:  # noqa: ANN401
    """A number that is written into a tensor, made on its device; torch would copy it from the host."""
    return like.new_full((), value) if isinstance(value, (bool, int, float)) else value


class _Active(threading.local):
    """The answers of a thread that are logged or given, the innermost last: what it allocates now belongs to them."""

    def __init__(self) -> None:
        self.answers: list[HostAnswers] = []


active = _Active()


def decided(flag: Tensor) -> bool:
    """The truth value of a tensor, for code that may be recorded and runs with interception switched off."""
    return active.answers[-1].decided(flag) if active.answers else bool(flag)


@dataclass(frozen=True, eq=False)
class Replay(Generic[T]):
    """A recorded computation.

    Args:
        run: computes again on the values that are in memory now, and tells whether Python's answers still hold.
        kept: all that must live as long as the recording.
    """

    run: Callable[[], tuple[T, Tensor]]
    kept: tuple[object, ...]


class _Unnoticed:
    """Let the code of a model that asks this thread whether a graph is recorded go on as it always does.

    Libraries build masks of ones while a graph is recorded, because they cannot look at values then. Here they can: the
    answers are known. With a mask, attention would run by another kernel, several times slower, and round otherwise.
    Torch's own question is replaced while there are threads that are told so.
    """

    def __init__(self) -> None:
        self.lock, self.threads = threading.Lock(), set[int]()
        self.asked: Callable[[], bool] | None = None

    def __enter__(self) -> None:
        """Tell this thread from now on that no graph is recorded."""
        with self.lock:
            self.threads.add(threading.get_ident())
            if self.asked is None:
                self.asked = asked = torch.cuda.is_current_stream_capturing
                torch.cuda.is_current_stream_capturing = lambda: threading.get_ident() not in self.threads and asked()

    def __exit__(self, *error: object) -> None:
        """Tell it the truth again; the last thread puts torch's own question back."""
        with self.lock:
            self.threads.discard(threading.get_ident())
            if not self.threads and self.asked is not None:
                torch.cuda.is_current_stream_capturing, self.asked = self.asked, None


_unnoticed = _Unnoticed()
WARM_UPS = 3


def cuda_graph(compute: Callable[[], T], device: str) -> Replay[T]:
    """A recording as a CUDA graph. What it computes lies at the same addresses after every replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # kernels are compiled and chosen before anything is recorded
        for _ in range(WARM_UPS - 1):
            compute()
        answers = HostAnswers(device)
        with answers:
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        # Only this thread is kept from calls that a recording does not allow; others go on.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"), answers.again(), _unnoticed:
            found = compute()
            agrees = answers.agree()
    except (RuntimeError, GraphError) as error:
        raise GraphError(str(error).splitlines()[0][:300]) from error

    def run() -> tuple[T, Tensor]:
        graph.replay()
        return found, agrees

    return Replay(run, (graph, answers, found, agrees))
