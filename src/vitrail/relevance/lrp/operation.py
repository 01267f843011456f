"""One operation of a model, as a rule sees it: its operands, and the backward function that a rule gives it.

`KnownTensors` is what a pass by rules knows of its tensors: which of them depend on what is explained, and how.
"""

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from vitrail.capture.graph_nodes import node_of, reached
from vitrail.capture.recording.hooks import Capture
from vitrail.capture.seams.call import tensors_in
from vitrail.errors import RuleError

Pullback = Callable[..., tuple[Tensor | None, ...]]
"""Takes the relevance of an operation's result and the tensors it read; gives the relevance of each."""


@dataclass
class Flow:
    """The kind of quantity that the next backward pass of a shared forward pass computes.

    `relevance` follows the rules, `gradient` the chain rule, and `block` the chain rule inside each block alone: the
    gradient stops where a block begins and where it has reached the result of attention.
    """

    kind: str = "relevance"


@dataclass(frozen=True)
class Operation:
    """A torch function, or a whole module, with the arguments it was called with.

    Args:
        name: what kind of operation it is, a key of the rule set.
        where: the module that runs it, for messages.
        block: the index of the block that runs it, None outside of the blocks.
        active: the tensors among the arguments that depend on what is explained; of a residual sum, the stream first.
        on_map: takes the relevance of some rows of an attention map, and which they are, in the backward pass.
        readers: how many linear layers read the same input, once the pass is over.
        masks: whether the model adds a mask to its attention scores, be it of zeros.
        gate: of a product of activations, the factor that came out of an activation.
        note: keeps something for whoever made the pass (`Capture.notes`).
        same: takes a tensor and the one that stands for it from now on.
        before: whether no block has run yet.
        batch_axis: the axis of the samples.
        flow: what each backward pass computes, where several are made of one forward pass; None for relevance alone.
        source: the tensor that all active operands are functions of, entry by entry; None where there is none.
        tokens_first: whether it runs inside of torch's function for attention with projections, which puts tokens
            before samples.
    """

    name: str
    function: Callable[..., Any]
    args: tuple
    kwargs: dict
    where: str
    block: int | None
    active: tuple[Tensor, ...]
    on_map: Callable[[Tensor, slice], None]
    readers: Callable[[], int] = lambda: 1
    masks: bool = False
    gate: Tensor | None = None
    note: Callable[[Any], None] = lambda note: None
    same: Callable[[Tensor, Tensor], None] = lambda old, new: None
    before: bool = False
    batch_axis: int = 0
    flow: Flow | None = None
    source: Tensor | None = None
    tokens_first: bool = False

    def run(self) -> Any:  # noqa: ANN401
        """Run the operation as the model does, and return its output."""
        return self.function(*self.args, **self.kwargs)

    def value(self) -> Any:  # noqa: ANN401
        """Run the operation without a graph, since a rule takes its place, and return its output."""
        with torch.no_grad():
            return self.run()

    def again(self, operands: Mapping[int, Tensor]) -> Any:  # noqa: ANN401
        """Run the operation with other operands, each keyed by the id of the one it replaces, and return its output."""
        args, kwargs = replaced((self.args, self.kwargs), operands)
        return self.function(*args, **kwargs)

    def overridden(self, pullback: Pullback, *inputs: Tensor) -> Tensor:
        """The model's own value, with relevance going back to these inputs by this rule."""
        return self.passing(self.run(), pullback, *inputs)

    def passing(self, out: Tensor, pullback: Pullback, *inputs: Tensor) -> Tensor:
        """Return the model's output; relevance goes back to these inputs by this rule, gradients as they are."""
        if self.flow is None:
            return overridden(out, pullback, *inputs)
        return _Overridden.apply(out, self.flow, pullback, *inputs)  # pyright: ignore[reportReturnType]

    def shared(self, x: Tensor, share: float, *, operand: bool = False) -> Tensor:
        """A tensor that receives this share of its relevance.

        Args:
            operand: whether it is read by attention, where the gradient of one block alone stops.
        """
        return _Shared.apply(x, share, self.flow, operand)  # pyright: ignore[reportReturnType]

    def constant(self, out: Tensor) -> Tensor:
        """A value that receives no relevance."""
        return out.detach() if self.flow is None else self.shared(out, 0.0)

    def stand_in(self, x: Tensor, pullback: Pullback) -> Tensor:
        """An operand's stand-in, which passes relevance on to it by this rule."""
        new = overridden(x, pullback, x)
        self.same(x, new)
        return new


def replaced(given: Any, operands: Mapping[int, Tensor]) -> Any:  # noqa: ANN401
    """Arguments, however they are nested, with some tensors replaced."""
    if isinstance(given, Tensor):
        return operands.get(id(given), given)
    if isinstance(given, dict):
        return {name: replaced(x, operands) for name, x in given.items()}
    if type(given) in (tuple, list):
        return type(given)(replaced(x, operands) for x in given)
    return given


