"""The pass that structure is read off: every execution of a module, and the attention calls between them.

What attention gives is cut from the graph: the paths that are left lead from a token to what is made of this token.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vitrail.capture.checkpointed import without_recomputation
from vitrail.capture.graph_nodes import Node, node_of, reached, start_graph, state_of
from vitrail.capture.outputs import run_model
from vitrail.capture.refusals import (
    check_model,
    check_plain_call,
    no_graph,
    note_parts,
    note_unapplied,
    why_no_gradient,
)
from vitrail.capture.seams import AttentionCall, attention_calls
from vitrail.capture.seams.call import tensors_in
from vitrail.capture.shadow import autograd, hooks, in_precision, memory_of
from vitrail.capture.structure.cache import content_of
from vitrail.capture.structure.detached import KeepDetached
from vitrail.capture.structure.taps import Sum, WatchSums
from vitrail.capture.structure.token_codes import CheapProjections, EvenMaxima, State
from vitrail.capture.torch_private import current_transform, saving_hooks, without_functions, writes_to
from vitrail.errors import SeamError
from vitrail.models.inputs import Inputs
from vitrail.models.taking import every_module

T = TypeVar("T")
SAMPLES = 2
"""How many samples are looked at."""
RECENT = 24
"""How many of the last tensors before an attention call may link the queries of a new sequence with its keys."""


@dataclass(eq=False)
class Execution:
    """One time that a module ran."""

    module: nn.Module
    name: str
    turn: int  # how often the module had run before in this pass
    begins: int  # executions and attention calls are counted together
    given: list[Tensor]  # the floating-point tensors it was called with, in order
    nodes: list[Node | None]  # where these stand in the graph; None for those that have no gradient
    first: Tensor | None  # the first tensor it was called with, of any dtype
    number: int = 0  # of the module among all modules of the model
    stream: State | None = None  # the first tensor among its arguments, as it was then
    beside: list[Tensor] = field(default_factory=list)  # the other tensors of real numbers among its arguments
    versions: tuple[int, int] = (0, 0)  # how often the stream, and the first given, had been written to then
    ends: int = 0
    gave: Tensor | None = None  # the first tensor of what it returned
    left: State | None = None  # the same as it was then
    gave_version: int = 0
    plain: bool = False  # whether what it returned is a tensor, or begins with one

    @property
    def gave_node(self) -> Node | None:
        """The node of its output in the graph."""
        return None if self.left is None else self.left.node

    def holds(self, other: "Execution") -> bool:
        """Return True if another execution is inside this one."""
        return self.begins < other.begins and other.ends < self.ends

    @property
    def keeps_shape(self) -> bool:
        """Return True if the output has the shape of the first tensor that it was given."""
        return self.plain and self.gave is not None and self.first is not None and self.first.shape == self.gave.shape

    @property
    def carries(self) -> bool:
        """Return True if the output depends on the first input tensor other than by way of attention."""
        entering = self.nodes[0] if self.nodes and self.given[0] is self.first else None
        return self.plain and entering is not None and bool(reached([self.gave_node], {entering}))

    def writes_in(self) -> bool:
        """Return True if what it was given as the stream has been written to since."""
        return self.stream is not None and writes_to(self.stream.tensor) != self.versions[0]

    def writes_out(self) -> bool:
        """Return True if what it gave has been written to since."""
        return self.gave is not None and writes_to(self.gave) != self.gave_version

    @property
    def intact(self) -> bool:
        """Return True if the first real tensor that it was given has not been written to since."""
        return writes_to(self.given[0]) == self.versions[1]


@dataclass(eq=False)
class TracedCall:
    """An attention call, and the executions it was made in, outermost first."""

    call: AttentionCall
    output: Tensor | None = None  # what it gave, cut from the graph
    order: tuple[int, ...] = ()  # the axes of `output` in the order [..., q, channels]
    at: int = 0
    stack: tuple[Execution, ...] = ()
    no_graph: str = ""  # why it has no graph, where the model switches autograd off around it
    before: list[Tensor] = field(default_factory=list)  # the last real tensors that modules were given or gave
    uncut: Tensor | None = None  # what it gave, with its graph

    @property
    def module(self) -> int:
        """The number of the innermost module that ran."""
        return self.stack[-1].number if self.stack else 0

    @property
    def operands(self) -> list[Tensor]:
        """The tensors it reads."""
        call = self.call
        return [x for x in (call.query, call.key, call.value, call.softmax_input) if x is not None]


@dataclass(eq=False)
class TracedPass:
    """Everything that ran in one pass whose attention results are cut, in the order in which it began."""

    every: list[Execution] = field(default_factory=list)
    calls: list[TracedCall] = field(default_factory=list)
    answer: Any = None
    given: Inputs | None = None  # the samples that were looked at
    inputs: Inputs | None = None  # the same with leaves that gradients can be taken at
    embedded: list[tuple[Tensor, State]] = field(default_factory=list)  # token ids, and the vectors they became
    feature_maps: list[tuple[int, Tensor, bool]] = field(default_factory=list)
    """Tensors `[b, c, y, x]`, when they were made, and whether by a module with none inside."""
    stack: list[Execution] = field(default_factory=list)
    clock: int = 0
    times: dict[int, int] = field(default_factory=dict)
    saving: object = None  # how operations save tensors outside of checkpointed regions
    checkpointed: bool = False
    maxima: EvenMaxima = field(default_factory=EvenMaxima)
    detached: KeepDetached = field(default_factory=KeepDetached)
    projections: CheapProjections | None = None
    sums: list[Sum] = field(default_factory=list)  # what was added, where that is asked for
    by_chance: bool = False  # whether random numbers were drawn: another pass may order its tokens in another way

    @property
    def batch(self) -> int:
        """The number of samples that were looked at."""
        return 1 if self.given is None else self.given.batch

    def tick(self) -> int:
        """The next number."""
        self.clock += 1
        return self.clock

    def time(self) -> int | None:
        """The number of what ran last; None in a region that saves other tensors when it is computed again."""
        return self.clock if saving_hooks() == self.saving else None

    @property
    def cuts(self) -> set[Node]:
        """The nodes of the results of attention in the graph."""
        return {node for one in self.calls if (node := node_of(one.output)) is not None}

    @property
    def cells(self) -> list[Tensor]:
        """The feature maps of all modules that have a gradient."""
        return [x for _, x, _ in self.feature_maps if x.requires_grad]

    def cells_before(self, time: int) -> list[Tensor]:
        """Return the feature maps that modules with none inside made before this time."""
        return [x for when, x, alone in self.feature_maps if alone and when < time]

    def inside(self, outer: Execution) -> list[Execution]:
        """The executions inside another one."""
        return [x for x in self.every if outer.holds(x)]

    def runs_after(self, time: int) -> list[Execution]:
        """Return the executions after this time, of modules that are given real tensors."""
        return [x for x in self.every if x.begins > time and x.given]

    @property
    def runs(self) -> list[Execution]:
        """The executions after the first attention call."""
        return self.runs_after(self.calls[0].at) if self.calls else []

    @property
    def beginnings(self) -> list[Tensor | State]:
        """All that tokens may come from: the picture or the signal, or what tables made of the words of the text."""
        inputs = self.inputs
        if inputs is None:
            return []
        words = [] if inputs.ids is None else [x for asked, x in self.embedded if is_same(asked, inputs.ids)]
        return [inputs.shown, *words] if inputs.shown.requires_grad else [*words]


def is_same(asked: Tensor, ids: Tensor) -> bool:
    """Return True if a table is asked for these ids."""
    return asked is ids or (asked.shape == ids.shape and bool((asked == ids).all()))


class Enough(Exception):
    """A pass has come to the module that it was to come to."""


def trace(
    model: nn.Module, some: Inputs, *, until: nn.Module | None = None, learned: bool = False, sums: bool = False
) -> TracedPass:
    """Run a shadow once on these samples, and keep every execution and every attention call.

    Args:
        until: the module at whose beginning the pass ends.
        learned: let frozen parameters that may be tokens begin the graph, too.
        sums: keep what is added to the residual streams, too.
    """
    inputs, handles = rooted(some), []
    seen = TracedPass(given=some, inputs=inputs, saving=saving_hooks())
    seen.projections = CheapProjections(seen.time)

    def emit(call: AttentionCall) -> None:
        check_plain_call()
        note_parts(model, call)
        why = "" if torch.is_grad_enabled() else why_no_gradient()
        seen.calls.append(TracedCall(call, at=seen.tick(), stack=tuple(seen.stack), no_graph=why))

    def cut(out: Tensor, order: tuple[int, ...]) -> Tensor:
        one = seen.calls[-1]
        one.output, one.uncut, one.order = out.detach(), out, order
        if not torch.is_grad_enabled() or current_transform() is not None:
            return one.output
        return one.output.requires_grad_().clone()  # a copy, because models may write into what attention gave

    frozen = _graph_of_learned_tokens(model) if learned else nullcontext()
    with frozen, hooks(handles), autograd(gradients=True), suppress(Enough):
        numbers = {id(module): number for number, module in enumerate(every_module(model))}
        for name, module in model.named_modules():
            enter, leave = partial(_enter, seen, (name, numbers[id(module)]), until), partial(_leave, seen)
            handles.append(module.register_forward_pre_hook(partial(_unseen, enter), with_kwargs=True))
            handles.append(module.register_forward_hook(partial(_unseen, leave)))
        adding = WatchSums(seen.calls)
        seen.sums = adding.sums
        with (
            adding if sums else nullcontext(),
            seen.projections,
            seen.maxima,
            attention_calls(emit, safe=True, cut=cut) as follower,
            seen.detached,  # entered last
        ):
            seen.answer = run_model(model, _copied(inputs))
        note_unapplied(model, follower.waiting)
    seen.projections.clock = int  # not of this pass: the two would hold each other until they are collected
    return seen


def trace_few(model: nn.Module, inputs: Inputs) -> TracedPass:
    """Trace a shadow on at most two samples; kept for those who ask more of it in this call."""
    whole = inputs.usable()
    with torch.random.fork_rng(devices=[]):
        start = torch.get_rng_state()
        try:
            seen = trace(model, whole if inputs.batch <= SAMPLES else whole.take(torch.arange(SAMPLES)))
        except Exception:
            if inputs.batch <= SAMPLES:
                raise
            seen = trace(model, whole)
        seen.by_chance = not torch.equal(start, torch.get_rng_state())
    assert seen.given is not None
    memory_of(model).call[TRACE] = content_of(seen.given), seen
    return seen


TRACE = "trace"
"""Under this name a call remembers the pass by which it has found the blocks, with the content of its inputs."""


def take_trace(model: nn.Module, inputs: Inputs) -> TracedPass | None:
    """Return the trace over these very samples by which this call has found the blocks; None if there is none."""
    content, seen = memory_of(model).call.pop(TRACE, (None, None))
    return seen if seen is not None and content == content_of(inputs) else None


def _unseen(hook: Callable[..., T], *given: object) -> T:
    """Run a hook whose own questions to tensors no mode sees, which would take most of the time."""
    with without_functions():
        return hook(*given)


def rooted(inputs: Inputs) -> Inputs:
    """The inputs with every floating-point tensor made a leaf that gradients can be taken at."""
    return _with_each(inputs.usable(), lambda x: x.detach().clone().requires_grad_())


def _copied(inputs: Inputs) -> Inputs:
    """The inputs that a model may write into."""
    return _with_each(inputs, Tensor.clone)


def _with_each(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The inputs with every floating-point tensor but masks exchanged."""

    def changed(x: Any) -> Any:  # noqa: ANN401
        if isinstance(x, dict) and "last_hidden_state" in x:  # what an encoder gave
            return type(x)(**{name: changed(value) for name, value in x.items()})
        return change(x) if isinstance(x, Tensor) and x.is_floating_point() else x

    kwargs = {name: x if "mask" in name else changed(x) for name, x in inputs.kwargs.items()}
    return replace(inputs, args=tuple(map(changed, inputs.args)), kwargs=kwargs)


