"""One pass that is only watched: every execution of a module, and every attention call between them.

What attention gives is cut from the graph in this pass. What is left of it are paths within one token, so that the
graph tells which inputs of a module the queries of a call come from, and which its keys.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.outputs import run_model
from vitrail.capture.refusals import check_plain_call, why_no_gradient
from vitrail.capture.seams import AttentionCall, attention_calls
from vitrail.capture.shadow import autograd, hooks
from vitrail.capture.torch_private import current_transform
from vitrail.models.inputs import Inputs

SAMPLES = 2
"""How many samples are looked at."""
Node = object
"""A place in autograd's graph."""


@dataclass(eq=False)
class Execution:
    """One time that a module ran.

    Args:
        turn: how often the module had run before in this pass.
        begins: when it began; executions and attention calls are counted together.
        given: the floating-point tensors it was called with, in order.
        nodes: where these stand in the graph; None for those that have no gradient.
        first: the first tensor it was called with, of any dtype.
        plain: whether what it returned is a tensor, or begins with one.
    """

    module: nn.Module
    name: str
    turn: int
    begins: int
    given: list[Tensor]
    nodes: list[Node | None]
    first: Tensor | None
    ends: int = 0
    gave: Tensor | None = None  # the first tensor of what it returned
    gave_node: Node | None = None
    plain: bool = False

    def holds(self, other: "Execution") -> bool:
        """Whether another execution is inside this one."""
        return self.begins < other.begins and other.ends < self.ends

    @property
    def keeps_shape(self) -> bool:
        """Whether it gives a tensor of the shape of the first that it was given."""
        return self.plain and self.gave is not None and self.first is not None and self.first.shape == self.gave.shape

    @property
    def carries(self) -> bool:
        """Whether what it gives depends on the first tensor it was given other than by way of attention."""
        entering = self.nodes[0] if self.nodes and self.given[0] is self.first else None
        return self.plain and entering is not None and bool(reached([self.gave_node], {entering}))


@dataclass(eq=False)
class SeenCall:
    """An attention call, and the executions it was made in, outermost first."""

    call: AttentionCall
    at: int
    stack: tuple[Execution, ...]
    no_graph: str = ""  # why it has no graph, where the model switches autograd off around it


@dataclass
class Executions:
    """Everything that ran in one pass, in the order in which it began."""

    every: list[Execution] = field(default_factory=list)
    calls: list[SeenCall] = field(default_factory=list)
    answer: Any = None
    batch: int = 1
    stack: list[Execution] = field(default_factory=list)
    clock: int = 0
    times: dict[int, int] = field(default_factory=dict)

    def tick(self) -> int:
        """The next number."""
        self.clock += 1
        return self.clock

    def inside(self, outer: Execution) -> list[Execution]:
        """The executions inside another one."""
        return [x for x in self.every if outer.holds(x)]


def executions(model: nn.Module, inputs: Inputs) -> Executions:
    """Run a shadow once on at most two samples, and keep every execution and every attention call."""
    whole = inputs.usable()
    if inputs.batch <= SAMPLES:
        return _executed(model, whole)
    try:
        return _executed(model, whole.take(torch.arange(SAMPLES)))
    except Exception:
        return _executed(model, whole)


def _executed(model: nn.Module, some: Inputs) -> Executions:
    seen = Executions(batch=some.batch)
    with autograd(gradients=True), torch.random.fork_rng(devices=[]):
        if some.shown.is_floating_point():
            some = some.showing(some.shown.detach().clone().requires_grad_())
        with _watching(model, seen):
            seen.answer = run_model(model, some)
    return seen


@contextmanager
def _watching(model: nn.Module, seen: Executions) -> Iterator[None]:
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(_enter(seen, name), with_kwargs=True))
        handles.append(module.register_forward_hook(_leave(seen), with_kwargs=True))

    def emit(call: AttentionCall) -> None:
        check_plain_call()
        why = "" if torch.is_grad_enabled() else why_no_gradient()
        seen.calls.append(SeenCall(call, seen.tick(), tuple(seen.stack), why))

    with hooks(handles), attention_calls(emit, safe=True, cut=lambda out, order: out.detach()):
        yield


def _enter(seen: Executions, name: str) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
        tensors = list(tensors_in((args, kwargs)))
        given = [x for x in tensors if x.is_floating_point()]
        turn = seen.times.get(id(module), 0)
        seen.times[id(module)] = turn + 1
        first = tensors[0] if tensors else None
        found = Execution(module, name, turn, seen.tick(), given, [node_of(x) for x in given], first)
        seen.every.append(found)
        seen.stack.append(found)

    return hook


def _leave(seen: Executions) -> Callable[..., Tensor | None]:
    def hook(module: nn.Module, args: tuple, kwargs: dict, out: Any) -> Tensor | None:  # noqa: ANN401
        found = seen.stack.pop()
        found.ends, found.gave = seen.tick(), next(tensors_in(out), None)
        found.plain = found.gave is (out[0] if isinstance(out, (tuple, list)) and out else out)
        if found.gave is None or not found.gave.is_floating_point() or current_transform() is not None:
            return None
        # Frozen weights on token ids have no gradient: let the graph begin here.
        if not found.gave.requires_grad and found.gave.is_leaf and (isinstance(module, nn.Embedding) or _own(module)):
            found.gave.requires_grad_()
            found.gave_node = node_of(found.gave)
            return found.gave.clone() if found.gave is out else None  # models may write into what a module gave
        found.gave_node = node_of(found.gave)
        return None

    return hook


def _own(module: nn.Module) -> bool:
    """Whether a module has weights of its own, and not only parts that have some."""
    return any(x is not None for x in module._parameters.values())


def tensors_in(given: Any) -> Iterator[Tensor]:  # noqa: ANN401
    """All tensors in arguments or results, however they are nested, in order."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, (tuple, list)):
        for x in given:
            yield from tensors_in(x)
    elif isinstance(given, dict):
        for x in given.values():
            yield from tensors_in(x)


def node_of(x: Tensor | None) -> Node | None:
    """Where a tensor stands in the graph; None where it has no gradient."""
    if x is None or not x.requires_grad:
        return None
    if x.grad_fn is not None:
        return x.grad_fn
    if torch.is_inference_mode_enabled():  # nothing that is made here is in a graph
        return None
    try:
        return torch.autograd.graph.get_gradient_edge(x).node
    except (AssertionError, RuntimeError):  # inside an autograd function of the model's own there is no graph
        return None


def from_data(x: Tensor | None) -> bool:
    """Whether a tensor depends on the input, and not on weights alone."""
    waiting, known = [node_of(x)], set()
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        variable = getattr(node, "variable", None)
        if node.name().startswith("EmbeddingBackward") or not isinstance(variable, (nn.Parameter, type(None))):
            return True
        waiting += [before for before, _ in node.next_functions]
    return False


def reached(start: list[Node | None], targets: set[Node]) -> set[Node]:
    """Those of the targets that a walk back through the graph meets; it does not go on behind a target."""
    found, waiting, known = set(), [node for node in start if node is not None], set()
    while waiting:
        node = waiting.pop()
        if node in known:
            continue
        known.add(node)
        if node in targets:
            found.add(node)
            continue
        waiting += [before for before, _ in node.next_functions if before is not None]  # pyright: ignore[reportAttributeAccessIssue]
    return found
