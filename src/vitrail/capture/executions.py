"""One pass that is only watched: every execution of a module, the attention calls between them, the parts of blocks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture import additions
from vitrail.capture.coded_gradients import with_heads
from vitrail.capture.outputs import run_model
from vitrail.capture.refusals import check_plain_call, why_no_gradient
from vitrail.capture.seams import AttentionCall, attention_calls
from vitrail.capture.seams.call import tensors_in
from vitrail.capture.shadow import autograd, hooks
from vitrail.capture.torch_private import current_transform
from vitrail.models.anatomy import Block
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


DIGITS = 128
"""Channels are numbered in digits of this base."""


@dataclass(frozen=True)
class PartNames:
    """The parts of a block by their names inside it; None where there is no such part.

    Args:
        attending: the module that makes the attention call.
        value: the module that makes the values.
        value_channels: which numbers of what it gives are the values, head after head; None where it holds them last.
        missing: why what a sub-layer adds to the stream is not known, by the name it has in a layer.
    """

    attending: str | None = None
    output: str | None = None
    value: str | None = None
    value_channels: tuple[int, ...] | range | None = None
    attention_norm: str | None = None
    ffn_norm: str | None = None
    ffn_input: str | None = None
    ffn_output: str | None = None
    missing: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Proposed:
    """Executions that may be the parts of a block."""

    attending: Execution
    output: Execution | nn.Module | None = None
    attention_norm: Execution | None = None
    ffn_norm: Execution | None = None
    ffn_input: Execution | None = None
    ffn_output: Execution | None = None


def find_parts(block: Execution, seen: SeenCall, ran: Executions, *, batch_first: bool) -> PartNames:
    """The parts of a block that makes one attention call."""
    inner = ran.inside(block)
    stream = block.given[0] if block.given else None
    if stream is None:
        return PartNames()
    output = _output(seen.stack[-1], seen, inner, stream)
    after = _behind(block, seen, output, inner, stream)
    found = _Proposed(seen.stack[-1], output, _attention_norm(seen, inner, block))
    best, missing = None, {}
    for candidate in _variants(found, after, inner, stream):
        lacking = _missing(candidate, block, seen, inner, batch_first=batch_first)
        if best is None or "ffn_added" not in lacking:
            best, missing = candidate, lacking
        if "ffn_added" not in lacking:
            break
    if best is None:
        best, missing = found, _missing(found, block, seen, inner, batch_first=batch_first)
    value, channels = _value(seen, inner, ran.batch)
    return replace(_names(best, block, tuple(missing.items()), value), value_channels=channels)


def _value(
    seen: SeenCall, inner: list[Execution], batch: int
) -> tuple[Execution | None, tuple[int, ...] | range | None]:
    """The module that makes the values, and which numbers of what it gives they are."""
    if isinstance(seen.stack[-1].module, nn.MultiheadAttention):
        return seen.stack[-1], None
    value = seen.call.value
    before = [x for x in inner if x.ends < seen.at and x.gave_node and len(x.given) == 1 and _may_project(x)]
    met = reached([node_of(value)], {x.gave_node for x in before if x.gave_node})
    makers = [x for x in before if x.gave_node in met]
    if value is None or len(met) != 1 or not makers or makers[-1].gave is None:
        return None, None
    with autograd(gradients=True):  # the caller may have switched it off
        heads = with_heads(value, batch)
        channels = None if heads is None else _channels(heads[0], makers[-1].gave)
    return (None, None) if channels is None else (makers[-1], channels)


def _may_project(x: Execution) -> bool:
    """Whether a module is a linear layer: torch's own, one that says its width, or one whose numbers say that it is."""
    if additions.is_plain(x.module) or isinstance(getattr(x.module, "in_features", None), int):
        return True
    width = None if additions.is_norm(x.module) else additions.width_of(x.module)
    return width is not None and width == x.given[0].shape[-1] and additions.is_affine(x.module, x.given[0])


def _channels(value: Tensor, gave: Tensor) -> tuple[int, ...] | range | None:
    """The channel of a module's result that each number of a value row is; None where it is not one channel each.

    Args:
        value: of the first sample, `[g, t, d]`.
        gave: what the module gave, `[..., n]`.
    """
    whole = _numbers(value, gave)
    # Heads that are repeated for several queries are copies of the same channels: head by head, then.
    parts = [whole] if whole is not None else [_numbers(head[None], gave) for head in value]
    found = [channel for part in parts if part is not None for channel in part]
    if len(found) != value.shape[0] * value.shape[2]:
        return None
    straight = range(found[0], found[0] + len(found))
    return straight if found == list(straight) else tuple(found)