def _enter(
    seen: TracedPass, named: tuple[str, int], until: nn.Module | None, module: nn.Module, args: tuple, kwargs: dict
) -> None:
    tensors = list(tensors_in((args, kwargs)))
    given = [x for x in tensors if x.is_floating_point()]
    turn = seen.times.get(id(module), 0)
    seen.times[id(module)] = turn + 1
    first = tensors[0] if tensors else None
    name, number = named
    found = Execution(module, name, turn, seen.tick(), given, [node_of(x) for x in given], first, number)
    own = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    if own:
        found.stream = state_of(own[0])
        found.beside = [x for x in own[1:] if x is not own[0] and x.is_floating_point()]
        found.versions = writes_to(own[0]), writes_to(given[0]) if given else 0
    seen.checkpointed |= saving_hooks() != seen.saving
    seen.every.append(found)
    seen.stack.append(found)
    if module is until:
        raise Enough


def _leave(seen: TracedPass, module: nn.Module, args: tuple, out: Any) -> Tensor | None:  # noqa: ANN401
    found = seen.stack.pop()
    found.ends, found.gave = seen.tick(), next(tensors_in(out), None)
    found.plain = found.gave is (out[0] if isinstance(out, (tuple, list)) and out else out)
    if found.gave is None or not found.gave.is_floating_point() or current_transform() is not None:
        return None
    begins = not found.gave.requires_grad and start_graph(module, found.gave)
    found.left, found.gave_version = state_of(found.gave), writes_to(found.gave)
    if found.plain and found.gave.ndim == 4:
        seen.feature_maps.append((found.ends, found.gave, not module._modules and isinstance(out, Tensor)))
    if found.left.requires_grad and isinstance(module, nn.Embedding) and args and isinstance(args[0], Tensor):
        seen.embedded.append((args[0], found.left))
    return found.gave.clone() if begins and found.gave is out else None  # models may write into what a module gave


