"""Methods that read a recording: relevance that walks over its events, and sums over its layers; last to first.

One loop serves a model with one sequence of tokens and a model with several. An event names the tokens of its rows,
numbered through all sequences. Attention of one sequence in order reads and gives rows `[b, t]` as they are.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.capture.recording.events import Event, Events, events_of
from vitrail.capture.recording.layer import Layer, Readout, Recording
from vitrail.capture.recording.layers import Early
from vitrail.capture.structure.stream_updates import FeedForward
from vitrail.capture.structure.streams import AttentionEvent, Transition
from vitrail.relevance.dense import backends_used

Rows = Float[Tensor, "b q"]
Step = Callable[[Rows, Layer], tuple[Rows, Float[Tensor, "b k"]]]
"""What an attention call leaves with its query rows, and what it gives to its key rows."""


@dataclass(frozen=True)
class Result:
    """Scores of all tokens, prefix included, and the parts a method can show beside them.

    `own` is what each token's score holds for being read itself, carried down by the skip connections. A method that
    works on pixels gives `pixels` alone; its scores are the sums over patches. `residual` is what the sum of all scores
    lacks of what it should be, for methods whose scores should add up. `parts` names what `layers` holds where that is
    not one map per layer, and `disagreement` says how little those parts agree. `recomputed` counts the blocks that a
    pass of the method's own ran again to save memory. `assumed` says what of the scores was not measured. `reached`
    says which tokens can reach the scalar at all, None where all can.
    Tokens of several sequences are numbered through: `scores` and `own` have one axis then.
    """

    scores: Float[Tensor, "b t"] | Float[Tensor, " n"] | None = None
    own: Float[Tensor, "b t"] | Float[Tensor, " n"] | None = None
    layers: Float[Tensor, "b l t"] | None = None
    heads: Float[Tensor, "b h t"] | None = None
    pixels: Float[Tensor, "b y x"] | None = None
    residual: Float[Tensor, " b"] | None = None
    parts: tuple[str, ...] = ()
    disagreement: Float[Tensor, " b"] | None = None
    recomputed: int = 0
    assumed: tuple[str, ...] = ()
    reached: Bool[Tensor, "b t"] | Bool[Tensor, " n"] | None = None


def readout_row(read: Readout | Layer) -> Tensor:
    """Return equal weights over the rows that the prediction reads: the start of most walks."""
    return read.readout


def readout_norms(read: Readout | Layer) -> Tensor:
    """Return weights of the rows the prediction reads by the norm of their gradient; a pooling query is one row."""
    return read.readout if read.readout_norms is None else read.readout_norms


STARTS: dict[str, Callable[[Readout | Layer], Tensor]] = {"equal": readout_row, "gradient": readout_norms}
"""How the rows that a prediction reads share the start of a walk, by the name of the option `readout`."""


@dataclass(frozen=True)
class Walked:
    """The result of a walk, one number for each token.

    Args:
        scores: the relevance.
        own: the part of it that no attention call has moved; None where a query pools the tokens.
        start: the weights that the walk began with; None where a query pools the tokens.
        lengths: the length of each token's first vector, where the walk asks for it.
        shown: the map that each layer shows, first to last.
    """

    scores: Tensor
    own: Tensor | None
    start: Tensor | None
    lengths: Tensor | None = None
    shown: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Walk:
    """A method that hands relevance from tokens that ask to tokens that are read.

    Args:
        step: the method's formula: what stays with the query rows, and what goes to the key rows.
        start: how the tokens that are read share the relevance at first.
        finish: makes the result of what was found; None for the relevance as it is.
        needs: states and gradients the step reads beside queries, keys and values (`capture.pass_options.KEEPS`).
        last_only: whether gradients are read at the last layer (and at the last block, where a query pools what it
            gives) only, so the backward pass may stop there.
        scalar: `"logit"` or `"probability"`: what of a plain class target is differentiated.
        early: what is read of a block as soon as it has run, and takes some of the states in `needs`.
        within: what a feed-forward layer multiplies the relevance of its tokens by; None where it changes nothing.
        lengths: the lengths of the vectors that enter a layer, for a walk whose result they multiply.
        shown: a map of each layer that the result shows beside the scores.
        whole: the scores of all tokens from all events at once, in place of the walk where one sequence reads another.
        several: whether the method is defined on several sequences of tokens.
    """

    step: Step
    start: Callable[[Readout | Layer], Tensor] = readout_row
    finish: Callable[[Walked], Result] | None = None
    needs: frozenset[str] = frozenset({"output_grad"})
    last_only: bool = False
    scalar: str = "logit"
    early: Early | None = None
    within: Callable[[Layer], Tensor] | None = None
    lengths: Callable[[Layer], Tensor] | None = None
    shown: Callable[[Layer], Tensor] | None = None
    whole: Callable[[Tensor, "list[Event]"], Walked] | None = None
    several: bool = True


@dataclass(frozen=True)
class LayerReader:
    """A method that reads layer after layer of one sequence, last to first, and keeps a state of its own.

    Args:
        step: the state after a layer.
        start: the state before the last layer.
        finish: makes the result of the state and the first layer.
        needs, last_only, scalar, early: as for `Walk`.
    """

    step: Callable[[Any, Layer], Any]
    start: Callable[[Layer], Any] = lambda last: None
    finish: Callable[[Any, Layer], Result] = lambda scores, first: Result(scores)
    needs: frozenset[str] = frozenset({"output_grad"})
    last_only: bool = False
    scalar: str = "logit"
    early: Early | None = None
    several: bool = False


@dataclass(eq=False)
class _Walking:
    """A walk on its way: the relevance of all tokens."""

    method: Walk
    events: Events
    scores: Any = None
    own: Tensor | None = None
    start: Tensor | None = None
    first: Layer | None = None
    shown: list[Tensor] = field(default_factory=list)
    before: Any = None  # the relevance before the calls that stand side by side
    beside: int | None = None

    def take(self, event: AttentionEvent | FeedForward | Transition, layer: Layer | None) -> None:
        """Hand the relevance on through one event."""
        method = self.method
        if self.scores is None:
            last = layer if self.events.readout is None else self.events.readout
            assert last is not None
            self.scores = self.own = self.start = method.start(last)
        if isinstance(event, Transition):
            self.scores = event.pass_on(self.scores)
            self.own = None if self.own is None else event.pass_on(self.own)
            return
        assert layer is not None
        self.first = layer
        if method.within is not None and layer.feeds_forward and not layer.pooling:
            self._grow(method.within(layer), event)
        if isinstance(event, FeedForward):
            return
        if not event.in_order:
            self._attend_among(event, layer)
            return
        kept, given = method.step(self.scores, layer)
        if layer.pooling:  # the queries are no tokens, and no skip connection carries anything past them
            self.scores, self.own, self.start = given, None, None
            return
        self.scores = kept + given
        if method.shown is not None:
            self.shown.insert(0, method.shown(layer))

    def _grow(self, growth: Tensor, event: AttentionEvent | FeedForward) -> None:
        """Multiply the relevance of the tokens of a feed-forward layer."""
        if isinstance(event, FeedForward):
            growth = event.among_tokens(growth, self.scores)
        self.scores = self.scores * growth
        self.own = None if self.own is None else self.own * growth

    def _attend_among(self, event: AttentionEvent, layer: Layer) -> None:
        """Let the query rows keep their part and give the key rows theirs, by the numbers of their tokens."""
        queries, keys = event.queries.to(self.scores.device), event.keys.to(self.scores.device)
        if event.beside is None or event.beside != self.beside:
            self.before = self.scores
        self.beside = event.beside
        kept, given = self.method.step(self.before[queries], layer)
        if self.before is self.scores:
            self.scores = self.scores.index_copy(0, queries.flatten(), kept.flatten().to(self.scores))
        else:
            change = (kept - self.before[queries]).flatten()
            self.scores = self.scores.index_add(0, queries.flatten(), change.to(self.scores))
        self.scores = self.scores.index_add(0, keys.flatten(), given.flatten().to(self.scores))

    def result(self) -> Result:
        """Give the method's result when all events have been met."""
        lengths, method = self.events.lengths, self.method
        if method.lengths is None or self.first is None:
            lengths = None
        elif lengths is None:
            lengths = method.lengths(self.first)
        if method.finish is None:
            return Result(self.scores, own=self.own)
        return method.finish(Walked(self.scores, self.own, self.start, lengths, tuple(self.shown)))


