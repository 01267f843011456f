"""The updates of several sequences of tokens by the sub-layers of a model, found by the sums of a pass.

Found once, in the pass whose attention results are cut. What an attention call gives enters the residual stream at the
first sum of which one operand depends on it and the other is a state that its queries, or values, are made of. A
feed-forward layer is a sum of a state of the stream and of something that is made of this state alone. Tables keep
where such operands are shown, and which tokens their rows are; the numbers are read off every pass.

The vector of a token that attention reads is the one that the same sum adds to. Tokens of another stream, which no sum
of this call adds to, are taken as the value projection reads them.

The map from the heads' outputs to what an attention call adds is the derivative of what is added: it has to be the same
at every token, but for the statistics of a norm that stands between (`updates`). Where it is the weight of a plain
linear layer, it is read there later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vitrail.capture.graph_nodes import Node, base_of, from_data, is_by_entry, is_made_of, met_beside, node_of, reached
from vitrail.capture.recording.layer import widen
from vitrail.capture.seams.call import tensors_in
from vitrail.capture.structure.projections import TOLERANCES, Unknown, is_norm, is_plain, matrix, through
from vitrail.capture.structure.signature import GraphPlace
from vitrail.capture.structure.streams import AttentionEvent, Place, Streams
from vitrail.capture.structure.taps import SUMS, Sum, Tap
from vitrail.capture.structure.token_codes import fed_singly
from vitrail.capture.structure.trace import TracedCall, TracedPass
from vitrail.capture.structure.updates import SublayerUpdate
from vitrail.errors import SeamError

READ = "vectors of tokens that attention reads of another stream are those that the value projection is given"
LOOSE = "sums between attention calls whose tokens cannot be told take no part as feed-forward layers"

# Tables of where a pass shows what is added, and what is read there


@dataclass(frozen=True, eq=False)
class CallTable:
    """The place in a pass that shows the update of a stream by an attention call.

    Args:
        state, added: the numbers of the tensors that are summed.
        channels: their axis of channels.
        tokens: the token of every row of both, -1 for none; other calls may have added to some of these rows.
        rows, at: the rows that this call has added to, and the query that each of them is.
        asked: the row of every query `[rows, q]`, -1 for none.
        read: the row of every key `[rows, k]`, -1 for none.
        values: the number of the tensor that values are made of, and the token of each of its rows, where keys are of
            another stream.
        norm: the number of the module, and of the tensors that it was given and gave, where a norm stands between the
            output projection and the stream.
        linear: the number of the module whose weight the output projection is; None where no plain layer holds it.
    """

    event: AttentionEvent
    state: int
    added: int
    channels: int
    tokens: Tensor
    rows: Tensor
    at: Tensor
    asked: Tensor
    read: Tensor
    values: tuple[int, Tensor] | None = None
    norm: tuple[int, int, int] | None = None
    linear: int | None = None


@dataclass(frozen=True, eq=False)
class FeedForward:
    """A feed-forward layer on the tokens of some samples, and where a pass shows it.

    Args:
        state, added: the numbers of the tensors that are summed.
        channels: their axis of channels.
        rows: their rows of each sample, -1 where a sample has fewer.
        tokens: the token of each of these.
        calls: the last attention calls on the same tokens before: one, or one for each picture.
        after: how many attention calls came before.
    """

    state: int
    added: int
    channels: int
    rows: Tensor
    tokens: Tensor
    calls: tuple[int, ...]
    after: int

    def among_tokens(self, growth: Tensor, like: Tensor) -> Tensor:
        """Spread a factor of each of its rows over all tokens; one for those that it does not reach."""
        real = self.tokens >= 0
        found = torch.ones_like(like)
        found[self.tokens[real].to(like.device)] = growth.to(like)[real.to(like.device)]
        return found


@dataclass(eq=False)
class UpdateTables:
    """The places in a pass that show all updates of the streams: tables alone, and no tensor of the pass.

    Args:
        taps: where modules show each tensor, by its number; None where none does.
        places: where each stands in the graph: the number of a node of the route, and the edges that lead to it.
        shapes: of the tensors.
        pools: calls of a learned query that pools tokens, which is added to no stream.
    """

    taps: list[Tap | None] = field(default_factory=list)
    places: list[GraphPlace] = field(default_factory=list)
    shapes: list[torch.Size] = field(default_factory=list)
    calls: list[CallTable] = field(default_factory=list)
    pools: set[int] = field(default_factory=set)
    layers: list[FeedForward] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class ReadPass:
    """The pass that updates are read off.

    Args:
        calls: all attention calls, with what each gave as the graph has it.
        tensors: those that tables name by their numbers.
        modules: those that ran, by their numbers.
    """

    calls: Sequence[TracedCall]
    tensors: list[Tensor]
    modules: Mapping[int, nn.Module] | Sequence[nn.Module]


@dataclass(eq=False)
class StreamUpdates:
    """The updates of the streams by all layers of a pass.

    Args:
        real: which tokens are no padding.
        lengths: of the first vector of every token; not a number where there is none.
        calls: what attention adds, by the number of the call.
        layers: what feed-forward layers add.
        pools: as in `UpdateTables`.
    """

    real: Tensor
    lengths: Tensor
    calls: dict[int, SublayerUpdate] = field(default_factory=dict)
    layers: list[tuple[FeedForward, SublayerUpdate]] = field(default_factory=list)
    pools: set[int] = field(default_factory=set)
    assumed: list[str] = field(default_factory=list)

    @staticmethod
    def before_any(real: Tensor) -> "StreamUpdates":
        """Return what is known before any layer has been read."""
        return StreamUpdates(real, torch.full(real.shape, torch.nan, dtype=torch.float64))

    def read_call(self, table: CallTable, run: ReadPass, projection: "Projection") -> None:
        """Add what a call adds by its projection; keep the lengths of vectors that are met for the first time."""
        vectors, places = flat(run.tensors[table.state], table.channels), table.read
        self._keep_lengths(vectors, table.tokens)
        if table.values is not None:
            vectors, places = self._with_values(table, table.values, run, vectors)
        _check_no_zeros(vectors, places, self.real[table.event.keys])
        weight, rows = projection
        self.calls[table.event.call] = SublayerUpdate(weight, rows, state=vectors, places=places)

    def read_layers(self, tables: UpdateTables, run: ReadPass) -> None:
        """Add the feed-forward layers, and what was found once, to what attention calls add."""
        for table in tables.layers:
            wanted = table.rows.clamp(min=0)
            state, added = (flat(run.tensors[number], table.channels) for number in (table.state, table.added))
            at = wanted.to(state.device)
            self.layers.append((table, SublayerUpdate(state=state[at], added=added[at])))
        self.pools |= tables.pools
        self.assumed += tables.assumed

    def _with_values(
        self, table: CallTable, values: tuple[int, Tensor], run: ReadPass, vectors: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return vectors of the stream and, below, those that values are made of; the row of every key among both."""
        read, tokens = flat(run.tensors[values[0]], -1), values[1]
        if read.shape[1] != vectors.shape[1]:
            raise Unknown(
                f"tokens of {read.shape[1]} channels are read into a stream of {vectors.shape[1]}, so directions "
                "cannot be compared"
            )
        tokens = torch.where(read.eq(0).all(dim=1).cpu(), -1, tokens)  # windows are filled up by vectors of zeros
        self._keep_lengths(read, tokens)
        other = rows_of(table.event.keys, tokens, len(self.real))
        self.assumed = [READ] if bool((other >= 0).any()) else self.assumed
        below = torch.where(other < 0, -1, other + len(vectors))
        return torch.cat([vectors, read.to(vectors)]), torch.where(table.read < 0, below, table.read)

    def _keep_lengths(self, vectors: Tensor, tokens: Tensor) -> None:
        """Keep the length of the first vector that is known of each token."""
        new = (tokens >= 0) & self.lengths[tokens.clamp(min=0)].isnan()
        if bool(new.any()):
            self.lengths[tokens[new]] = vectors.norm(dim=1).double().cpu()[new]


