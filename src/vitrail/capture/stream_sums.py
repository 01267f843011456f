"""Sums of two tensors and norms in the pass that is measured: where the residual stream is added to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.capture.additions import is_norm
from vitrail.capture.executions import Node, node_of
from vitrail.capture.torch_private import writes_to

ADDS = frozenset({"add", "__add__", "__radd__"})
IN_PLACE = frozenset({"add_", "__iadd__"})
"""Functions that add two tensors, by their names; those of the second kind write the sum into the first."""
KEEPS_VALUES = (
    "View", "UnsafeView", "Reshape", "Transpose", "Permute", "Clone", "ToCopy", "Squeeze", "Unsqueeze", "Alias",
    "TBack", "Slice", "Select",
)  # fmt: skip
"""How the names of graph nodes begin that hand values on as they are."""


@dataclass(frozen=True, eq=False)
class Sum:
    """One sum of two tensors of one shape.

    Args:
        nodes: where the two stand in the graph.
        after: how many attention calls came before.
        versions: of the two operands, which the model may write into later.
    """

    operands: tuple[Tensor, Tensor]
    nodes: tuple[Node | None, Node | None]
    result: Tensor
    after: int
    versions: tuple[int, int]

    def kept(self, side: int) -> bool:
        """Whether the model has not written into an operand since."""
        return writes_to(self.operands[side]) == self.versions[side]


@dataclass(frozen=True, eq=False)
class Normed:
    """One time that a norm ran."""

    module: nn.Module
    given: Tensor
    gave: Tensor


@dataclass(eq=False)
class Sums:
    """All sums and norms of a pass, in the order in which they came."""

    found: list[Sum] = field(default_factory=list)
    norms: list[Normed] = field(default_factory=list)


class WatchSums(TorchFunctionMode):
    """Let every sum run as the model wrote it, and keep those of two tensors of one shape.

    Args:
        calls: how many attention calls have come.
    """

    def __init__(self, sums: Sums, calls: Callable[[], int]) -> None:
        super().__init__()
        self.sums, self.calls = sums, calls

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:  # noqa: ANN401
        """Run the function, and keep what it added."""
        name = getattr(func, "__name__", "")
        if kwargs or name not in ADDS | IN_PLACE or not _alike(args):
            return func(*args, **(kwargs or {}))
        nodes = (node_of(args[0]), node_of(args[1]))
        first = args[0].detach().clone() if name in IN_PLACE else args[0]
        out = func(*args)
        versions = (writes_to(first), writes_to(args[1]))
        self.sums.found.append(Sum((first, args[1]), nodes, out, self.calls(), versions))
        return out


def _alike(args: tuple) -> bool:
    """Whether the arguments are two floating-point tensors of one shape with an axis of channels."""
    if len(args) != 2 or not all(isinstance(x, Tensor) and x.is_floating_point() for x in args):
        return False
    return args[0].shape == args[1].shape and args[0].ndim >= 2


def watch_norms(sums: Sums) -> Callable[..., None]:
    """A hook that keeps what norms were given and gave."""

    def hook(module: nn.Module, args: tuple, out: object) -> None:
        if is_norm(module) and args and isinstance(args[0], Tensor) and isinstance(out, Tensor):
            sums.norms.append(Normed(module, args[0], out))

    return hook


def base_of(node: Node | None) -> Node | None:
    """The node whose values another one hands on as they are."""
    while node is not None and node.name().startswith(KEEPS_VALUES):  # pyright: ignore[reportAttributeAccessIssue]
        before = node.next_functions[0][0]  # pyright: ignore[reportAttributeAccessIssue]
        if before is None:
            break
        node = before
    return node