@dataclass(eq=False)
class _TakingWhole:
    """A method that takes all events at once, where one sequence reads another."""

    method: Walk
    events: Events
    met: list[Event] = field(default_factory=list)

    def take(self, event: AttentionEvent | FeedForward | Transition, layer: Layer | None) -> None:
        """Keep one event."""
        if not isinstance(event, FeedForward):
            self.met.append((event, layer))

    def result(self) -> Result:
        """Give the method's result when all events have been met."""
        assert self.method.whole is not None
        assert self.events.readout is not None
        found = self.method.whole(self.method.start(self.events.readout), self.met)
        return Result(found.scores, own=found.own)


@dataclass(eq=False)
class _ReadingLayers:
    """A reader of layers on its way: its own state."""

    method: LayerReader
    state: Any = None
    first: Layer | None = None

    def take(self, event: AttentionEvent | FeedForward | Transition, layer: Layer | None) -> None:
        """Read one layer."""
        assert layer is not None
        state = self.method.start(layer) if self.first is None else self.state
        self.state, self.first = self.method.step(state, layer), layer

    def result(self) -> Result:
        """Give the method's result when all layers have been read."""
        assert self.first is not None
        return self.method.finish(self.state, self.first)


@dataclass
class Timed:
    """The result of one method, the backends that computed its sums, and the seconds it took."""

    result: Result = field(default_factory=Result)
    backends: frozenset[str] = frozenset()
    seconds: float = 0.0


def walk_events(methods: Sequence[Walk | LayerReader], events: Events | Iterable[Event]) -> list[Timed]:
    """Let every method meet the same events, and give their results."""
    events = events if isinstance(events, Events) else Events(events)
    walkers: list[_Walking | _TakingWhole | _ReadingLayers] = []
    for method in methods:
        if isinstance(method, LayerReader):
            walkers.append(_ReadingLayers(method))
        elif method.whole is not None and events.crosses:
            walkers.append(_TakingWhole(method, events))
        else:
            walkers.append(_Walking(method, events))
    made = [Timed() for _ in methods]
    for event, layer in events.steps:
        for walker, one in zip(walkers, made, strict=True):
            begun = time.perf_counter()
            with backends_used() as used:
                walker.take(event, layer)
            one.backends |= used
            one.seconds += time.perf_counter() - begun
    for walker, one in zip(walkers, made, strict=True):
        begun = time.perf_counter()
        with backends_used() as used:
            one.result = walker.result()
        one.backends |= used
        one.seconds += time.perf_counter() - begun
    return made


def walk(method: Walk | LayerReader, recording: Recording) -> Result:
    """Let a method walk over a finished recording."""
    (made,) = walk_events([method], Events(events_of(reversed(recording.layers))))
    return made.result