def read_updates(tables: UpdateTables, run: ReadPass, real: Tensor) -> StreamUpdates:
    """Return what the layers of a pass add to the streams; raise `Unknown` where that cannot be told.

    Args:
        real: which tokens are no padding.
    """
    found = StreamUpdates.before_any(real)
    for table in tables.calls:
        found.read_call(table, run, read_projection(table, run))
    found.read_layers(tables, run)
    return found


def flat(x: Tensor, channels: int) -> Tensor:
    """Return a tensor as rows of channels, without its graph."""
    return widen(x.detach()).movedim(channels, -1).flatten(0, -2)


def rows_of(wanted: Tensor, tokens: Tensor, count: int) -> Tensor:
    """Return the row that each wanted token has, -1 for none."""
    rows = torch.full((count,), -1)
    known = tokens >= 0
    rows[tokens[known]] = torch.arange(len(tokens))[known]
    return rows[wanted.cpu()]


def _check_no_zeros(vectors: Tensor, places: Tensor, real: Tensor) -> None:
    """Refuse vectors of length zero: no ratio to one is defined."""
    zeros = vectors.eq(0).all(dim=1).cpu()
    if not bool(zeros.any()):
        return
    read = places[(places >= 0) & real].unique()
    if bool(zeros[read].any()):
        raise Unknown(
            f"{int(zeros[read].sum())} of {len(read)} tokens are vectors of zeros in their stream, as queries of a "
            "detector are at first, so that no change of length is defined"
        )


