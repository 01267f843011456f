"""How the layers of a model with several streams transform the vectors of tokens.

Measured in the pass whose attention results are cut. What an attention call gives enters the residual stream at the
first sum of which one operand depends on it and the other is a state that its queries, or values, are made of. The map
from the heads' outputs to what is added is the derivative of that operand: it has to be the same at every token, but
for the statistics of a norm that stands between (`additions`). A feed-forward layer is a sum of a state of the stream
and of something that is made of this state alone.

The vector of a token that attention reads is the one that the same sum adds to. Tokens of another stream, which no sum
of this call adds to, are taken as the value projection reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vitrail.capture.additions import TOLERANCES, Unknown, norm_step
from vitrail.capture.coded_gradients import fed_singly
from vitrail.capture.cut_pass import CutCall, Normed, Sum, base_of
from vitrail.capture.executions import Node, from_data, node_of, reached, tensors_in
from vitrail.capture.recording import widen
from vitrail.capture.streams import AttentionEvent, Place, Rows, Streams
from vitrail.errors import SeamError

READ = "vectors of tokens that attention reads of another stream are those that the value projection is given"
LOOSE = "sums between attention calls whose tokens cannot be told take no part as feed-forward layers"


@dataclass(frozen=True, eq=False)
class AddedByCall:
    """What an attention call adds to a stream."""

    weight: Tensor  # from the heads' outputs to what is added, `[channels, heads * d]`
    rows: Tensor | None  # what a norm multiplies each query's row by beside, `[rows, q]`; None for one
    vectors: Tensor  # states of tokens, one in each row
    places: Tensor  # the row of `vectors` for every key `[rows, k]`, -1 where it has none

    def entering(self) -> Tensor:
        """The vector of every key, zero where it has none."""
        places = self.places.to(self.vectors.device)
        return self.vectors[places.clamp(min=0)] * (places >= 0)[..., None]


@dataclass(frozen=True, eq=False)
class FeedForward:
    """A feed-forward layer on the tokens of some samples, -1 where there is none."""

    tokens: Tensor
    entering: Tensor
    added: Tensor
    calls: tuple[int, ...]  # the last attention calls on the same tokens before: one, or one for each picture
    after: int  # how many attention calls came before

    def among_tokens(self, growth: Tensor, like: Tensor) -> Tensor:
        """Spread a factor of each of its rows over all tokens; one for those that it does not reach."""
        real = self.tokens >= 0
        found = torch.ones_like(like)
        found[self.tokens[real].to(like.device)] = growth.to(like)[real.to(like.device)]
        return found


@dataclass(eq=False)
class StreamChanges:
    """What all layers of a pass add to the streams."""

    real: Tensor  # which tokens are no padding
    lengths: Tensor  # of the first vector of every token; not a number where there is none
    calls: dict[int, AddedByCall] = field(default_factory=dict)  # by the number of the call
    pools: set[int] = field(default_factory=set)  # calls of a learned query that pools tokens: added to no stream
    layers: list[FeedForward] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Found:
    """The sum at which the result of a call enters its stream."""

    sum: Sum
    side: int  # which operand is the state of the stream
    channels: int
    tokens: Tensor  # the token of every row of the operands, -1 for none

    @property
    def state(self) -> Tensor:
        """The vectors that are added to, one in each row."""
        return flat(self.sum.operands[self.side], self.channels)

    @property
    def added(self) -> Tensor:
        """What is added, with its graph."""
        return self.sum.operands[1 - self.side]


def flat(x: Tensor, channels: int) -> Tensor:
    """A tensor as rows of channels, without its graph."""
    return widen(x.detach()).movedim(channels, -1).flatten(0, -2)


def changes(streams: Streams, samples: Tensor, real: Tensor) -> StreamChanges:
    """What every attention call and every feed-forward layer adds to the streams; `samples`: that of every token."""
    found = StreamChanges(real, torch.full((streams.count,), torch.nan, dtype=torch.float64))
    entered: list[_Found] = []
    results = {id(place.tensor): place for place in streams.places if place.result}
    for event in streams.attentions:
        one = streams.seen.calls[event.call]
        place = results[id(one.output)]
        if not _is_used(streams, event.call, place):
            continue
        try:
            if bool((samples[event.keys] != samples[event.keys][:, :1]).any()):  # as of pictures that stand in one row
                raise Unknown(
                    "tokens of several samples stand in one map, over which cosines are normalised: explain one alone"
                )
            where = _entered(streams, event, one, place)
            if where is None:
                found.pools.add(event.call)
                continue
            found.calls[event.call] = _added(streams, event, one, where, found)
            entered.append(where)
        except Unknown as why:
            raise SeamError(
                f"what attention call {event.call + 1} adds to its stream is not known: {why}. Take a method that "
                "reads attention maps only, such as gae."
            ) from None
    found.layers = _feed_forward(streams, entered, samples, found)
    return found


def _is_used(streams: Streams, call: int, place: Place) -> bool:
    """Whether the answer or a later attention call is made of what a call gave."""
    later = [x for one in streams.seen.calls[call + 1 :] for x in (one.call.query, one.call.key, one.call.value)]
    leaf = node_of(place.tensor)
    nodes = [node_of(x) for x in (*later, *tensors_in(streams.seen.answer))]
    return leaf is not None and bool(reached(nodes, {leaf}))


def _entered(streams: Streams, event: AttentionEvent, one: CutCall, place: Place) -> _Found | None:
    """The sum at which the result of a call enters its stream; None for a learned query, whose result enters none."""
    leaf = node_of(place.tensor)
    asks = [node_of(x) for x in (one.call.query, one.call.value, one.call.key) if x is not None]
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
        return _rows_of(some, side, place)
    if not from_data(one.call.query):
        return None
    raise Unknown("no sum was seen of it and of a state that its queries are made of")


def _rows_of(some: Sum, side: int, place: Place) -> _Found:
    added = some.operands[1 - side]
    for channels in (-1, 1) if added.ndim == 4 else (-1,):
        tokens = _tokens(added, channels, place)
        if tokens is not None:
            return _Found(some, side, channels, tokens)
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


def _added(streams: Streams, event: AttentionEvent, one: CutCall, where: _Found, found: StreamChanges) -> AddedByCall:
    weight, rows = _projection(streams, event, one, where)
    vectors, tokens = where.state, _with_other_calls(streams, event, where)
    _keep_lengths(found, vectors, tokens)
    places = _places(event.keys, tokens, streams.count)
    if bool((places < 0).any()):
        read, of = _read_by_values(streams, event, one)
        if read.shape[1] != vectors.shape[1]:
            raise Unknown(
                f"tokens of {read.shape[1]} channels are read into a stream of {vectors.shape[1]}, so directions "
                "cannot be compared"
            )
        of = torch.where(read.eq(0).all(dim=1).cpu(), -1, of)  # windows are filled up by vectors of zeros
        _keep_lengths(found, read, of)
        other = _places(event.keys, of, streams.count)
        places = torch.where(places < 0, torch.where(other < 0, -1, other + len(vectors)), places)
        vectors = torch.cat([vectors, read.to(vectors)])
        found.assumed = [READ] if bool((other >= 0).any()) else found.assumed
    # No ratio to a vector of length zero is defined.
    read = places[(places >= 0) & found.real[event.keys]].unique()
    zero = vectors[read.to(vectors.device)].eq(0).all(dim=1)
    if bool(zero.any()):
        raise Unknown(
            f"{int(zero.sum())} of {len(read)} tokens are vectors of zeros in their stream, as queries of a detector "
            "are at first, so that no change of length is defined"
        )
    return AddedByCall(weight, rows, vectors, places)


def _with_other_calls(streams: Streams, event: AttentionEvent, where: _Found) -> Tensor:
    """The token of every row of the state, also of rows to which other calls add, as where queries attend in chunks."""
    tokens = where.tokens
    for other in streams.places:
        missing = bool((_places(event.keys, tokens, streams.count) < 0).any())
        leaf = node_of(other.tensor) if missing and other.result else None
        if leaf is None or not reached([node_of(where.added)], {leaf}):
            continue
        more = _tokens(where.added, where.channels, other)
        if more is not None and not bool(torch.isin(more[more >= 0], tokens).any()):
            tokens = torch.where(tokens < 0, more, tokens)
    return tokens


def _places(wanted: Tensor, tokens: Tensor, count: int) -> Tensor:
    """The row that each wanted token has, -1 for none."""
    rows = torch.full((count,), -1)
    known = tokens >= 0
    rows[tokens[known]] = torch.arange(len(tokens))[known]
    return rows[wanted.cpu()]


def _keep_lengths(found: StreamChanges, vectors: Tensor, tokens: Tensor) -> None:
    """Keep the length of the first vector that is known of each token."""
    known = tokens >= 0
    new = tokens[known]
    lengths = vectors.norm(dim=1).double().cpu()[known]
    found.lengths[new] = torch.where(found.lengths[new].isnan(), lengths, found.lengths[new])


def _projection(streams: Streams, event: AttentionEvent, one: CutCall, where: _Found) -> tuple[Tensor, Tensor | None]:
    """The map from the heads' outputs to what is added, and what a norm multiplies each query's row by."""
    try:
        return _matrix(event, one, where.added, where.channels, where.tokens), None
    except Unknown:
        norm = _norm_between(streams, one, where)
        if norm is None:
            raise
    tokens = where.tokens
    weight = _matrix(event, one, norm.given, -1, tokens)
    given, gave = (flat(x, -1)[None] for x in (norm.given, norm.gave))
    centred, gain, factor = norm_step(norm.module, given, gave, norm.gave.dtype)
    weight = gain[:, None] * (weight - weight.mean(dim=0) if centred else weight)
    if factor is None:
        return weight, None
    places = _places(event.queries, tokens, streams.count)
    return weight, factor.flatten()[places.clamp(min=0).to(factor.device)] * (places >= 0).to(factor)


def _norm_between(streams: Streams, one: CutCall, where: _Found) -> Normed | None:
    """The norm whose result is what is added."""
    leaf, added = node_of(one.output), where.added
    for norm in streams.seen.norms if leaf is not None and where.channels == -1 else ():
        same = norm.gave.shape == added.shape and bool((norm.gave == added).all())
        if same and reached([node_of(norm.given)], {leaf}):
            return norm
    return None


def _matrix(event: AttentionEvent, one: CutCall, x: Tensor, channels: int, tokens: Tensor) -> Tensor:
    """The derivative `[channels, heads * d]` of rows of a tensor by the heads' outputs, the same at all tokens.

    One backward pass gives one row of it at every token, so that as many are needed as there are channels by token.
    """
    rows = torch.nonzero(tokens >= 0)[:, 0]
    at = _places(tokens[rows], event.queries.flatten(), int(max(tokens.max(), event.queries.max())) + 1)
    width = x.shape[channels]
    found = []
    for some in torch.arange(width).split(len(rows)):
        seed = torch.zeros(len(tokens), width, dtype=x.dtype, device=x.device)
        seed[rows[: len(some)].to(x.device), some.to(x.device)] = 1
        found.append(_pulled(event.rows, one, x, channels, seed)[at[: len(some)].to(x.device)])
    weight = torch.cat(found)
    again = torch.randn(width, generator=torch.Generator().manual_seed(0)).to(x)
    seed = torch.zeros(len(tokens), width, dtype=x.dtype, device=x.device)
    seed[rows.to(x.device)] = again
    each, wanted = _pulled(event.rows, one, x, channels, seed)[at.to(x.device)], widen(again) @ weight
    allowed = TOLERANCES.get(x.dtype, 5e-2) * wanted.abs().amax()
    if bool((each - wanted).abs().amax() > allowed):
        raise Unknown("it is not the same linear map at every token: an activation, a gate or a norm stands between")
    return weight


def _pulled(rows: Rows, one: CutCall, x: Tensor, channels: int, seed: Tensor) -> Tensor:
    """The gradient at the heads' outputs, one row `[heads * d]` for each query."""
    assert one.output is not None
    shaped = seed.view(*x.movedim(channels, -1).shape).movedim(-1, channels)
    (gradient,) = torch.autograd.grad(x, one.output, shaped, retain_graph=True)
    return widen(rows.four(gradient.permute(one.order))).transpose(1, 2).flatten(2).flatten(0, 1)


