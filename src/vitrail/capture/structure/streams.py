"""Several sequences of tokens in one model: which tokens every attention call reads, measured in one pass.

A model may have an encoder and a decoder, a vision tower below a language model, or stages that merge their tokens. All
tokens of all sequences get one number each. An attention call is then two tables: the token of every query row and
the token of every key row. Where rows are made of tokens in another way than one by one (patches that are merged, image
tokens that enter a language model), the rows are new tokens, and a `Transition` says which tokens they are made of.

In the pass that is measured (`structure.trace`), what attention gives is cut from the graph. The paths that are left
lead from a token to what is made of this token alone. Gradients with codes (`token_codes`) tell which row of a
later operand each row of an earlier result feeds. Whatever mixes tokens between two attention calls, as a convolution
does, is refused.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitrail.capture.structure.token_codes import MIXED, NOWHERE, sources
from vitrail.capture.structure.trace import TracedCall, TracedPass
from vitrail.errors import SeamError


@dataclass(frozen=True)
class RowLayout:
    """The layout of the rows of an operand in its axes: `[rows, heads, positions, channels]` after `four`."""

    heads: int | None  # the axis of the heads; None where there is no such axis
    folded: int = 1  # how many heads are folded into the first axis of an operand `[rows * heads, positions, channels]`

    def four(self, x: Tensor) -> Tensor:
        """An operand, or a map, with four axes."""
        if self.heads is not None:
            return x.movedim(self.heads, -3).flatten(0, -4) if x.ndim > 4 else x
        return x.reshape(-1, self.folded, *x.shape[-2:])

    def four_of_mask(self, x: Tensor) -> Tensor:
        """A mask or a map with four axes, of which the first three may be one."""
        folded = self.heads is None and x.ndim == 3 and x.shape[0] > 1
        return self.four(x) if folded or x.ndim > 4 else x[(None,) * (4 - x.ndim)]

    def of_keys(self, x: Tensor, count: int) -> "RowLayout":
        """Return the layout of so many rows in keys or values, which may have another number of heads."""
        return self if self.heads is not None else RowLayout(None, x.shape[0] // count)

    def numbers(self, x: Tensor) -> Tensor:
        """The number of the row that every entry of an operand belongs to."""
        four = self.four(x)
        count = four.shape[0] * four.shape[2]
        rows = torch.arange(count, device=x.device).view(four.shape[0], 1, four.shape[2], 1)
        return self.back(rows.expand(-1, four.shape[1], -1, -1), x.shape)

    def back(self, four: Tensor, shape: torch.Size) -> Tensor:
        """Return a tensor with the four axes in the axes of the operand; the last axis is one."""
        if self.heads is None:
            return four.reshape(*shape[:-1], 1)
        if len(shape) == 4:
            return four
        lead = [n for axis, n in enumerate(shape[:-2]) if axis != self.heads]
        return four.unflatten(0, lead).movedim(-3, self.heads)


@dataclass(frozen=True, eq=False)
class AttentionEvent:
    """One attention call."""

    call: int  # its number among the calls of the pass
    queries: Tensor  # the token of every query row, `[rows, q]`
    keys: Tensor  # the token of every key row, `[rows, k]`
    rows: RowLayout
    beside: int | None = None
    """The first of the calls that this one stands beside: all of them read tokens as they were before any of them gave
    to one. None where it stands alone."""
    in_order: bool = False
    """Whether queries and keys are all tokens of one sequence in order: rows of relevance are read as they are then."""

    @property
    def joined(self) -> Tensor:
        """Tokens of one sample in each row."""
        return torch.cat([self.queries, self.keys], dim=1)


@dataclass(frozen=True, eq=False)
class Transition:
    """Tokens that are made of others: token `target[i]` consists of `source[i]` to the share `share[i]`."""

    source: Tensor
    target: Tensor
    share: Tensor

    def pass_on(self, relevance: Tensor) -> Tensor:
        """Give the tokens that others are made of their shares of what these have."""
        source, target = self.source.to(relevance.device), self.target.to(relevance.device)
        return relevance.index_add(0, source, self.share.to(relevance) * relevance[target])

    @property
    def joined(self) -> Tensor:
        """Tokens of one sample in each row."""
        return torch.stack([self.source, self.target], dim=1)


@dataclass(frozen=True, eq=False)
class Sequence:
    """Tokens that began together, numbered from `first` on, in the order of rows."""

    first: int
    rows: tuple[int, int]  # how many rows of how many positions the call had that read them first
    operand: Tensor  # the queries or keys that read them first
    layout: RowLayout
    begins: int  # how many attention calls came before
    queries: bool  # whether they ask; else they are only read, as thinned out keys are

    @property
    def count(self) -> int:
        """The number of its tokens."""
        return self.rows[0] * self.rows[1]

    @property
    def tokens(self) -> Tensor:
        """The numbers of its tokens."""
        return torch.arange(self.first, self.first + self.count)


@dataclass(eq=False)
class Place:
    """A tensor of the pass, and which token each of its positions belongs to."""

    tensor: Tensor
    tokens: Tensor
    channels: int
    named: Tensor  # the tokens, each once
    sequences: frozenset[int]
    result: bool = False  # whether it is what an attention call gave
    after: "AttentionEvent | Transition | None" = None  # what happened last before


@dataclass(frozen=True, eq=False)
class _Made:
    """The tokens that the rows of an operand are made of."""

    pairs: Tensor  # of a row and a token
    earlier: tuple[tuple[Place, Tensor], ...] = ()
    """Such pairs by the place that tells them, for rows that are made of a token as it was before it became other rows
    of the same operand."""


@dataclass(eq=False)
class Streams:
    """All tokens of a pass, and all that happens between them, in the order of the forward pass."""

    events: list[AttentionEvent | Transition]
    sequences: list[Sequence]
    places: list[Place]
    seen: TracedPass
    since: dict[tuple[int, int], int] = field(default_factory=dict)
    """By source and target, how many places there were when the last transition between two sequences was found."""
    assumed: list[str] = field(default_factory=list)
    """What was not measured."""

    @property
    def count(self) -> int:
        """The number of all tokens."""
        return sum(sequence.count for sequence in self.sequences)

    @property
    def sequence_of(self) -> Tensor:
        """The sequence of every token."""
        return torch.cat([torch.full((s.count,), i) for i, s in enumerate(self.sequences)])

    def known_until(self, sequences: frozenset[int]) -> dict[int, int]:
        """The sequences that these are made of, each with the number of places up to which that is known."""
        found: dict[int, int] = {}
        waiting = list(sequences)
        while waiting:
            target = waiting.pop()
            for (source, end), until in self.since.items():
                if end == target and until > found.get(source, -1):
                    found[source] = until
                    waiting.append(source)
        return found

    def up_to_date(self, source: int, target: int) -> bool:
        """Return True if no attention has run since the last transition between two sequences was found."""
        until = self.since.get((source, target))
        return until is not None and not any(place.result for place in self.places[until:])

    @property
    def attentions(self) -> list[AttentionEvent]:
        """The attention calls alone."""
        return [event for event in self.events if isinstance(event, AttentionEvent)]

    def is_plain(self, *, pooled: bool) -> bool:
        """Return True if every call is self-attention on one sequence in one order, so that nothing here is needed.

        Args:
            pooled: whether the last call is a pooling query over the same sequence.
        """
        calls = self.attentions[: len(self.attentions) - pooled]
        same = [torch.equal(event.queries, event.keys) and torch.equal(event.keys, calls[0].keys) for event in calls]
        if len(self.sequences) != 1 + pooled or not all(same):
            return False
        # A query that pools is made of no token; else a sequence becomes another one.
        return not pooled or (not self.since and (not calls or torch.equal(self.attentions[-1].keys, calls[0].keys)))


def measured(seen: TracedPass) -> Streams:
    """The streams of a pass, call after call."""
    streams = Streams([], [], [], seen)
    for index, one in enumerate(seen.calls):
        _add_call(streams, index, one)
    return streams


def _add_call(streams: Streams, index: int, one: TracedCall) -> None:
    """Take one call: which tokens ask, which are read, and which token each row of the result belongs to."""
    query = one.call.query
    key = one.call.key if one.call.key is not None else one.call.value
    if query is None or key is None or one.output is None or not one.order:
        raise SeamError(
            f"attention call {index + 1} is written in a way whose queries and keys cannot be told: "
            f"{one.call.no_query or 'its values are projected on the way'}. Use a gradient method."
        )
    rows, queries = _queries(streams, index, one, query)
    _check_asked_together(streams, index, queries, key)
    keys = _keys(streams, index, one, key, rows, queries)
    streams.events.append(AttentionEvent(index, queries, keys, rows))
    straight = one.output.permute(one.order)
    numbers = rows.back(queries[:, None, :, None].expand(-1, rows.four(straight).shape[1], -1, -1), straight.shape)
    back = torch.argsort(torch.tensor(one.order)).tolist()
    channels = back[-1]
    tokens = numbers.permute(back).squeeze(channels) if numbers.ndim == straight.ndim else numbers
    streams.places.append(_place(streams, one.output, tokens.cpu(), channels, result=True))


def _place(streams: Streams, tensor: Tensor, tokens: Tensor, channels: int, *, result: bool) -> Place:
    named = tokens[tokens >= 0].unique()
    sequences = frozenset(streams.sequence_of[named].unique().tolist())
    return Place(tensor, tokens, channels, named, sequences, result, streams.events[-1] if streams.events else None)


def layouts(x: Tensor) -> list[RowLayout]:
    """The ways in which rows and heads may lie in the axes of an operand, the usual one first."""
    if x.ndim == 3:
        return [RowLayout(None, n) for n in range(1, x.shape[0] + 1) if x.shape[0] % n == 0]
    return [RowLayout(axis) for axis in range(1, x.ndim - 2)]


def _queries(streams: Streams, index: int, one: TracedCall, query: Tensor) -> tuple[RowLayout, Tensor]:
    """Return the layout of the rows of a call, and the token of every query row."""
    refusal: SeamError | None = None
    for rows in layouts(query):
        shape = rows.four(query).shape
        try:
            made = _relation(streams, index, query, rows.numbers(query))
            none = len(made.pairs) == 0
            straight = _one_to_one(made.pairs, shape[0] * shape[2]) is not None
            links = [] if straight else _links(index, one, query, rows, needed=none)
        except SeamError as error:
            refusal = error
            continue
        if none and not links:
            continue
        before = streams.count
        tokens = _settled(streams, made, Sequence(before, (shape[0], shape[2]), query, rows, index, queries=True))
        if streams.count > before:
            _name(streams, links, tokens)
        return rows, tokens.view(shape[0], shape[2])
    raise refusal or SeamError(
        f"the queries of attention call {index + 1} depend on no tensor that a module was given. Use a gradient method."
    )


def _check_asked_together(streams: Streams, index: int, queries: Tensor, key: Tensor) -> None:
    """Refuse queries of tokens that stand in one sequence with tokens that ask in another call beside this one."""
    asked = set(streams.sequence_of[queries].unique().tolist())
    with_others = {source for source, target in streams.since if target in asked}
    if not with_others or all(streams.sequences[number].queries for number in asked):
        return
    results = [place.tensor for place in streams.places if place.result and place.sequences & with_others]
    if not key.requires_grad or not results:
        return
    gradients = torch.autograd.grad(key.sum(), results, retain_graph=True, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise SeamError(
            f"attention call {index + 1} asks for {queries.shape[1]} tokens and reads others as they were before those "
            "asked: attention takes its queries some at a time, so no one map of them can be walked. Use a method that "
            "follows gradients to the embeddings, such as attn_lrp or integrated_gradients."
        )


def _keys(streams: Streams, index: int, one: TracedCall, key: Tensor, rows: RowLayout, queries: Tensor) -> Tensor:
    """The token of every key row."""
    heads = rows.of_keys(key, len(queries))
    shape = heads.four(key).shape
    count = shape[0] * shape[2]
    made = _relation(streams, index, key, heads.numbers(key))
    if len(made.pairs[:, 0].unique()) < count and one.call.query is not None:
        _name(streams, _links(index, one, one.call.query, rows, needed=False), queries.flatten())
        made = _relation(streams, index, key, heads.numbers(key))
    new = Sequence(streams.count, (shape[0], shape[2]), key, heads, index, queries=False)
    tokens = _settled(streams, made, new)
    never_ask = tokens.index_fill(0, made.pairs[:, 0], -1)
    if bool((never_ask >= 0).any()):  # later calls read the same ones
        _name(streams, _links(index, one, key, heads, needed=False), never_ask)
    return tokens.view(shape[0], shape[2])


def _one_to_one(pairs: Tensor, count: int) -> Tensor | None:
    """The token of every row, if every row is one token and no token is two rows; else None."""
    if len(pairs) != count or len(pairs[:, 0].unique()) != count or len(pairs[:, 1].unique()) != count:
        return None
    return pairs[pairs[:, 0].argsort(), 1]


def _settled(streams: Streams, made: _Made, new: Sequence) -> Tensor:
    """The token of every row: those of a sequence that goes on, or new ones, made of others by transitions."""
    pairs = made.pairs
    tokens = _one_to_one(pairs, new.count)
    if tokens is not None:
        return tokens
    of = streams.sequence_of[pairs[:, 1]] if len(pairs) else pairs[:, 1]
    parts = {sequence: pairs[of == sequence] for sequence in of.unique().tolist()}
    going_on = {i: found for i, part in parts.items() if (found := _one_to_one(part, new.count)) is not None}
    if going_on:
        same = max(going_on)
        tokens = going_on[same]
    else:
        streams.sequences.append(new)
        same, tokens = len(streams.sequences) - 1, new.tokens
    for sequence, part in parts.items():
        if sequence != same and not streams.up_to_date(sequence, same):
            streams.events.append(_transition(part, tokens))
            streams.since[sequence, same] = len(streams.places)
    for place, part in made.earlier:  # the walk meets it where the tokens are as they were then
        where = 0 if place.after is None else streams.events.index(place.after) + 1
        streams.events.insert(where, _transition(part, tokens))
    return tokens


def _transition(pairs: Tensor, tokens: Tensor) -> Transition:
    """Rows, whose tokens are given, that are made of other tokens in equal shares."""
    share = 1 / torch.bincount(pairs[:, 0], minlength=len(tokens))[pairs[:, 0]].double()
    return Transition(pairs[:, 1], tokens[pairs[:, 0]], share)


def _relation(streams: Streams, index: int, operand: Tensor, numbers: Tensor) -> _Made:
    """Return the tokens that the rows of an operand are made of.

    Places are asked from the last to the first. What the tokens found so far are made of is asked again only for rows
    that nothing was found to feed.
    """
    pairs, earlier = [torch.zeros(0, 2, dtype=torch.long)], []
    known: frozenset[int] = frozenset()
    found_tokens = torch.zeros(streams.count, dtype=torch.bool)
    covered = torch.zeros(int(numbers.max()) + 1, dtype=torch.bool)

    def is_known(place: Place, number: int) -> bool:
        until = streams.known_until(known)
        return all(number < until.get(i, -1) for i in place.sequences)

    def open_question(number: int) -> bool:
        place = streams.places[number]
        return not bool(covered.all()) or not (is_known(place, number) or place.sequences <= known)

    for number, found in _fed(streams, operand, numbers, open_question):
        place = streams.places[number]
        if bool((found == MIXED).any()) and bool(covered.any()) and not bool(covered.all()):
            found = _fed_besides(place, operand, numbers, covered)
        if bool((found == MIXED).any()):
            if place.result:
                raise SeamError(_mixing(index, int((found == MIXED).sum()), found.numel()))
            continue
        here = _pairs_of(place, found, ~covered if is_known(place, number) else torch.ones_like(covered))
        if len(here) == 0:
            continue
        again = found_tokens[here[:, 1]] & ~covered[here[:, 0]]
        earlier += [(place, here[again])] if bool(again.any()) else []
        pairs.append(here[~again])
        known |= frozenset(streams.sequence_of[here[:, 1]].unique().tolist())
        found_tokens[here[:, 1]] = True
        covered[here[:, 0]] = True
    every = torch.cat(pairs)
    return _Made(_unique(*every.T) if len(every) else every, tuple(earlier))


def _pairs_of(place: Place, found: Tensor, rows: Tensor) -> Tensor:
    """Every one of some rows that a place feeds, with the token that feeds it.

    Args:
        found: the row that every position of the place feeds.
        rows: which rows are asked for.
    """
    fed = (found >= 0) & (place.tokens >= 0) & rows[found.clamp(min=0)]
    return _unique(found[fed], place.tokens[fed]) if bool(fed.any()) else torch.zeros(0, 2, dtype=torch.long)


def _fed_besides(place: Place, operand: Tensor, numbers: Tensor, covered: Tensor) -> Tensor:
    """The row that every position of a place feeds, of those rows that nothing later was found to feed."""
    done = covered.to(numbers.device)[numbers]
    open_rows = torch.where(done, operand.detach(), operand)
    (found,) = sources([(open_rows, numbers)], [place.tensor], channels=place.channels)
    return torch.full(place.tokens.shape, NOWHERE) if found is None else found.cpu()


def _fed(
    streams: Streams, operand: Tensor, numbers: Tensor, open_question: Callable[[int], bool]
) -> Iterator[tuple[int, Tensor]]:
    """By place, from the last to the first, the row of an operand that every position feeds.

    Twice as many places are asked each time: the last ones mostly answer, and a gradient for many costs little more
    than for one.

    Args:
        open_question: whether a place still has to be asked, after those before it were.
    """
    left, most = list(range(len(streams.places) - 1, -1, -1)), 1
    while left := [number for number in left if open_question(number)]:
        asked, left, most = left[:most], left[most:], 2 * most
        answers: dict[int, Tensor | None] = {}
        for axis in {streams.places[number].channels for number in asked}:
            same = [number for number in asked if streams.places[number].channels == axis]
            found = sources([(operand, numbers)], [streams.places[i].tensor for i in same], channels=axis)
            answers |= dict(zip(same, found, strict=True))
        for number in asked:
            if (answer := answers[number]) is not None and open_question(number):
                yield number, answer.cpu()


def _unique(rows: Tensor, tokens: Tensor) -> Tensor:
    """Every pair once, in the order of rows."""
    most = int(tokens.max()) + 1
    both = (rows * most + tokens).unique()
    return torch.stack([both // most, both % most], dim=1)


def _mixing(index: int, mixed: int, count: int, *, what: str = "positions") -> str:
    return (
        f"before attention call {index + 1}, {mixed} of {count} {what} feed more than one row: tokens are mixed "
        "between two attention calls by something else than attention, such as a convolution, pooling with overlap, a "
        "recurrence or attention over channels. Attention maps alone do not tell what such a model looked at. Use a "
        "gradient method, such as integrated_gradients or input_x_gradient."
    )


def _links(
    index: int, one: TracedCall, query: Tensor, rows: RowLayout, *, needed: bool
) -> list[tuple[Tensor, Tensor, int]]:
    """Tensors before this call that feed the query rows one by one: the row of every position.

    Args:
        needed: raise if there is none and tokens are mixed.
    """
    found, mixed = [], 0
    for channels, some in ((-1, one.before), (1, [x for x in one.before if x.ndim == 4])):
        for x, fed in zip(some, sources([(query, rows.numbers(query))], some, channels=channels), strict=True):
            if fed is None:
                continue
            mixed += int((fed == MIXED).all())
            fed_rows = fed[fed >= 0]
            single = len(fed_rows.unique()) == len(fed_rows) > 0  # else the positions are other tokens than the rows
            if single and not bool((fed == MIXED).any()):
                found.append((x, fed.cpu(), channels))
    if needed and mixed and not found:
        raise SeamError(_mixing(index, mixed, mixed, what="tensors"))
    return found


def _name(streams: Streams, links: list[tuple[Tensor, Tensor, int]], tokens: Tensor) -> None:
    """Keep the tokens of tensors that feed query rows."""
    for x, fed, channels in links:
        named = torch.where(fed >= 0, tokens[fed.clamp(min=0)], -1)
        if bool((named < 0).all()):
            continue
        streams.places.append(_place(streams, x, named, channels, result=False))