Rule = Callable[[Operation], Any]


class _Overridden(torch.autograd.Function):
    """A value that was computed already: relevance takes the rule, and gradients the value's own graph."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, flow: Flow | None, pullback: Pullback, *inputs: Tensor) -> Tensor:  # noqa: ANN401
        ctx.flow, ctx.pullback = flow, pullback
        ctx.set_materialize_grads(flow is None)
        ctx.save_for_backward(*inputs)
        return value

    @staticmethod
    def backward(ctx: Any, given: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.flow is not None and (given is None or ctx.flow.kind != "relevance"):
            return given, None, None, *[None] * len(ctx.saved_tensors)
        return None, None, None, *ctx.pullback(given, *ctx.saved_tensors)


class _Refused(torch.autograd.Function):
    """A value through which nothing passes back: what arrives is an error."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, reason: str) -> Tensor:  # noqa: ANN401
        ctx.reason = reason
        ctx.set_materialize_grads(False)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, given: Tensor | None) -> tuple[Tensor | None, None]:  # noqa: ANN401  # pyright: ignore[reportIncompatibleMethodOverride]
        if given is not None:
            raise RuleError(ctx.reason)
        return None, None


def refused(out: Any, reason: str) -> Any:  # noqa: ANN401
    """Return the result of an operation without a rule; relevance that arrives at it is an error."""
    if isinstance(out, Tensor):
        return _Refused.apply(out, reason) if out.requires_grad else out
    if type(out) in (tuple, list):
        return type(out)(refused(x, reason) for x in out)
    raise RuleError(reason)


class _Shared(torch.autograd.Function):
    """A tensor that receives a share of its relevance and all of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float, flow: Flow | None, operand: bool) -> Tensor:  # noqa: ANN401, FBT001
        ctx.shares = {"relevance": share, "gradient": 1.0, "block": 0.0 if operand else 1.0}
        ctx.flow = flow
        ctx.set_materialize_grads(False)
        return x.clone() if operand else x  # a block may write into what enters it

    @staticmethod
    def backward(ctx: Any, given: Tensor | None) -> tuple[Tensor | None, None, None, None]:  # noqa: ANN401  # pyright: ignore[reportIncompatibleMethodOverride]
        share = ctx.shares["relevance" if ctx.flow is None else ctx.flow.kind]
        if given is None or share == 0:
            return None, None, None, None
        return given if share == 1 else share * given, None, None, None


def at_block_entry(x: Tensor, flow: Flow) -> Tensor:
    """The stream that enters a block, cut off from the blocks below it in a backward pass of single blocks."""
    return _Shared.apply(x, 1.0, flow, True)  # noqa: FBT003  # pyright: ignore[reportReturnType]


def overridden(value: Tensor, pullback: Pullback, *inputs: Tensor) -> Tensor:
    """The value, with relevance going back to the inputs by this rule."""
    return _Overridden.apply(value.detach(), None, pullback, *inputs)  # pyright: ignore[reportReturnType]


def is_overridden(x: object) -> bool:
    """Return True if a tensor is the result of a rule, which torch does not allow to be written in place."""
    made = x.grad_fn if isinstance(x, Tensor) else None
    return made is not None and made.name() == "_OverriddenBackward"


def gradient(operation: Operation) -> Any:  # noqa: ANN401
    """No rule but the chain rule."""
    return operation.run()


PARAMETERS = {
    "linear": ("input", "weight", "bias"),
    "addmm": ("input", "mat1", "mat2"),
    "linear_product": ("input", "other"),
    "convolution": ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
}
"""By kind of operation, the names of its arguments in torch's order."""