def _keep_before(seen: TracedPass) -> None:
    """Give every attention call the last tensors with a gradient that modules before it were given or gave."""
    shown: list[tuple[int, list[Tensor]]] = []
    for x in seen.every:
        arguments = [] if x.stream is None else [x.stream.tensor, *x.beside]
        shown.append((x.begins, arguments))
        if x.plain and x.left is not None and x.left.requires_grad:
            shown.append((x.ends, [x.left.tensor]))
    recent: list[Tensor] = []
    waiting = list(seen.calls)
    for time, tensors in sorted(shown, key=lambda one: one[0]):
        while waiting and waiting[0].at < time:
            waiting.pop(0).before = recent[-RECENT:]
        for x in tensors:
            floats = x.is_floating_point() and x.requires_grad and x.ndim >= 2
            if floats and not any(x is known for known in recent[-RECENT:]):
                recent.append(x)
    for one in waiting:
        one.before = recent[-RECENT:]


@contextmanager
def _graph_of_learned_tokens(model: nn.Module) -> Iterator[None]:
    """Let frozen parameters that may be tokens themselves have a graph: object queries, latents, pooling queries.

    The shadow reads aliases of them, which share their memory. Layers of torch hold weights, and no tokens.
    """
    own = [x for x in model.modules() if isinstance(x, nn.Embedding) or not type(x).__module__.startswith("torch.nn")]
    frozen = [
        (module._parameters, name, x)
        for module in own
        for name, x in module._parameters.items()
        if x is not None and not x.requires_grad and x.is_floating_point()
    ]
    try:
        for parameters, name, x in frozen:
            parameters[name] = x.detach().requires_grad_()  # pyright: ignore[reportArgumentType]
        yield
    finally:
        for parameters, name, x in frozen:
            parameters[name] = x


