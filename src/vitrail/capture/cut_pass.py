"""The pass that streams are measured in: attention results are cut from the graph, tensors of modules are kept.

Sums of two tensors and norms are watched in it: where the residual stream is added to.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vitrail.capture.checkpointed import without_recomputation
from vitrail.capture.coded_gradients import EvenMaxima
from vitrail.capture.detached import KeepDetached
from vitrail.capture.executions import start_graph
from vitrail.capture.outputs import run_model
from vitrail.capture.refusals import check_model, check_plain_call, no_graph, note_parts, why_no_gradient
from vitrail.capture.seams import AttentionCall, attention_calls
from vitrail.capture.shadow import autograd, hooks, in_precision
from vitrail.capture.structure.taps import Sum, Trace, WatchSums
from vitrail.capture.unseen_mixing import ModuleRun, runs_after
from vitrail.errors import SeamError
from vitrail.models.inputs import Inputs
from vitrail.models.taking import every_module

T = TypeVar("T")
RECENT = 24
"""How many of the last tensors before an attention call may link the queries of a new sequence with its keys."""


@dataclass(eq=False)
class CutCall:
    """An attention call of the pass that is measured."""

    call: AttentionCall
    before: list[Tensor]  # the last floating-point tensors that modules were given or gave
    output: Tensor | None = None  # what it gave, cut from the graph
    order: tuple[int, ...] = ()  # the axes of `output` in the order [..., q, channels]
    module: int = 0  # the number of the innermost module that ran


@dataclass(eq=False)
class Seen:
    """What was kept of the pass that is measured."""

    calls: list[CutCall] = field(default_factory=list)
    recent: list[Tensor] = field(default_factory=list)
    embedded: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # token ids, and the vectors they became
    cells: list[Tensor] = field(default_factory=list)  # feature maps [b, c, y, x] before the first attention of a call
    inputs: Inputs | None = None  # with leaves for all floating-point tensors
    answer: Any = None
    sums: list[Sum] = field(default_factory=list)  # what was added, where that is asked for
    trace: Trace = field(default_factory=Trace)  # all that modules were given and gave, where that is asked for
    runs: list[ModuleRun] = field(default_factory=list)  # the modules that ran after the first attention call
    maxima: EvenMaxima = field(default_factory=EvenMaxima)
    detached: KeepDetached = field(default_factory=KeepDetached)
    running: list[int] = field(default_factory=list)  # the numbers of the modules that run, outermost first
    by_chance: bool = False  # whether random numbers were drawn: another pass may order its tokens in another way


@contextmanager
def cut_pass(model: nn.Module, inputs: Inputs, measure: Callable[[Seen], T], *, sums: bool = False) -> Iterator[T]:
    """What is measured in a pass of a shadow whose attention results are cut from the graph.

    Args:
        sums: keep what is added to the residual streams, too.
    """
    check_model(model)
    half = any(p.dtype is torch.float16 for p in model.parameters())
    dtype = torch.float32 if half else None  # half precision has too few exponents for the codes
    with autograd(gradients=True), torch.random.fork_rng(devices=[]):
        some = rooted(inputs if dtype is None else inputs.cast(dtype))
        start = torch.get_rng_state()

        def run() -> T:
            torch.set_rng_state(start)  # the pass that is differentiated begins there, too
            seen = _seen(model, some, dtype, sums=sums)
            found = measure(seen)
            seen.maxima.on = False  # what an answer reads is asked of this input
            return found

        yield without_recomputation(model, run)


def _seen(model: nn.Module, inputs: Inputs, dtype: torch.dtype | None, *, sums: bool) -> Seen:
    seen, start, handles = Seen(inputs=inputs), torch.get_rng_state(), []

    def emit(call: AttentionCall) -> None:
        check_plain_call()
        note_parts(model, call)
        if not torch.is_grad_enabled():
            raise no_graph(f"attention call {len(seen.calls) + 1}", why_no_gradient())
        seen.calls.append(CutCall(call, seen.recent[-RECENT:], module=seen.running[-1] if seen.running else 0))

    def cut(out: Tensor, order: tuple[int, ...]) -> Tensor:
        leaf = out.detach().requires_grad_()
        seen.calls[-1].output, seen.calls[-1].order = leaf, order
        return leaf.clone()  # a copy, because models may write into what attention gave

    with in_precision(model, dtype), _graph_of_learned_tokens(model), hooks(handles):
        for number, module in enumerate(every_module(model)):
            handles.append(module.register_forward_pre_hook(partial(_enter, seen, number), with_kwargs=True))
            handles.append(module.register_forward_hook(partial(_leave, seen)))
        handles += runs_after(model, seen.runs, lambda: bool(seen.calls))
        if sums:
            seen.trace = Trace(every_module(model))
            handles += seen.trace.hooks()
        adding = WatchSums(seen.calls)
        seen.sums = adding.sums
        with adding if sums else nullcontext(), seen.maxima, attention_calls(emit, safe=True, cut=cut), seen.detached:
            seen.answer = run_model(model, inputs)
    seen.by_chance = not torch.equal(start, torch.get_rng_state())
    if not seen.calls:
        raise SeamError(
            f"no attention call was seen in {type(model).__name__}: it has none, or computes it in a way that is not "
            "intercepted. Use a gradient method, such as integrated_gradients."
        )
    return seen


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


def rooted(inputs: Inputs) -> Inputs:
    """The inputs with every floating-point tensor made a leaf that gradients can be taken at."""

    def leaf(x: Any) -> Any:  # noqa: ANN401
        if isinstance(x, dict) and "last_hidden_state" in x:  # what an encoder gave
            return type(x)(**{name: leaf(value) for name, value in x.items()})
        return x.detach().clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x

    usable = inputs.usable()
    kwargs = {name: x if "mask" in name else leaf(x) for name, x in usable.kwargs.items()}
    return replace(usable, args=tuple(map(leaf, usable.args)), kwargs=kwargs)


def _enter(seen: Seen, number: int, module: nn.Module, args: tuple, kwargs: dict) -> None:
    seen.running.append(number)
    for x in (*args, *kwargs.values()):
        _keep(seen, x)


def _leave(seen: Seen, module: nn.Module, args: tuple, out: Any) -> None:  # noqa: ANN401
    seen.running.pop()
    first = next(iter(out), None) if isinstance(out, (tuple, list)) else out
    if not isinstance(first, Tensor) or not first.is_floating_point():
        return
    if start_graph(module, first) and isinstance(module, nn.Embedding) and args and isinstance(args[0], Tensor):
        seen.embedded.append((args[0], first))
    if first.ndim == 4 and first.requires_grad:
        seen.cells.append(first)
    _keep(seen, first)


def _keep(seen: Seen, x: object) -> None:
    floats = isinstance(x, Tensor) and x.is_floating_point() and x.requires_grad and x.ndim >= 2
    if floats and not any(x is known for known in seen.recent[-RECENT:]):
        seen.recent.append(x)  # pyright: ignore[reportArgumentType]
