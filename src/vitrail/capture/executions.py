"""One pass that is only watched: every execution of a module, the attention calls between them, the parts of blocks."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.coded_gradients import with_heads
from vitrail.capture.detached import KeepDetached
from vitrail.capture.graph_nodes import Node, node_of, reached
from vitrail.capture.outputs import run_model
from vitrail.capture.refusals import check_plain_call, note_parts, note_unapplied, why_no_gradient
from vitrail.capture.seams import AttentionCall, attention_calls
from vitrail.capture.seams.call import tensors_in
from vitrail.capture.shadow import autograd, hooks
from vitrail.capture.structure.projections import hands_on, is_affine, is_norm, is_plain, width_of
from vitrail.capture.structure.updates import Event, replay
from vitrail.capture.torch_private import current_transform
from vitrail.models.anatomy import Block
from vitrail.models.inputs import Inputs

SAMPLES = 2
"""How many samples are looked at."""


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
    ends: int = 0
    gave: Tensor | None = None  # the first tensor of what it returned
    gave_node: Node | None = None
    plain: bool = False  # whether what it returned is a tensor, or begins with one

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
    seen, handles = Executions(batch=some.batch), []

    def emit(call: AttentionCall) -> None:
        check_plain_call()
        note_parts(model, call)
        why = "" if torch.is_grad_enabled() else why_no_gradient()
        seen.calls.append(SeenCall(call, seen.tick(), tuple(seen.stack), why))

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(partial(_enter, seen, name), with_kwargs=True))
        handles.append(module.register_forward_hook(partial(_leave, seen)))
    with hooks(handles), autograd(gradients=True), torch.random.fork_rng(devices=[]):
        if some.shown.is_floating_point():
            some = some.showing(some.shown.detach().clone().requires_grad_())
        with attention_calls(emit, safe=True, cut=lambda out, order: out.detach()) as follower, KeepDetached():
            seen.answer = run_model(model, some)
    note_unapplied(model, follower.waiting)
    return seen


def _enter(seen: Executions, name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
    tensors = list(tensors_in((args, kwargs)))
    given = [x for x in tensors if x.is_floating_point()]
    turn = seen.times.get(id(module), 0)
    seen.times[id(module)] = turn + 1
    first = tensors[0] if tensors else None
    found = Execution(module, name, turn, seen.tick(), given, [node_of(x) for x in given], first)
    seen.every.append(found)
    seen.stack.append(found)


def _leave(seen: Executions, module: nn.Module, args: tuple, out: Any) -> Tensor | None:  # noqa: ANN401
    found = seen.stack.pop()
    found.ends, found.gave = seen.tick(), next(tensors_in(out), None)
    found.plain = found.gave is (out[0] if isinstance(out, (tuple, list)) and out else out)
    if found.gave is None or not found.gave.is_floating_point() or current_transform() is not None:
        return None
    begins = not found.gave.requires_grad and start_graph(module, found.gave)
    found.gave_node = node_of(found.gave)
    return found.gave.clone() if begins and found.gave is out else None  # models may write into what a module gave


def start_graph(module: nn.Module, out: Tensor) -> bool:
    """Let the graph begin at what frozen weights made of numbers without one; whether the result has a graph."""
    own = any(x is not None for x in module._parameters.values())
    begins = not out.requires_grad and out.is_leaf and (own or isinstance(module, nn.Embedding))
    if begins and current_transform() is None:  # inside of a transform no graph can begin
        out.requires_grad_()
    return out.requires_grad


DIGITS = 128
"""Channels are numbered in digits of this base."""
Channels = tuple[int, ...] | range | None


@dataclass(frozen=True)
class PartNames:
    """The parts of a block by their names inside it; None where there is no such part."""

    attending: str | None = None  # makes the attention call
    output: str | None = None
    value: str | None = None  # makes the values
    attention_norm: str | None = None
    ffn_norm: str | None = None
    ffn_input: str | None = None
    ffn_output: str | None = None
    value_channels: Channels = None
    """Which numbers of what `value` gives are the values, head after head; None where it holds them last."""
    missing: tuple[tuple[str, str], ...] = ()
    """Why what a sub-layer adds to the stream is not known, by the name it has in a layer."""


PARTS = ("attending", "output", "value", "attention_norm", "ffn_norm", "ffn_input", "ffn_output")


def find_parts(block: Execution, seen: SeenCall, ran: Executions, *, batch_first: bool) -> PartNames:
    """The parts of a block that makes one attention call."""
    inner, stream = ran.inside(block), block.given[0] if block.given else None
    if stream is None:
        return PartNames()
    output, norm = _output(seen.stack[-1], seen, inner, stream), _attention_norm(seen, inner, block)
    value, channels = _value(seen, inner, ran.batch)
    parts = {"attending": seen.stack[-1], "output": output, "value": value, "attention_norm": norm}
    modules: dict[str, Any] = dict.fromkeys(PARTS)
    modules |= {part: x.module if isinstance(x, Execution) else x for part, x in parts.items()}
    found = Block(
        module=block.module,
        **modules,
        value_bias=None,
        attention_scale=None,
        ffn_scale=None,
        batch_first=batch_first,
    )
    events, tried = _events(block, inner), []
    for candidate in _variants(found, _behind(block, seen, output, inner, stream), inner, stream) or [found]:
        tried.append((candidate, replay(candidate, events, seen.call)))
        if "ffn_added" not in tried[-1][1]:
            break
    best, missing = tried[-1] if "ffn_added" not in tried[-1][1] else tried[0]
    inside = {id(module): name for name, module in block.module.named_modules()}
    names = {part: inside.get(id(getattr(best, part))) for part in PARTS}
    return PartNames(**names, value_channels=channels, missing=tuple(missing.items()))


def _value(seen: SeenCall, inner: list[Execution], batch: int) -> tuple[Execution | None, Channels]:
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
    if is_plain(x.module) or isinstance(getattr(x.module, "in_features", None), int):
        return True
    width = None if is_norm(x.module) else width_of(x.module)
    return width is not None and width == x.given[0].shape[-1] and is_affine(x.module, x.given[0])


def _channels(value: Tensor, gave: Tensor) -> Channels:
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
    given = gave.detach().flatten(0, -2)[rows[0]]
    same = bool((channels >= 0).all()) and torch.equal(given[channels], first.detach().flatten())
    return channels.tolist() if same else None


def _behind(
    block: Execution, seen: SeenCall, output: Execution | nn.Module | None, inner: list[Execution], stream: Tensor
) -> list[Execution]:
    """The executions behind the attention part: behind the outermost module around the call that any follows."""
    ends = [x.ends for x in seen.stack if block.holds(x)]
    ends.append(output.ends if isinstance(output, Execution) else seen.at)
    behind = ([x for x in inner if x.begins > end] for end in ends)
    return next((after for after in behind if _results(after, stream)), [])


def _variants(found: Block, after: list[Execution], inner: list[Execution], stream: Tensor) -> list[Block]:
    """Proposals for the feed-forward part: each with the norm before it as its own, then with the stream after that."""
    proposed = []
    for result in _results(after, stream):
        source = _source(result, after, stream)
        norm = next((x for x in inner if x.gave is source.first and is_norm(x.module)), None)
        without = replace(found, ffn_input=source.module, ffn_output=result.module)
        proposed += [without] if norm is None else [replace(without, ffn_norm=norm.module), without]
    return proposed


def _computes(x: Execution) -> bool:
    """Whether an execution may compute something new of one tensor: no norm, no dropout, no layer scale."""
    return len(x.given) == 1 and not hands_on(x.module)


def _output(caller: Execution, seen: SeenCall, inner: list[Execution], stream: Tensor) -> Execution | nn.Module | None:
    """The first module after the call that takes the heads' outputs to channels of the stream."""
    if isinstance(caller.module, nn.MultiheadAttention):
        return caller.module.out_proj
    size = None if seen.call.output is None else seen.call.output.numel()
    later = (x for x in inner if x.begins >= seen.at and _computes(x) and x.given[0].numel() == size)
    return next((x for x in later if x.gave is not None and x.gave.numel() == stream.numel()), None)