# The map from the heads' outputs to what is added

Projection = tuple[Tensor, Tensor | None]
"""The map from the heads' outputs to what is added, and what a norm multiplies each query's row by."""


def read_projection(table: CallTable, run: ReadPass) -> Projection:
    """Return the projection of a call; raise `Unknown` if it is not the same linear map at every token."""
    weight = _derivative(table, run) if table.linear is None else _weight(run.modules[table.linear])
    return _behind_norm(table, run, weight)


def _behind_norm(table: CallTable, run: ReadPass, weight: Tensor) -> Projection:
    """Return the projection behind the norm that follows it, if there is one."""
    if table.norm is None:
        return weight, None
    given, gave = (flat(run.tensors[x], -1)[None] for x in table.norm[1:])
    weight, factor = through([(run.modules[table.norm[0]], given, gave)], weight)
    if factor is None:
        return weight, None
    asked = table.asked.to(factor.device)
    return weight, factor.flatten()[asked.clamp(min=0)] * (asked >= 0).to(factor)


def _projected(table: CallTable, run: ReadPass) -> tuple[Tensor, int]:
    """Return what the projection gave, with its graph, and the axis of its channels."""
    return (run.tensors[table.added], table.channels) if table.norm is None else (run.tensors[table.norm[1]], -1)


def _weight(module: nn.Module) -> Tensor:
    """Return the weight of a plain linear layer."""
    return widen(matrix(module, 0, torch.empty(0))[0]).contiguous()  # as derivatives are


def _derivative(table: CallTable, run: ReadPass) -> Tensor:
    """Return the derivative `[channels, heads * d]` of what is added by the heads' outputs, the same at all tokens.

    One backward pass gives one row of it at every token, so that as many are needed as there are channels by token.
    """
    x, channels = _projected(table, run)
    one, rows, at = run.calls[table.event.call], table.rows.to(x.device), table.at.to(x.device)
    width, found = x.shape[channels], []
    for some in torch.arange(width, device=x.device).split(len(rows)):
        seed = torch.zeros(len(table.tokens), width, dtype=x.dtype, device=x.device)
        seed[rows[: len(some)], some] = 1
        found.append(_pull(table.event, one, x, channels, seed)[at[: len(some)]])
    weight = torch.cat(found)
    again = torch.randn(width, generator=torch.Generator().manual_seed(0)).to(x)
    seed = torch.zeros(len(table.tokens), width, dtype=x.dtype, device=x.device)
    seed[rows] = again
    each, wanted = _pull(table.event, one, x, channels, seed)[at], widen(again) @ weight
    allowed = TOLERANCES.get(x.dtype, 5e-2) * wanted.abs().amax()
    if bool((each - wanted).abs().amax() > allowed):
        raise Unknown("it is not the same linear map at every token: an activation, a gate or a norm stands between")
    return weight


def _pull(event: AttentionEvent, one: TracedCall, x: Tensor, channels: int, seed: Tensor) -> Tensor:
    """Return the gradient at the heads' outputs, one row `[heads * d]` for each query."""
    assert one.output is not None
    shaped = seed.view(*x.movedim(channels, -1).shape).movedim(-1, channels)
    (gradient,) = torch.autograd.grad(x, one.output, shaped, retain_graph=True)
    return widen(event.rows.four(gradient.permute(one.order))).transpose(1, 2).flatten(2).flatten(0, 1)


