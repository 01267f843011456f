"""The parts of a block by their names: found in the pass that structure is read off."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.graph_nodes import node_of, reached
from vitrail.capture.shadow import autograd
from vitrail.capture.structure.projections import hands_on, is_affine, is_norm, is_plain, width_of
from vitrail.capture.structure.token_codes import with_heads
from vitrail.capture.structure.trace import Execution, TracedCall, TracedPass
from vitrail.capture.structure.updates import Event, replay
from vitrail.models.anatomy import Block

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


def find_parts(block: Execution, seen: TracedCall, ran: TracedPass, *, batch_first: bool) -> PartNames:
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


def _value(seen: TracedCall, inner: list[Execution], batch: int) -> tuple[Execution | None, Channels]:
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
    """Return True if a module is a linear layer: torch's own, or one whose width or numbers say that it is."""
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
    block: Execution, seen: TracedCall, output: Execution | nn.Module | None, inner: list[Execution], stream: Tensor
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
    """Return True if an execution may compute something new of one tensor: no norm, no dropout, no layer scale."""
    return len(x.given) == 1 and not hands_on(x.module)


def _output(
    caller: Execution, seen: TracedCall, inner: list[Execution], stream: Tensor
) -> Execution | nn.Module | None:
    """The first module after the call that takes the heads' outputs to channels of the stream."""
    if isinstance(caller.module, nn.MultiheadAttention):
        return caller.module.out_proj
    size = None if seen.call.output is None else seen.call.output.numel()
    later = (x for x in inner if x.begins >= seen.at and _computes(x) and x.given[0].numel() == size)
    return next((x for x in later if x.gave is not None and x.gave.numel() == stream.numel()), None)


def _attention_norm(seen: TracedCall, inner: list[Execution], block: Execution) -> Execution | None:
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
