"""The norms, projections and the feed-forward part of a block, by what they do.

A part is proposed by the order of executions and the shapes of tensors, and accepted if what it gives is what is added
to the residual stream (`additions`). Where nothing proposed explains the stream, the part is left out, and methods that
read it say so.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor, nn

from vitrail.capture import additions
from vitrail.capture.executions import Execution, Executions, SeenCall, node_of, reached
from vitrail.models.anatomy import Block


@dataclass(frozen=True)
class PartNames:
    """The parts of a block by their names inside it; None where there is no such part.

    Args:
        attending: the module that makes the attention call.
        missing: why what a sub-layer adds to the stream is not known, by the name it has in a layer.
    """

    attending: str | None = None
    output: str | None = None
    value: str | None = None
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
    best, missing = found, _missing(found, block, seen, inner, batch_first=batch_first)
    for candidate in _variants(found, after, inner, stream):
        lacking = _missing(candidate, block, seen, inner, batch_first=batch_first)
        if best is found or "ffn_added" not in lacking:
            best, missing = candidate, lacking
        if "ffn_added" not in lacking:
            break
    return _names(best, block, tuple(missing.items()))


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


def _names(found: _Proposed, block: Execution, missing: tuple[tuple[str, str], ...]) -> PartNames:
    inside = {id(module): name for name, module in block.module.named_modules()}

    def name(x: Execution | nn.Module | None) -> str | None:
        module = x.module if isinstance(x, Execution) else x
        return None if module is None else inside.get(id(module))

    return PartNames(
        attending=name(found.attending),
        output=name(found.output),
        attention_norm=name(found.attention_norm),
        ffn_norm=name(found.ffn_norm),
        ffn_input=name(found.ffn_input),
        ffn_output=name(found.ffn_output),
        missing=missing,
    )