# Found once


@dataclass(frozen=True, eq=False)
class FoundUpdates:
    """The updates of the streams by the layers of a pass, and how to read the same off another pass.

    Args:
        tensors: what the tables name by numbers, as it was in this pass.
    """

    tables: UpdateTables
    tensors: list[Tensor]
    updates: StreamUpdates


def find_updates(streams: Streams, samples: Tensor, real: Tensor) -> FoundUpdates:
    """Return what every attention call and every feed-forward layer adds to the streams, and where a pass shows it.

    Args:
        samples: the sample of every token.
        real: which tokens are no padding.
    """
    seen = streams.seen
    tables, found, tensors = UpdateTables(), StreamUpdates.before_any(real), list[Tensor]()
    run = ReadPass(seen.calls, tensors, {x.number: x.module for x in seen.every})
    entries: list[tuple[Sum, int]] = []  # of the tables
    results = {id(place.tensor): place for place in streams.places if place.result}
    for event in streams.attentions:
        place = results[id(seen.calls[event.call].output)]
        if not _is_used(streams, event.call + 1, node_of(place.tensor)):
            continue
        try:
            _check_one_sample(event, samples)
            entered = _entering_sum(streams, event, place)
            if entered is None:
                tables.pools.add(event.call)
                continue
            tables.calls.append(_read(streams, _table(streams, event, place, *entered, tensors), run, found))
            entries.append(entered)
        except Unknown as why:
            raise SeamError(
                f"what attention call {event.call + 1} adds to its stream is not known: {why}. Take a method that "
                "reads attention maps only, such as gae."
            ) from None
    _find_feed_forward(streams, entries, samples, tensors, tables)
    found.read_layers(tables, run)
    shown = _taps(seen)
    tables.taps = [shown.get(id(x)) for x in tensors]
    return FoundUpdates(tables, [x.detach() for x in tensors], found)


def _taps(seen: TracedPass) -> dict[int, Tap]:
    """Return where each tensor was shown first, by its identity: by a module, else by a sum."""
    moments: list[tuple[int, int, Tap]] = []
    for x in seen.every:
        moments += [(x.begins, id(given), Tap(x.number, x.turn, place)) for place, given in enumerate(x.given)]
        moments.append((x.ends, id(x.gave), Tap(x.number, x.turn, None)))
    found: dict[int, Tap] = {}
    for _, name, tap in sorted(moments, key=lambda moment: moment[0]):
        found.setdefault(name, tap)
    for turn, one in enumerate(seen.sums):
        for place, x in enumerate(one.operands):
            found.setdefault(id(x), Tap(SUMS, turn, place))
    return found


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
    """Return True if the answer, or an attention call after so many, depends on this node of the graph."""
    later = [x for one in streams.seen.calls[after:] for x in (one.call.query, one.call.key, one.call.value)]
    return is_made_of([node_of(x) for x in (*later, *tensors_in(streams.seen.answer))], node)


def _entering_sum(streams: Streams, event: AttentionEvent, place: Place) -> tuple[Sum, int] | None:
    """Find the sum at which the result of a call enters its stream, and which operand is the state of the stream.

    A learned query has none: its result enters no stream.
    """
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
        return some, side
    if not from_data(call.query):
        return None
    raise Unknown("no sum was seen of it and of a state that its queries are made of")


def _table(
    streams: Streams, event: AttentionEvent, place: Place, some: Sum, side: int, tensors: list[Tensor]
) -> CallTable:
    """Tell which tokens the rows of a sum are that a call enters its stream by."""
    state, added = some.operands[side], some.operands[1 - side]
    own, channels = None, -1
    for channels in (-1, 1) if added.ndim == 4 else (-1,):
        own = _tokens(added, channels, place)
        if own is not None:
            break
    if own is None:
        raise Unknown("rows of what is added are made of more than one token")
    rows = torch.nonzero(own >= 0)[:, 0]
    at = rows_of(own[rows], event.queries.flatten(), streams.count)
    asked = rows_of(event.queries, own, streams.count)
    tokens = own
    for other in streams.places:  # to whose rows other calls add, as where queries attend in chunks
        missing = bool((rows_of(event.keys, tokens, streams.count) < 0).any())
        leaf = node_of(other.tensor) if missing and other.result else None
        if leaf is None or not reached([node_of(added)], {leaf}):
            continue
        more = _tokens(added, channels, other)
        if more is not None and not bool(torch.isin(more[more >= 0], tokens).any()):
            tokens = torch.where(tokens < 0, more, tokens)
    read = rows_of(event.keys, tokens, streams.count)
    return CallTable(event, _number(state, tensors), _number(added, tensors), channels, tokens, rows, at, asked, read)


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