def _numbers(value: Tensor, gave: Tensor) -> list[int] | None:
    """The channels of the first token's values, by gradients that carry numbers; None where they are no copies."""
    first = value[:, 0]
    order = torch.arange(first.numel(), device=first.device).view_as(first)
    pulled = []
    for digit in (order % DIGITS, order // DIGITS):  # small enough to be exact in half precision
        (gradient,) = torch.autograd.grad(first, gave, (digit + 1).to(first), retain_graph=True, allow_unused=True)
        if gradient is None:
            return None
        pulled.append(gradient.flatten(0, -2))
    rows = (pulled[0] != 0).any(dim=-1).nonzero()[:, 0].tolist()
    if len(rows) != 1:
        return None
    low, high = (x[rows[0]].double() for x in pulled)
    number = ((high - 1) * DIGITS + low - 1).long().where(low != 0, -1)
    channels = torch.full((first.numel(),), -1, device=first.device)
    inside = (number >= 0) & (number < first.numel())
    channels[number[inside]] = inside.nonzero()[:, 0]
    same = (channels >= 0).all() and torch.equal(
        gave.detach().flatten(0, -2)[rows[0]][channels], first.detach().flatten()
    )
    return channels.tolist() if bool(same) else None


def _behind(
    block: Execution, seen: SeenCall, output: Execution | nn.Module | None, inner: list[Execution], stream: Tensor
) -> list[Execution]:
    """The executions behind the attention part: behind the outermost module around the call that any follows."""
    ends = [x.ends for x in seen.stack if block.holds(x)]
    ends.append(output.ends if isinstance(output, Execution) else seen.at)
    behind = ([x for x in inner if x.begins > end] for end in ends)
    return next((after for after in behind if _results(after, stream)), [])


def _variants(found: _Proposed, after: list[Execution], inner: list[Execution], stream: Tensor) -> Iterator[_Proposed]:
    """Proposals for the feed-forward part: each with the norm before it as its own, then with the stream after that."""
    for result in _results(after, stream):
        source = _source(result, after, stream)
        norm = next((x for x in inner if x.gave is source.first and additions.is_norm(x.module)), None)
        proposed = replace(found, ffn_norm=norm, ffn_input=source, ffn_output=result)
        yield proposed
        if norm is not None:
            yield replace(proposed, ffn_norm=None)


def _plain(x: Execution) -> bool:
    """Whether an execution may compute something new: no norm, no dropout, no layer scale."""
    return not (additions.is_norm(x.module) or additions.passes(x.module) or additions.scales(x.module))


def _output(caller: Execution, seen: SeenCall, inner: list[Execution], stream: Tensor) -> Execution | nn.Module | None:
    """The first module after the call that takes the heads' outputs to channels of the stream."""
    if isinstance(caller.module, nn.MultiheadAttention):
        return caller.module.out_proj
    result = seen.call.output
    size = None if result is None else result.numel()
    for x in inner:
        if x.begins < seen.at or not _plain(x) or len(x.given) != 1 or x.gave is None:
            continue
        if x.given[0].numel() == size and x.gave.numel() == stream.numel():
            return x
    return None


def _attention_norm(seen: SeenCall, inner: list[Execution], block: Execution) -> Execution | None:
    """The norm that reads what enters the block and that the queries, or the values, are made of."""
    call = seen.call
    start = [node_of(x) for x in (call.query, call.value, call.weights) if x is not None]
    norms = [x for x in inner if x.ends < seen.at and additions.is_norm(x.module) and x.first is block.given[0]]
    made = reached([node for node in start if node is not None], {x.gave_node for x in norms if x.gave_node})
    return next((x for x in norms if x.gave_node in made), None)


def _results(after: list[Execution], stream: Tensor) -> list[Execution]:
    """The modules behind attention that give channels of the stream: the last of the outermost, then those inside."""
    shaped = [x for x in after if _plain(x) and len(x.given) == 1 and _is_shaped(x.gave, stream)]
    outermost = [x for x in shaped if not any(other.holds(x) for other in shaped)]
    return [*outermost[-1:], *(x for x in shaped if outermost[-1].holds(x)), *outermost[-2::-1]]


def _is_shaped(x: Tensor | None, stream: Tensor) -> bool:
    return x is not None and x.numel() == stream.numel() and x.shape[-1] == stream.shape[-1]


def _source(result: Execution, after: list[Execution], stream: Tensor) -> Execution:
    """The module whose input is the feed-forward part's input."""
    if result.given[0].numel() == stream.numel():
        return result
    first = (
        x
        for x in after
        if x.begins < result.begins and _plain(x) and len(x.given) == 1 and x.given[0].numel() == stream.numel()
    )
    return next(first, result)


def _missing(
    found: _Proposed, block: Execution, seen: SeenCall, inner: list[Execution], *, batch_first: bool
) -> dict[str, str]:
    """Why what the proposed parts give is not what is added to the stream; empty if it is."""
    output = found.output.module if isinstance(found.output, Execution) else found.output
    part = Block(
        module=block.module,
        output=output,
        value=None,
        value_bias=None,
        attention_norm=None if found.attention_norm is None else found.attention_norm.module,
        attention_scale=None,
        ffn_norm=None if found.ffn_norm is None else found.ffn_norm.module,
        ffn_input=None if found.ffn_input is None else found.ffn_input.module,
        ffn_output=None if found.ffn_output is None else found.ffn_output.module,
        ffn_scale=None,
        batch_first=batch_first,
        attending=None,
    )
    return additions.replayed(part, _events(block, inner), seen.call)


def _events(block: Execution, inner: list[Execution]) -> list[additions.Event]:
    """Beginnings and ends of executions in the order in which they came."""
    moments = [(x.begins, x, False) for x in (block, *inner)] + [(x.ends, x, True) for x in (block, *inner)]
    return [
        additions.Event(x.module, x.first, x.gave if ends else None, ends=ends)
        for _, x, ends in sorted(moments, key=lambda moment: moment[0])
    ]


def _names(
    found: _Proposed, block: Execution, missing: tuple[tuple[str, str], ...], value: Execution | None
) -> PartNames:
    inside = {id(module): name for name, module in block.module.named_modules()}

    def name(x: Execution | nn.Module | None) -> str | None:
        module = x.module if isinstance(x, Execution) else x
        return None if module is None else inside.get(id(module))

    return PartNames(
        attending=name(found.attending),
        output=name(found.output),
        value=name(value),
        attention_norm=name(found.attention_norm),
        ffn_norm=name(found.ffn_norm),
        ffn_input=name(found.ffn_input),
        ffn_output=name(found.ffn_output),
        missing=missing,
    )
