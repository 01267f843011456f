"""Find where a pass shows what its layers add to the streams of tokens.

Measured in the pass whose attention results are cut. What an attention call gives enters the residual stream at the
first sum of which one operand depends on it and the other is a state that its queries, or values, are made of. A
feed-forward layer is a sum of a state of the stream and of something that is made of this state alone.

The vector of a token that attention reads is the one that the same sum adds to. Tokens of another stream, which no sum
of this call adds to, are taken as the value projection reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vitrail.capture.additions import Unknown
from vitrail.capture.coded_gradients import fed_singly
from vitrail.capture.cut_pass import CutCall, base_of
from vitrail.capture.executions import Node, from_data, is_made_of, node_of, reached, tensors_in
from vitrail.capture.stream_changes import (
    LOOSE,
    AddedByCall,
    CallTable,
    ChangeTables,
    ChangingPass,
    FeedForwardTable,
    StreamChanges,
    add_layers,
    added_by,
    flat,
    no_changes,
    read_projection,
    rows_of,
)
from vitrail.capture.streams import AttentionEvent, Place, Streams
from vitrail.capture.taps import Sum
from vitrail.errors import SeamError


@dataclass(frozen=True, eq=False)
class FoundChanges:
    """What the layers of a pass add to the streams, and how to read the same off another pass.

    Args:
        tensors: what the tables name by numbers, as it was in this pass.
    """

    tables: ChangeTables
    tensors: list[Tensor]
    changes: StreamChanges


@dataclass(frozen=True, eq=False)
class _Entry:
    """The sum at which the result of a call enters its stream."""

    sum: Sum
    side: int  # which operand is the state of the stream
    channels: int
    tokens: Tensor  # the token of every row of the operands, -1 for none

    @property
    def state(self) -> Tensor:
        """What is added to."""
        return self.sum.operands[self.side]

    @property
    def added(self) -> Tensor:
        """What is added, with its graph."""
        return self.sum.operands[1 - self.side]


def find_changes(streams: Streams, samples: Tensor, real: Tensor) -> FoundChanges:
    """Return what every attention call and every feed-forward layer adds to the streams, and where a pass shows it.

    Args:
        samples: the sample of every token.
        real: which tokens are no padding.
    """
    seen = streams.seen
    tables, found, tensors = ChangeTables(), no_changes(real), list[Tensor]()
    run = ChangingPass(seen.calls, tensors, seen.tapped.modules)
    entries: list[_Entry] = []
    results = {id(place.tensor): place for place in streams.places if place.result}
    for event in streams.attentions:
        place = results[id(seen.calls[event.call].output)]
        if not _is_used(streams, event.call + 1, node_of(place.tensor)):
            continue
        try:
            _check_one_sample(event, samples)
            entry = _entry(streams, event, place)
            if entry is None:
                tables.pools.add(event.call)
                continue
            table, found.calls[event.call] = _read(streams, event, entry, run, found)
        except Unknown as why:
            raise SeamError(
                f"what attention call {event.call + 1} adds to its stream is not known: {why}. Take a method that "
                "reads attention maps only, such as gae."
            ) from None
        tables.calls.append(table)
        entries.append(entry)
    _find_feed_forward(streams, entries, samples, tensors, tables)
    add_layers(tables, run, found)
    seen.tapped.add_sums(seen.sums)
    named = seen.tapped.named()
    tables.taps = [named.get(id(x)) for x in tensors]
    return FoundChanges(tables, [x.detach() for x in tensors], found)


def _number(x: Tensor, tensors: list[Tensor]) -> int:
    """Return the number of a tensor among those of use, a new one where it has none."""
    if not any(x is known for known in tensors):
        tensors.append(x)
    return next(number for number, known in enumerate(tensors) if known is x)


def _check_one_sample(event: AttentionEvent, samples: Tensor) -> None:
    if bool((samples[event.keys] != samples[event.keys][:, :1]).any()):  # as of pictures that stand in one row
        raise Unknown(
            "tokens of several samples stand in one map, over which cosines are normalised: explain one alone"
        )


def _is_used(streams: Streams, after: int, node: Node | None) -> bool:
    """Whether the answer, or an attention call after so many, is made of what stands at a place in the graph."""
    later = [x for one in streams.seen.calls[after:] for x in (one.call.query, one.call.key, one.call.value)]
    return is_made_of([node_of(x) for x in (*later, *tensors_in(streams.seen.answer))], node)


def _entry(streams: Streams, event: AttentionEvent, place: Place) -> _Entry | None:
    """The sum at which the result of a call enters its stream; None for a learned query, whose result enters none."""
    call, leaf = streams.seen.calls[event.call].call, node_of(place.tensor)
    asks = [node_of(x) for x in (call.query, call.value, call.key) if x is not None]
    for some in (x for x in streams.seen.sums if x.after > event.call):
        fed = [bool(leaf is not None and reached([node], {leaf})) for node in some.nodes]
        if fed[0] == fed[1]:
            continue
        side = fed.index(False)
        state = base_of(some.nodes[side])
        if state is not None and not reached(asks, {state}):
            continue
        if not some.kept(side):
            raise Unknown("the model writes into the stream after the sum, so it is not there any more")
        return _rows_of_sum(some, side, place)
    if not from_data(call.query):
        return None
    raise Unknown("no sum was seen of it and of a state that its queries are made of")


def _rows_of_sum(some: Sum, side: int, place: Place) -> _Entry:
    added = some.operands[1 - side]
    for channels in (-1, 1) if added.ndim == 4 else (-1,):
        tokens = _tokens(added, channels, place)
        if tokens is not None:
            return _Entry(some, side, channels, tokens)
    raise Unknown("rows of what is added are made of more than one token")


def _tokens(x: Tensor, channels: int, place: Place) -> Tensor | None:
    """The token of every row of a tensor that is made of what a call gave; None where a row has several."""
    shape = x.movedim(channels, -1).shape[:-1]
    numbers = torch.arange(shape.numel(), device=x.device).view(*shape, 1).movedim(-1, channels)
    fed = fed_singly([(x, numbers)], place.tensor, channels=place.channels)
    if fed is None:
        return None
    fed = fed.cpu()
    real = (fed >= 0) & (place.tokens >= 0)
    pairs = torch.stack([fed[real], place.tokens[real]], dim=1).unique(dim=0)
    if not len(pairs) or len(pairs[:, 0].unique()) != len(pairs) or len(pairs[:, 1].unique()) != len(pairs):
        return None
    return torch.full((shape.numel(),), -1).index_copy(0, pairs[:, 0], pairs[:, 1])


def _read(
    streams: Streams, event: AttentionEvent, entry: _Entry, run: ChangingPass, found: StreamChanges
) -> tuple[CallTable, AddedByCall]:
    """The table of a call, and what it adds: with the norm between only where it is no linear map without it."""
    rows = torch.nonzero(entry.tokens >= 0)[:, 0]
    at = rows_of(entry.tokens[rows], event.queries.flatten(), streams.count)
    asked = rows_of(event.queries, entry.tokens, streams.count)
    tokens = _with_other_calls(streams, event, entry)
    read = rows_of(event.keys, tokens, streams.count)
    operands = _number(entry.state, run.tensors), _number(entry.added, run.tensors)
    table = CallTable(event, *operands, entry.channels, tokens, rows, at, asked, read)
    try:
        projection = read_projection(table, run)
    except Unknown:
        norm = _norm_between(streams, event, entry, run.tensors)
        if norm is None:
            raise
        table = replace(table, norm=norm)
        projection = read_projection(table, run)
    if bool((read < 0).any()):
        x, of = _read_by_values(event, streams.seen.calls[event.call])
        table = replace(table, values=(_number(x, run.tensors), of))
    return table, added_by(table, projection, run, found)


def _with_other_calls(streams: Streams, event: AttentionEvent, entry: _Entry) -> Tensor:
    """Return the token of every row of the state, also where other calls add, as where queries attend in chunks."""
    tokens = entry.tokens
    for other in streams.places:
        missing = bool((rows_of(event.keys, tokens, streams.count) < 0).any())
        leaf = node_of(other.tensor) if missing and other.result else None
        if leaf is None or not reached([node_of(entry.added)], {leaf}):
            continue
        more = _tokens(entry.added, entry.channels, other)
        if more is not None and not bool(torch.isin(more[more >= 0], tokens).any()):
            tokens = torch.where(tokens < 0, more, tokens)
    return tokens


def _norm_between(
    streams: Streams, event: AttentionEvent, entry: _Entry, tensors: list[Tensor]
) -> tuple[int, int, int] | None:
    """The norm whose result is what is added."""
    leaf, added = node_of(streams.seen.calls[event.call].output), entry.added
    for norm in streams.seen.norms if leaf is not None and entry.channels == -1 else ():
        same = norm.gave.shape == added.shape and bool((norm.gave == added).all())
        if same and reached([node_of(norm.given)], {leaf}):
            number = next(i for i, module in enumerate(streams.seen.tapped.modules) if module is norm.module)
            return number, _number(norm.given, tensors), _number(norm.gave, tensors)
    return None


def _read_by_values(event: AttentionEvent, one: CutCall) -> tuple[Tensor, Tensor]:
    """What the projection of the values was given: a tensor of vectors, and the token of each."""
    value = one.call.value
    if value is None:
        raise Unknown("its values are not known")
    heads = event.rows.of_keys(value, len(event.keys))
    numbers, entries = heads.numbers(value), heads.four(value.detach()).transpose(1, 2).flatten(2).flatten(0, 1)
    keys, found = event.keys.flatten().cpu(), None
    for x in reversed(one.before):
        fed = fed_singly([(value, numbers)], x, channels=-1)
        if fed is None:
            continue
        rows = fed.flatten().cpu()
        tokens = torch.where(rows >= 0, keys[rows.clamp(min=0)], -1)
        if len(tokens[tokens >= 0].unique()) != int((tokens >= 0).sum()):
            continue
        found = x, tokens
        first = int(torch.nonzero(rows >= 0)[0])
        if not bool(torch.isin(entries[rows[first]], x.detach().flatten(0, -2)[first]).all()):
            return found
    if found is None:
        raise Unknown("the vectors that its values are made of were not seen")
    return found


def _find_feed_forward(
    streams: Streams, entries: Sequence[_Entry], samples: Tensor, tensors: list[Tensor], tables: ChangeTables
) -> None:
    """Add the feed-forward layers in order: sums of a state of the stream and of what is made of it."""
    widths = {flat(entry.state, entry.channels).shape[1] for entry in entries}
    of_calls = {id(entry.sum) for entry in entries}
    branches: list[tuple[Node, Node]] = []
    results = [place for place in streams.places if place.result]
    for some in reversed(streams.seen.sums):
        side = None if id(some) in of_calls else _state_side(some)
        result = node_of(some.result)
        inner = any(result in reached([branch], {state, result}) for branch, state in branches if result is not None)
        if side is None or inner or not widths & {some.result.shape[-1], some.result.shape[1]}:
            continue
        branch, state = some.nodes[1 - side], base_of(some.nodes[side])
        assert branch is not None
        assert state is not None
        branches.append((branch, state))
        if not _is_used(streams, some.after, result):  # as in the last block of a tower that is read before it
            continue
        layer = _layer(some, side, results, samples, tensors)
        if layer is not None:
            tables.layers.insert(0, layer)
        elif not tables.assumed:
            tables.assumed.append(LOOSE)


def _state_side(some: Sum) -> int | None:
    """Which operand of a sum is a state that the other one is made of; None for neither."""
    for side in (0, 1):
        state, other = base_of(some.nodes[side]), some.nodes[1 - side]
        if state is not None and state is not base_of(other) and reached([other], {state}):
            return side if some.kept(0) and some.kept(1) else None
    return None


def _layer(
    some: Sum, side: int, results: list[Place], samples: Tensor, tensors: list[Tensor]
) -> FeedForwardTable | None:
    """A feed-forward layer on the tokens of the last attention calls that feed it; None where they cannot be told.

    Pictures that stand in one row may attend in a call of their own each, so one call need not feed all rows.
    """
    for channels in (-1, 1) if some.result.ndim == 4 else (-1,):
        tokens, calls = _fed_rows(some, channels, results)
        if tokens is not None:
            known = torch.nonzero(tokens >= 0)[:, 0]
            of = samples[tokens[known]]
            each = [known[of == sample] for sample in of.unique().tolist()]
            rows = pad_sequence(each, batch_first=True, padding_value=-1)  # -1 where a sample has fewer
            named = torch.where(rows >= 0, tokens[rows.clamp(min=0)], -1)
            state, added = (_number(some.operands[which], tensors) for which in (side, 1 - side))
            return FeedForwardTable(state, added, channels, rows, named, calls, some.after)
    return None


def _fed_rows(some: Sum, channels: int, results: list[Place]) -> tuple[Tensor | None, tuple[int, ...]]:
    """The token of every row of a sum, and the calls that gave to these tokens last."""
    found: Tensor | None = None
    calls: list[int] = []
    for call, place in reversed([*enumerate(results[: some.after])]):
        tokens = _tokens(some.result, channels, place)
        if found is None:
            found, calls = tokens, [] if tokens is None else [call]
        elif tokens is None or not bool(((found < 0) & (tokens >= 0)).any()):
            break  # an earlier call on the same tokens
        else:
            found, calls = torch.where(found < 0, tokens, found), [*calls, call]
        if found is not None and bool((found >= 0).all()):
            break
    return found, tuple(calls)