def arguments(kind: str, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operation by name, without those that were left out."""
    if len(args) > len(PARAMETERS[kind]):  # as in old forms of addmm, where a factor stands before each operand
        raise RuleError(f"{kind} was called with {len(args)} positional arguments; rules know {PARAMETERS[kind]}.")
    return dict(zip(PARAMETERS[kind], args, strict=False)) | kwargs


def _parts(operation: Operation, what: str, *, of: str = "input") -> tuple[dict[str, Any], Tensor]:
    """The arguments of an operation, and the one that is explained; the rules take all others for constants."""
    given = arguments(operation.name, operation.args, operation.kwargs)
    if any(x is not given[of] for x in operation.active):
        raise RuleError(
            f"{what} in the module {operation.where!r} has weights or biases that are computed from the input, and the "
            "rules take them for constants. Write it as products and sums of activations, which have their own rules."
        )
    return given, given[of]


def _detached(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach()


def linear_parts(operation: Operation) -> tuple[Tensor, Tensor, Tensor | None]:
    """The input, the weight `[out, in]` and the bias of a linear layer, the latter two without their graph."""
    if operation.name == "addmm":
        given, x = _parts(operation, "a linear layer", of="mat1")
        weight, bias = given["mat2"].detach().T, given["input"].detach()
        alpha, beta = given.get("alpha", 1), given.get("beta", 1)
        return x, weight if alpha == 1 else alpha * weight, bias if beta == 1 else beta * bias
    given, x = _parts(operation, "a linear layer")
    if operation.name == "linear":
        return x, given["weight"].detach(), _detached(given.get("bias"))
    if given["other"].ndim != 2:
        shape = tuple(given["other"].shape)
        raise RuleError(f"a product with weights of shape {shape} is no linear layer a rule knows.")
    return x, given["other"].detach().T, None


def convolution_parts(operation: Operation) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The input, the weight without its graph, and how the filters move."""
    given, x = _parts(operation, "a convolution")
    moves = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    moves |= {name: given[name] for name in moves.keys() & given.keys()}
    if x.shape[1] != 3 or isinstance(moves["padding"], str):
        raise RuleError(
            f"a convolution of {x.shape[1]} channels in {operation.where!r}: rules for pixels know the patch embedding "
            "of a three-channel picture only."
        )
    return x, given["weight"].detach(), moves


def group_norm_parts(operation: Operation) -> tuple[Tensor, int, Tensor | None, float]:
    """The input, the number of groups of channels, the weight without its graph, and epsilon."""
    given, x = _parts(operation, "a norm")
    return x, given["num_groups"], _detached(given.get("weight")), given.get("eps", 1e-5)


def read_norm(kind: str, args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor | None, float, list[int]]:
    """The input, the weight, epsilon and the axes of a layer norm or an RMS norm."""
    given = arguments(kind, args, kwargs)
    x, eps = given["input"], given.get("eps")
    default = torch.finfo(x.dtype).eps if kind == "rms_norm" else 1e-5
    return x, given.get("weight"), default if eps is None else eps, list(range(-len(given["normalized_shape"]), 0))


def norm_parts(operation: Operation) -> tuple[Tensor, Tensor | None, float, list[int]]:
    """The input, the weight without its graph, epsilon and the axes of a norm."""
    _parts(operation, "a norm")
    x, weight, eps, axes = read_norm(operation.name, operation.args, operation.kwargs)
    return x, _detached(weight), eps, axes


RUNNING = ("forward", "_call_impl")
"""The functions that stand on the call stack while a module runs, whatever it calls its own."""
ENTRYWISE = frozenset({"activation", "scale", "shift", "sum", "gate"})
"""Operations that work entry by entry, where their operands have one shape."""


class Marks:
    """A number for each tensor that was marked, as long as it lives; asked about thousands of times in a pass."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def __setitem__(self, x: Tensor, value: int) -> None:
        self._marks[id(x)] = (weakref.ref(x), value)

    def __contains__(self, x: Tensor) -> bool:
        found = self._marks.get(id(x))
        return found is not None and found[0]() is x  # another tensor may have taken the place of one that is gone

    def get(self, x: Tensor, otherwise: int) -> int:
        """The number of a tensor, or this one."""
        return self._marks[id(x)][1] if x in self else otherwise


@dataclass(eq=False)
class KnownTensors:
    """Facts about the tensors of one pass, as long as they live. They are read thousands of times.

    Args:
        where: the name of the module that runs, for errors.
        lenient: whether tensors that no rule has seen are left to the gradient, not refused.
        depends: those that depend on what is explained, numbered in the order they were made in.
        constants: those that need gradients and do not depend on it.
        readers: how many linear layers read a tensor.
        activated: those that came out of an activation.
        sources: what a tensor is a function of, entry by entry.
        scaled: what was scaled to make a tensor.
        stale: those that were to be changed in place; they must not be read again.
        tokens_first: whether operations run inside of torch's function for attention with projections.
    """

    capture: Capture
    where: Callable[[], str]
    lenient: bool
    depends: Marks = field(default_factory=Marks, init=False)
    constants: Marks = field(default_factory=Marks, init=False)
    readers: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary, init=False)
    activated: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary, init=False)
    sources: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary, init=False)
    scaled: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary, init=False)
    stale: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary, init=False)
    count: int = 0
    tokens_first: bool = False

    def mark(self, out: Any) -> Any:  # noqa: ANN401
        """The result of an operation, known to depend on what is explained."""
        for x in tensors_in(out):
            if x.requires_grad:  # a rule may have made it a constant
                self.depends[x] = self.count
                self.count += 1
        return out

    def active_among(self, *given: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
        """The tensors among arguments that depend on what is explained."""
        found = list(tensors_in(*given))
        if self.stale and any(x in self.stale or x._base in self.stale for x in found):
            raise RuleError(
                f"a tensor was changed in place and then read again in the module {self.where()!r}. No rule can follow "
                "that: write x = x + y instead of x.add_(y) there."
            )
        return tuple(x for x in found if self._depends(x))

    def is_root(self, x: Tensor) -> bool:
        """Return True if a tensor is what is explained."""
        return any(x is root for root in self.capture.roots)

    def _depends(self, x: Tensor) -> bool:
        """Return True if a tensor depends on what is explained, or if it came from nowhere and may depend on it."""
        if x in self.depends or self.is_root(x):
            return True
        if not self.capture.roots or not x.requires_grad or x.is_leaf or x in self.constants:
            return False
        roots = {node_of(root) for root in self.capture.roots}
        if None not in roots and not reached([node_of(x)], roots):  # pyright: ignore[reportArgumentType]
            self.constant(x)  # of weights alone, such as biases of attention that were kept in an earlier pass
            return False
        if not self.lenient:
            raise RuleError(
                f"a tensor in the module {self.where()!r} was made where no rule can see it, by an autograd function "
                "of its own or by compiled code. Write that part in torch functions, or use conservative_lrp, which "
                "leaves it to the gradient."
            )
        return True

    def constant(self, out: Any) -> Any:  # noqa: ANN401
        """The result of a function that reads nothing that is explained."""
        for x in tensors_in(out):
            if x.requires_grad and not x.is_leaf:  # no other is ever taken for a tensor that depends on anything
                self.constants[x] = 1
        return out

    def outdate(self, x: Tensor) -> None:
        """A tensor was to be changed in place, and with it what it is a view of: neither may be read again."""
        self.stale[x] = True
        if x._base is not None:
            self.stale[x._base] = True

    def source(self, active: Sequence[Tensor]) -> Tensor | None:
        """The tensor that all of these are functions of, entry by entry; None where there is no such tensor."""
        found: list[Tensor] = [self.sources.get(x, x) for x in active]  # pyright: ignore[reportAssignmentType]
        first = found[0]
        same = all(x is first for x in found) and all(x.shape == first.shape for x in active)
        return first if same else None

    def residual(self, active: Sequence[Tensor]) -> tuple[str, tuple[Tensor, ...]]:
        """Tell a skip connection from another sum; the older summand first, since the stream is older than its reader.

        Of a skip connection one summand, scaled or not, is what the other was computed from.
        """
        summands = tuple(sorted(active, key=lambda x: self.depends.get(x, -1)))  # what is explained before all else
        one, other = summands
        pairs = ((one, other), (other, one))
        skips = any(reached([node_of(b)], {node_of(self.scaled.get(a, a))}) for a, b in pairs)  # pyright: ignore[reportArgumentType]
        return "residual" if skips else "sum", summands

    def operation(
        self,
        kind: str,
        function: Callable[..., Any],
        args: tuple,
        kwargs: dict,
        active: tuple[Tensor, ...],
        flow: Flow | None,
    ) -> Operation:
        """An operation as its rule sees it; a linear layer counts among those that read its input."""
        capture, block = self.capture, self.capture.block
        readers = self.readers.get(active[0]) or [0]
        readers[0] += kind == "linear"
        self.readers[active[0]] = readers
        return Operation(
            kind, function, args, kwargs, self.where(), block, active,
            on_map=lambda relevance, rows: capture.on_map(block, relevance, rows),
            readers=lambda: readers[0],
            masks=capture.ids is not None,
            note=capture.notes.append,
            same=capture.same,
            before=block is None and not any(captured.states for captured in capture.blocks),
            gate=next((x for x in active if x in self.activated), None),
            batch_axis=0 if block is None or capture.body.blocks[block].batch_first else 1,
            flow=flow,
            source=self.source(active),
            tokens_first=self.tokens_first,
        )  # fmt: skip

    def remember(self, kind: str, operation: Operation, out: Any) -> None:  # noqa: ANN401
        """Keep what later operations need to know of this one."""
        if kind == "activation":
            self.activated[out] = True
        if kind == "scale":
            self.scaled[out] = operation.active[0]
        if kind == "write":  # the tensor that was written into holds what is explained from now on
            changed = operation.args[0]
            self.mark([changed, changed._base])
        if kind in ENTRYWISE and isinstance(out, Tensor) and operation.source is not None:
            self.sources[out] = operation.source


def running_module(names: Mapping[int, str]) -> str:
    """Return the name of the module that runs, by the call stack: hooks that keep it would cost more than the rules."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name in RUNNING and id(module := frame.f_locals.get("self")) in names:
            return names[id(module)]
        frame = frame.f_back
    return ""