def _read(streams: Streams, table: CallTable, run: ReadPass, found: StreamUpdates) -> CallTable:
    """Complete the table of a call by its projection and values, and read what it adds."""
    try:
        weight = _derivative(table, run)
    except Unknown:
        norm = _norm_between(streams, table, run)
        if norm is None:
            raise
        table = replace(table, norm=norm)
        weight = _derivative(table, run)
    if bool((table.read < 0).any()):
        x, of = _read_by_values(streams, table.event)
        table = replace(table, values=(_number(x, run.tensors), of))
    found.read_call(table, run, _behind_norm(table, run, weight))
    return replace(table, linear=_linear_layer(streams, table, run, weight))


def _linear_layer(streams: Streams, table: CallTable, run: ReadPass, weight: Tensor) -> int | None:
    """Find the plain linear layer that reads the heads' outputs as they are and gives what is projected as it is."""
    leaf, projected = (base_of(node_of(x)) for x in (run.calls[table.event.call].output, _projected(table, run)[0]))
    for one in streams.seen.every:
        same = projected is not None and base_of(node_of(one.gave)) is projected
        if not same or not is_plain(one.module) or base_of(node_of(one.given[0])) is not leaf:
            continue
        if torch.equal(_weight(one.module), weight):
            return one.number
    return None


def _norm_between(streams: Streams, table: CallTable, run: ReadPass) -> tuple[int, int, int] | None:
    """Find the norm whose result is what is added."""
    leaf, added = node_of(streams.seen.calls[table.event.call].output), run.tensors[table.added]
    for one in streams.seen.every if leaf is not None and table.channels == -1 else ():
        if one.gave is None or not one.given or not is_norm(one.module) or one.gave.shape != added.shape:
            continue
        if torch.equal(one.gave, added) and reached([node_of(one.given[0])], {leaf}):
            return one.number, _number(one.given[0], run.tensors), _number(one.gave, run.tensors)
    return None


def _read_by_values(streams: Streams, event: AttentionEvent) -> tuple[Tensor, Tensor]:
    """Return what the projection of the values was given: a tensor of vectors, and the token of each."""
    one = streams.seen.calls[event.call]
    value, data = one.call.value, _data(streams)
    if value is None:
        raise Unknown("its values are not known")
    heads = event.rows.of_keys(value, len(event.keys))
    numbers, entries = heads.numbers(value), heads.four(value.detach()).transpose(1, 2).flatten(2).flatten(0, 1)
    keys, found = event.keys.flatten().cpu(), None
    for x in reversed(one.before):
        fed = fed_singly([(value, numbers)], x, channels=-1)
        if fed is None or met_beside(node_of(value), node_of(x), data):  # adapters: it is one summand of the values
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


def _data(streams: Streams) -> set[Node]:
    """Return where the graph of a pass begins at data, and not at weights."""
    seen = streams.seen
    leaves = [*(one.output for one in seen.calls), *(vectors for _, vectors in seen.embedded)]
    given = [] if seen.inputs is None else tensors_in((seen.inputs.args, seen.inputs.kwargs))
    return {node for x in (*leaves, *given) if (node := node_of(x)) is not None}


