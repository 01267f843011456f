"""Tensors of a pass by where they are shown: what modules were given and gave, and sums of two tensors.

A tensor that was found to be of use in one pass is read in another one by hooks on a few modules. Where no module shows
it, all functions of the model are watched for the sum that it is an operand of.
"""

from collections import Counter
from collections.abc import Collection, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from vitrail.capture.graph_nodes import Node, node_of
from vitrail.capture.seams.call import tensors_in
from vitrail.capture.torch_private import writes_to

ADDS = frozenset({"add", "__add__", "__radd__"})
IN_PLACE = frozenset({"add_", "__iadd__"})
"""Functions that add two tensors, by their names; those of the second kind write the sum into the first."""
SUMS = -1
"""Stands in place of a module for the sums of a pass."""


@dataclass(frozen=True, eq=False)
class Sum:
    """One sum of two tensors of one shape."""

    operands: tuple[Tensor, Tensor]
    nodes: tuple[Node | None, Node | None]  # where the two stand in the graph
    result: Tensor
    after: int  # how many attention calls came before
    versions: tuple[int, int]  # of the two operands, which the model may write into later

    def kept(self, side: int) -> bool:
        """Return True if the model has not written into an operand since."""
        return writes_to(self.operands[side]) == self.versions[side]


class WatchSums(TorchFunctionMode):
    """Let every sum run as the model wrote it, and keep those of two tensors of one shape."""

    def __init__(self, calls: Sized) -> None:
        super().__init__()
        self.calls = calls  # the attention calls so far
        self.sums: list[Sum] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:  # noqa: ANN401
        """Run the function, and keep what it added."""
        name = getattr(func, "__name__", "")
        if kwargs or name not in ADDS | IN_PLACE or not _alike(args):
            return func(*args, **(kwargs or {}))
        nodes = (node_of(args[0]), node_of(args[1]))
        first = args[0].detach().clone() if name in IN_PLACE else args[0]
        out = func(*args)
        versions = (writes_to(first), writes_to(args[1]))
        self.sums.append(Sum((first, args[1]), nodes, out, len(self.calls), versions))
        return out


def _alike(args: tuple) -> bool:
    """Return True if the arguments are two floating-point tensors of one shape with an axis of channels."""
    if len(args) != 2 or not all(isinstance(x, Tensor) and x.is_floating_point() for x in args):
        return False
    return args[0].shape == args[1].shape and args[0].ndim >= 2


class Tap(NamedTuple):
    """The place in a pass that shows a tensor.

    Args:
        module: the number of a module; `SUMS` where no module shows it.
        turn: how often that module had begun before, or ended; the number of the sum.
        place: the number among the tensors of real numbers that it is given, or of the operand; None for the first
            tensor that the module gives.
    """

    module: int
    turn: int
    place: int | None


@dataclass(eq=False)
class Tapped:
    """The tensors that a pass shows at some taps, each with the version that it had then.

    Args:
        modules: those that taps number.
        wanted: the taps.
    """

    modules: Sequence[nn.Module]
    wanted: Collection[Tap]
    shown: dict[Tap, tuple[Tensor, int]] = field(default_factory=dict)
    turns: Counter[tuple[int, str]] = field(default_factory=Counter)

    def hooks(self) -> list[RemovableHandle]:
        """Set the hooks that keep the tensors while a model runs."""
        begin = {tap.module for tap in self.wanted if tap.place is not None} - {SUMS}
        end = {tap.module for tap in self.wanted if tap.place is None}
        entered = [(self.modules[number], partial(self._enter, number)) for number in begin]
        left = [(self.modules[number], partial(self._leave, number)) for number in end]
        return [
            *(module.register_forward_pre_hook(hook, with_kwargs=True) for module, hook in entered),
            *(module.register_forward_hook(hook) for module, hook in left),
        ]

    def _enter(self, number: int, module: nn.Module, args: tuple, kwargs: dict) -> None:
        turn = self._turn(number, "begins")
        for place, x in enumerate(x for x in tensors_in((args, kwargs)) if x.is_floating_point()):
            self._keep(Tap(number, turn, place), x, writes_to(x))

    def _leave(self, number: int, module: nn.Module, args: tuple, out: object) -> None:
        tap = Tap(number, self._turn(number, "ends"), None)
        for x in islice(tensors_in(out), 1):
            self._keep(tap, x, writes_to(x))

    def _turn(self, number: int, what: str) -> int:
        """Count how often a module began, or ended."""
        self.turns[number, what] += 1
        return self.turns[number, what] - 1

    def _keep(self, tap: Tap, x: Tensor, version: int) -> None:
        """Keep a tensor that is wanted."""
        if tap in self.wanted:
            self.shown[tap] = x, version

    def add_sums(self, sums: Sequence[Sum]) -> None:
        """Keep the operands of sums."""
        for turn, one in enumerate(sums):
            for place, (x, version) in enumerate(zip(one.operands, one.versions, strict=True)):
                self._keep(Tap(SUMS, turn, place), x, version)

    def read(self, taps: Sequence[Tap | None]) -> list[Tensor] | None:
        """Return the tensors at some places; None if one was not shown, or has been written into since."""
        found = [None if tap is None else self.shown.get(tap) for tap in taps]
        kept = [one[0] for one in found if one is not None and writes_to(one[0]) == one[1]]
        return kept if len(kept) == len(found) else None