@contextmanager
def trace_streams(
    model: nn.Module, inputs: Inputs, measure: Callable[[TracedPass], T], *, sums: bool = False
) -> Iterator[T]:
    """Give what is measured of the streams in a trace of a shadow, with the graph of the trace alive.

    Args:
        sums: keep what is added to the residual streams, too.
    """
    check_model(model)
    half = any(p.dtype is torch.float16 for p in model.parameters())
    dtype = torch.float32 if half else None  # half precision has too few exponents for the codes
    frozen = any(not p.requires_grad for p in model.parameters())  # which may be tokens, and have no graph yet
    known = None if half or sums or frozen else take_trace(model, inputs)
    with autograd(gradients=True), torch.random.fork_rng(devices=[]):
        some = inputs if dtype is None else inputs.cast(dtype)
        start = torch.get_rng_state()
        again = [] if known is None or known.by_chance else [known]

        def run() -> T:
            torch.set_rng_state(start)  # the pass that is differentiated begins there, too
            if again:
                seen = again.pop()
            else:
                with in_precision(model, dtype):
                    seen = trace(model, some, learned=True, sums=sums)
                seen.by_chance = not torch.equal(start, torch.get_rng_state())
            _check_calls(model, seen)
            _keep_before(seen)
            found = measure(seen)
            seen.maxima.on = False  # what an answer reads is asked of this input
            return found

        yield without_recomputation(model, run)


def _check_calls(model: nn.Module, seen: TracedPass) -> None:
    """Raise if no attention call was seen, or one that has no graph."""
    for number, one in enumerate(seen.calls):
        if one.no_graph:
            raise no_graph(f"attention call {number + 1}", one.no_graph)
    if not seen.calls:
        raise SeamError(
            f"no attention call was seen in {type(model).__name__}: it has none, or computes it in a way that is not "
            "intercepted. Use a gradient method, such as integrated_gradients."
        )
