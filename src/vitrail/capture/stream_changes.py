"""How the layers of a model with several streams transform the vectors of tokens, read off one pass.

`change_tables` finds once which tensors of a pass hold a state of a stream and what is added to it, and which tokens
their rows are. Here the numbers are read, in every pass. The map from the heads' outputs to what an attention call adds
is the derivative of what is added: it has to be the same at every token, but for the statistics of a norm that stands
between (`additions`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vitrail.capture.additions import TOLERANCES, Unknown, norm_step
from vitrail.capture.cut_pass import CutCall
from vitrail.capture.recording import widen
from vitrail.capture.signature import GraphPlace
from vitrail.capture.streams import AttentionEvent
from vitrail.capture.taps import Tap

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
class CallTable:
    """Where a pass shows what an attention call adds to its stream.

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


@dataclass(frozen=True, eq=False)
class FeedForwardTable:
    """Where a pass shows a feed-forward layer.

    Args:
        state, added: the numbers of the tensors that are summed.
        channels: their axis of channels.
        rows: their rows of each sample, -1 where a sample has fewer.
        tokens: the token of each of these.
        calls, after: as in `FeedForward`.
    """

    state: int
    added: int
    channels: int
    rows: Tensor
    tokens: Tensor
    calls: tuple[int, ...]
    after: int


@dataclass(eq=False)
class ChangeTables:
    """Where a pass shows all that its layers add to the streams: tables alone, and no tensor of the pass.

    Args:
        taps: where modules show each tensor, by its number; None where none does.
        places: where each stands in the graph: the number of a node of the route, and the edges that lead to it.
        shapes: of the tensors.
    """

    taps: list[Tap | None] = field(default_factory=list)
    places: list[GraphPlace] = field(default_factory=list)
    shapes: list[torch.Size] = field(default_factory=list)
    calls: list[CallTable] = field(default_factory=list)
    pools: set[int] = field(default_factory=set)
    layers: list[FeedForwardTable] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class ChangingPass:
    """The tensors of one pass that changes are read off.

    Args:
        calls: all attention calls, with what each gave as the graph has it.
        tensors: those that tables name by their numbers.
        modules: all modules of the model.
    """

    calls: Sequence[CutCall]
    tensors: list[Tensor]
    modules: Sequence[nn.Module]


def no_changes(real: Tensor) -> StreamChanges:
    """Return what is known before any layer has been read.

    Args:
        real: which tokens are no padding.
    """
    return StreamChanges(real, torch.full(real.shape, torch.nan, dtype=torch.float64))


def read_changes(tables: ChangeTables, run: ChangingPass, real: Tensor) -> StreamChanges:
    """Return what the layers of a pass add to the streams; raise `Unknown` where that cannot be told."""
    found = no_changes(real)
    for table in tables.calls:
        found.calls[table.event.call] = read_call(table, run, found)
    add_layers(tables, run, found)
    return found


def add_layers(tables: ChangeTables, run: ChangingPass, found: StreamChanges) -> None:
    """Add the feed-forward layers, and what was found once, to what attention calls add."""
    found.layers += [_read_layer(table, run) for table in tables.layers]
    found.pools |= tables.pools
    found.assumed += tables.assumed


def flat(x: Tensor, channels: int) -> Tensor:
    """A tensor as rows of channels, without its graph."""
    return widen(x.detach()).movedim(channels, -1).flatten(0, -2)


def rows_of(wanted: Tensor, tokens: Tensor, count: int) -> Tensor:
    """Return the row that each wanted token has, -1 for none."""
    rows = torch.full((count,), -1)
    known = tokens >= 0
    rows[tokens[known]] = torch.arange(len(tokens))[known]
    return rows[wanted.cpu()]


def read_call(table: CallTable, run: ChangingPass, found: StreamChanges) -> AddedByCall:
    """Return what an attention call adds to its stream."""
    return added_by(table, read_projection(table, run), run, found)


Projection = tuple[Tensor, Tensor | None]
"""The map from the heads' outputs to what is added, and what a norm multiplies each query's row by."""


def added_by(table: CallTable, projection: Projection, run: ChangingPass, found: StreamChanges) -> AddedByCall:
    """Return what a call adds by its projection; keep the lengths of vectors that are met for the first time."""
    vectors, places = flat(run.tensors[table.state], table.channels), table.read
    _keep_lengths(found, vectors, table.tokens)
    if table.values is not None:
        vectors, places = _with_values(table, table.values, run, vectors, found)
    _check_no_zeros(vectors, places, found.real[table.event.keys])
    return AddedByCall(*projection, vectors, places)