def _find_feed_forward(
    streams: Streams, entries: list[tuple[Sum, int]], samples: Tensor, tensors: list[Tensor], tables: UpdateTables
) -> None:
    """Add the feed-forward layers in order: sums of a state of the stream and of what is made of it.

    Sums inside of what is added, as adapters make them, are none.
    """
    widths = {tensors[table.state].shape[table.channels] for table in tables.calls}
    of_calls = {id(some) for some, _ in entries}
    branches = [(some.nodes[1 - side], base_of(some.nodes[side])) for some, side in entries]
    results = [place for place in streams.places if place.result]
    for some in reversed(streams.seen.sums):
        side = None if id(some) in of_calls else _state_side(some)
        result = node_of(some.result)
        inner = any(result in reached([branch], {state, result}) for branch, state in branches if result is not None)
        if side is None or inner or not widths & {some.result.shape[-1], some.result.shape[1]}:
            continue
        if not _is_stream(streams, some, tables, tensors):  # as in the last block of a tower that is read before it
            continue
        branches.append((some.nodes[1 - side], base_of(some.nodes[side])))
        layer = _layer(some, side, results, samples, tensors)
        if layer is not None:
            tables.layers.insert(0, layer)
        elif not tables.assumed:
            tables.assumed.append(LOOSE)
    beside = []
    for table, (some, side) in zip(tables.calls, entries, strict=True):
        added = _added_beside(streams, some, side, node_of(streams.seen.calls[table.event.call].output))
        if added is not None:
            own = torch.full_like(table.tokens, -1).index_copy(0, table.rows, table.tokens[table.rows])
            rows = _by_sample(own, samples)
            operands, call = (table.state, _number(added, tensors)), table.event.call
            beside.append(FeedForward(*operands, table.channels, *rows, (call,), call + 1))
    tables.layers = sorted([*beside, *tables.layers], key=lambda layer: layer.after)


def _is_stream(streams: Streams, some: Sum, tables: UpdateTables, tensors: list[Tensor]) -> bool:
    """Return True if a sum becomes a state that later calls are added to or read, or the answer; not their operands."""
    later = [
        x for table in tables.calls if table.event.call >= some.after for x in (table.state, *(table.values or ())[:1])
    ]
    pooled = [streams.seen.calls[call].call for call in tables.pools if call >= some.after]
    ends = [*(tensors[number] for number in later), *(x for one in pooled for x in (one.query, one.key, one.value))]
    return is_made_of([node_of(x) for x in (*ends, *tensors_in(streams.seen.answer))], node_of(some.result))


def _added_beside(streams: Streams, entered: Sum, side: int, leaf: Node | None) -> Tensor | None:
    """Find what a feed-forward part beside attention gives: it is made of the same state, and of no result of the call.

    Either both results are summed first, or it is added to the sum of the state and of what attention gave.
    """
    state, added, total = base_of(entered.nodes[side]), base_of(entered.nodes[1 - side]), node_of(entered.result)
    for some in streams.seen.sums if state is not None and leaf is not None else ():
        for which in (0, 1):
            one, other = some.nodes[which], some.nodes[1 - which]
            both = node_of(some.result) is added and bool(reached([one], {leaf}))
            if not (both or base_of(one) is total) or reached([other], {leaf}) or not some.kept(1 - which):
                continue
            if reached([other], {state}) and base_of(other) is not state:
                return some.operands[1 - which]
    return None


def _state_side(some: Sum) -> int | None:
    """Tell which operand of a sum is a state that the other one is made of, not by an activation; None for none."""
    for side in (0, 1):
        state, other = base_of(some.nodes[side]), some.nodes[1 - side]
        if state is not None and state is not base_of(other) and reached([other], {state}):
            return side if some.kept(0) and some.kept(1) and not is_by_entry(other, state) else None
    return None


def _layer(some: Sum, side: int, results: list[Place], samples: Tensor, tensors: list[Tensor]) -> FeedForward | None:
    """A feed-forward layer on the tokens of the last attention calls that feed it; None where they cannot be told.

    Pictures that stand in one row may attend in a call of their own each, so one call need not feed all rows.
    """
    for channels in (-1, 1) if some.result.ndim == 4 else (-1,):
        tokens, calls = _fed_rows(some, channels, results)
        if tokens is not None:
            state, added = (_number(some.operands[which], tensors) for which in (side, 1 - side))
            return FeedForward(state, added, channels, *_by_sample(tokens, samples), calls, some.after)
    return None


def _by_sample(tokens: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of each sample, -1 where a sample has fewer, and the token of each of these."""
    known = torch.nonzero(tokens >= 0)[:, 0]
    of = samples[tokens[known]]
    rows = pad_sequence([known[of == sample] for sample in of.unique().tolist()], batch_first=True, padding_value=-1)
    return rows, torch.where(rows >= 0, tokens[rows.clamp(min=0)], -1)


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