def _read_by_values(streams: Streams, event: AttentionEvent, one: CutCall) -> tuple[Tensor, Tensor]:
    """What the projection of the values was given: vectors, and the token of each."""
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
        found = flat(x, -1), tokens
        first = int(torch.nonzero(rows >= 0)[0])
        if not bool(torch.isin(entries[rows[first]], x.detach().flatten(0, -2)[first]).all()):
            return found
    if found is None:
        raise Unknown("the vectors that its values are made of were not seen")
    return found


def _feed_forward(
    streams: Streams, entered: Sequence[_Found], samples: Tensor, found: StreamChanges
) -> list[FeedForward]:
    """The feed-forward layers in order: sums of a state of the stream and of what is made of it."""
    widths = {where.state.shape[1] for where in entered}
    of_calls = {id(where.sum) for where in entered}
    branches: list[tuple[Node, Node]] = []
    made: list[FeedForward] = []
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
        layer = _layer(some, side, results, samples)
        if layer is None:
            found.assumed += [] if LOOSE in found.assumed else [LOOSE]
        else:
            made.append(layer)
    return made[::-1]


def _state_side(some: Sum) -> int | None:
    """Which operand of a sum is a state that the other one is made of; None for neither."""
    for side in (0, 1):
        state, other = base_of(some.nodes[side]), some.nodes[1 - side]
        if state is not None and state is not base_of(other) and reached([other], {state}):
            return side if some.kept(0) and some.kept(1) else None
    return None


def _layer(some: Sum, side: int, results: list[Place], samples: Tensor) -> FeedForward | None:
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
            real, wanted = rows >= 0, rows.clamp(min=0)
            state, added = (
                flat(x, channels)[wanted.to(x.device)] for x in (some.operands[side], some.operands[1 - side])
            )
            return FeedForward(torch.where(real, tokens[wanted], -1), state, added, calls, some.after)
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