def _read_layer(table: FeedForwardTable, run: ChangingPass) -> FeedForward:
    wanted = table.rows.clamp(min=0)
    tensors = (flat(run.tensors[number], table.channels) for number in (table.state, table.added))
    state, added = (x[wanted.to(x.device)] for x in tensors)
    return FeedForward(table.tokens, state, added, table.calls, table.after)


def _with_values(
    table: CallTable, values: tuple[int, Tensor], run: ChangingPass, vectors: Tensor, found: StreamChanges
) -> tuple[Tensor, Tensor]:
    """Vectors of the stream and, below them, those that values are made of; the row of every key among both."""
    read, tokens = flat(run.tensors[values[0]], -1), values[1]
    if read.shape[1] != vectors.shape[1]:
        raise Unknown(
            f"tokens of {read.shape[1]} channels are read into a stream of {vectors.shape[1]}, so directions cannot be "
            "compared"
        )
    tokens = torch.where(read.eq(0).all(dim=1).cpu(), -1, tokens)  # windows are filled up by vectors of zeros
    _keep_lengths(found, read, tokens)
    other = rows_of(table.event.keys, tokens, len(found.real))
    found.assumed = [READ] if bool((other >= 0).any()) else found.assumed
    below = torch.where(other < 0, -1, other + len(vectors))
    return torch.cat([vectors, read.to(vectors)]), torch.where(table.read < 0, below, table.read)


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


def _keep_lengths(found: StreamChanges, vectors: Tensor, tokens: Tensor) -> None:
    """Keep the length of the first vector that is known of each token."""
    new = (tokens >= 0) & found.lengths[tokens.clamp(min=0)].isnan()
    if bool(new.any()):
        found.lengths[tokens[new]] = vectors.norm(dim=1).double().cpu()[new]


def read_projection(table: CallTable, run: ChangingPass) -> Projection:
    """Return the projection of a call; raise `Unknown` if it is not the same linear map at every token."""
    if table.norm is None:
        return _matrix(table, run, run.tensors[table.added], table.channels), None
    number, given, gave = table.norm
    weight = _matrix(table, run, run.tensors[given], -1)
    before, after = (flat(run.tensors[x], -1)[None] for x in (given, gave))
    centred, gain, factor = norm_step(run.modules[number], before, after, run.tensors[gave].dtype)
    weight = gain[:, None] * (weight - weight.mean(dim=0) if centred else weight)
    if factor is None:
        return weight, None
    asked = table.asked.to(factor.device)
    return weight, factor.flatten()[asked.clamp(min=0)] * (asked >= 0).to(factor)


def _matrix(table: CallTable, run: ChangingPass, x: Tensor, channels: int) -> Tensor:
    """The derivative `[channels, heads * d]` of rows of a tensor by the heads' outputs, the same at all tokens.

    One backward pass gives one row of it at every token, so that as many are needed as there are channels by token.
    """
    one, rows, at = run.calls[table.event.call], table.rows.to(x.device), table.at.to(x.device)
    width, found = x.shape[channels], []
    for some in torch.arange(width, device=x.device).split(len(rows)):
        seed = torch.zeros(len(table.tokens), width, dtype=x.dtype, device=x.device)
        seed[rows[: len(some)], some] = 1
        found.append(_pulled(table.event, one, x, channels, seed)[at[: len(some)]])
    weight = torch.cat(found)
    again = torch.randn(width, generator=torch.Generator().manual_seed(0)).to(x)
    seed = torch.zeros(len(table.tokens), width, dtype=x.dtype, device=x.device)
    seed[rows] = again
    each, wanted = _pulled(table.event, one, x, channels, seed)[at], widen(again) @ weight
    allowed = TOLERANCES.get(x.dtype, 5e-2) * wanted.abs().amax()
    if bool((each - wanted).abs().amax() > allowed):
        raise Unknown("it is not the same linear map at every token: an activation, a gate or a norm stands between")
    return weight


def _pulled(event: AttentionEvent, one: CutCall, x: Tensor, channels: int, seed: Tensor) -> Tensor:
    """The gradient at the heads' outputs, one row `[heads * d]` for each query."""
    assert one.output is not None
    shaped = seed.view(*x.movedim(channels, -1).shape).movedim(-1, channels)
    (gradient,) = torch.autograd.grad(x, one.output, shaped, retain_graph=True)
    return widen(event.rows.four(gradient.permute(one.order))).transpose(1, 2).flatten(2).flatten(0, 1)