def _attention_norm(seen: SeenCall, inner: list[Execution], block: Execution) -> Execution | None:
    """The norm that reads what enters the block and that the queries, or the values, are made of."""
    call = seen.call
    start = [node_of(x) for x in (call.query, call.value, call.weights) if x is not None]
    norms = [x for x in inner if x.ends < seen.at and is_norm(x.module) and x.first is block.given[0]]
    made = reached([node for node in start if node is not None], {x.gave_node for x in norms if x.gave_node})
    return next((x for x in norms if x.gave_node in made), None)


def _results(after: list[Execution], stream: Tensor) -> list[Execution]:
    """The modules behind attention that give channels of the stream: the last of the outermost, then those inside."""

    def fits(x: Tensor | None) -> bool:
        return x is not None and x.numel() == stream.numel() and x.shape[-1] == stream.shape[-1]

    shaped = [x for x in after if _computes(x) and fits(x.gave)]
    outermost = [x for x in shaped if not any(other.holds(x) for other in shaped)]
    return [*outermost[-1:], *(x for x in shaped if outermost[-1].holds(x)), *outermost[-2::-1]]


def _source(result: Execution, after: list[Execution], stream: Tensor) -> Execution:
    """The module whose input is the feed-forward part's input."""
    if result.given[0].numel() == stream.numel():
        return result
    before = (x for x in after if x.begins < result.begins and _computes(x))
    return next((x for x in before if x.given[0].numel() == stream.numel()), result)


def _events(block: Execution, inner: list[Execution]) -> list[Event]:
    """Beginnings and ends of executions in the order in which they came."""
    ran = (block, *inner)
    moments = [(x.begins, x, ()) for x in ran] + [(x.ends, x, (x.gave,)) for x in ran]
    return [
        (x.module, () if x.first is None else (x.first,), gave)
        for _, x, gave in sorted(moments, key=lambda moment: moment[0])
    ]
