"""Record a pass over several sequences of tokens: known from a pass alike, or measured first."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitrail.capture.checkpointed import keeps_saved
from vitrail.capture.graph_nodes import node_of
from vitrail.capture.recording.answers import read_answer
from vitrail.capture.recording.layer import Readout
from vitrail.capture.recording.pass_options import ComputeSettings
from vitrail.capture.recording.stream_passes import PlainPass, StreamPass, stream_forward
from vitrail.capture.seams import AttentionCall
from vitrail.capture.structure.projections import Unknown
from vitrail.capture.structure.readouts import last_calls, readout
from vitrail.capture.structure.signature import GraphEnds, Node, node_at, places_of, read_route
from vitrail.capture.structure.stream_checks import (
    KnownPass,
    StreamsOfPass,
    graph_ends,
    hidden_tokens,
    known_of,
    measured_streams,
    tables_of,
    with_words,
)
from vitrail.capture.structure.stream_origins import ShownStream
from vitrail.capture.structure.stream_updates import (
    FoundUpdates,
    ReadPass,
    UpdateTables,
    find_updates,
    read_updates,
)
from vitrail.capture.structure.streams import Streams
from vitrail.capture.structure.taps import Tap
from vitrail.capture.structure.trace import TracedCall
from vitrail.errors import SeamError
from vitrail.models.inputs import Inputs
from vitrail.models.taking import generates
from vitrail.targets import Target

AnyScalar = Target | Callable[[Tensor], Tensor]


@contextmanager
def record_streams(
    model: nn.Module,
    inputs: Inputs,
    targets: Sequence[AnyScalar],
    settings: ComputeSettings,
    *,
    changes: bool,
    norms: bool,
    cut_readout: bool = False,
) -> Iterator[StreamPass]:
    """Run a shadow once with a graph, on tokens that are known from a pass alike, or else measured in a pass before.

    Args:
        targets: what will be differentiated.
        changes: whether a method reads what layers add to the streams.
        norms: whether a method shares relevance by norms of gradients.
        cut_readout: let a pass whose results are cut tell which tokens are read, and not the gradient of this one.
    """
    places = None if cut_readout else known_places(model, inputs, changes=changes)
    with ExitStack() as stack:
        run = None
        if places is not None:
            plain = stack.enter_context(stream_forward(model, inputs, *places))
            run = _known_run(model, plain, settings, changes=changes, norms=norms)
        if run is None:
            stack.close()
            measured = _measured_run(model, inputs, targets, settings, changes=changes, cut_readout=cut_readout)
            run = stack.enter_context(measured)
            run.norms = norms
        yield run


def _known_run(
    model: nn.Module, plain: PlainPass, settings: ComputeSettings, *, changes: bool, norms: bool
) -> StreamPass | None:
    """Return a pass in which the same was done to tokens as in one that was measured; None where it was not."""
    met = known_streams(plain, model)
    if met is None or met[0].found.refusal is not None:
        return None
    known, changing = met
    found, changed = known.found, None
    if changes:
        if known.changes is None or changing is None:
            return None
        try:
            real = real_tokens(found.streams, found.shown, plain.calls)
            changed = read_updates(known.changes, changing, real)
        except Unknown:  # what to say of it is found out where it is measured
            return None
    _check_calls(plain, found.streams)
    return StreamPass(plain, found, settings, updates=changed, norms=norms)


@contextmanager
def _measured_run(
    model: nn.Module,
    inputs: Inputs,
    targets: Sequence[AnyScalar],
    settings: ComputeSettings,
    *,
    changes: bool,
    cut_readout: bool,
) -> Iterator[StreamPass]:
    """Measure the sequences of tokens in a pass whose results are cut, and run the model as it is."""
    with measured_streams(model, inputs, sums=changes) as found:
        if found.refusal is not None:
            raise SeamError(found.refusal)
        streams = found.streams
        changed, unknown = _find_updates(found) if changes else (None, None)
        calls = [one.call for one in streams.seen.calls]
        answer = read_answer(streams.seen.answer, inputs, calls, generates=generates(model))
        found = replace(found, last_calls=last_calls(streams, answer.output.wide))
        starts: dict[int, list[Readout]] = {}
        for target in targets if found.last_calls is None or cut_readout else ():
            scalars = [part.scalar for part in answer.scalars(target)]
            starts[id(target)] = [_cut_readout(found, scalar) for scalar in scalars]
    taps = [] if changed is None else [tap for tap in changed.tables.taps if tap is not None]
    with stream_forward(model, inputs, taps) as plain:
        if found.last_calls is not None:
            remember_plain(plain, model, found, changed)
        _check_calls(plain, streams)
        updates = None if changed is None else changed.updates
        yield StreamPass(plain, found, settings, updates=updates, unknown=unknown, starts=starts)


def _check_calls(plain: PlainPass, streams: Streams) -> None:
    """Raise unless a pass makes the attention calls that were measured."""
    if len(plain.calls) != len(streams.attentions):
        raise SeamError(
            f"the model made {len(streams.attentions)} attention calls when it was measured and {len(plain.calls)} "
            "now: what it runs depends on chance or on earlier calls, so its attention cannot be followed."
        )


def _cut_readout(found: StreamsOfPass, scalar: Tensor) -> Readout:
    """Return the tokens that a scalar reads in the pass whose results are cut."""
    return Readout(*(readout(found.streams, found.samples, scalar, by_norm=norms) for norms in (False, True)))


def _find_updates(found: StreamsOfPass) -> tuple[FoundUpdates | None, SeamError | None]:
    """Return how every layer transforms tokens, or why that is not known."""
    calls = [one.call for one in found.streams.seen.calls]
    try:
        return find_updates(found.streams, found.samples, real_tokens(found.streams, found.shown, calls)), None
    except SeamError as why:
        return None, why


def real_tokens(streams: Streams, shown: Sequence[ShownStream], calls: Sequence[AttentionCall]) -> Tensor:
    """Return which tokens are no padding."""
    real = ~hidden_tokens(streams, calls)
    for one in shown:
        if one.mask is not None:
            real[one.tokens[~one.mask & (one.tokens >= 0)]] = False
            real[list(one.padding)] = False
    return real


# Passes in which the same is done to tokens


def known_streams(run: PlainPass, model: nn.Module) -> tuple[KnownPass, ReadPass | None] | None:
    """Return what is known of a pass, and its tensors that changes are read off; None where it has to be measured.

    It is known if the same was done to tokens in a pass that was measured.
    """
    met = known_of(model, run.inputs).plain.find(_plain_ends(run), lambda one: one)
    if met is None:
        return None
    known, nodes = met
    found = replace(known.found, shown=[with_words(one, run.inputs) for one in known.found.shown])
    return replace(known, found=found), None if known.changes is None else _changing(known.changes, run, nodes)


def _changing(tables: UpdateTables, run: PlainPass, nodes: Sequence[Node]) -> ReadPass | None:
    """Return the tensors that tables name in another pass; None unless each has its place in the graph there.

    Args:
        nodes: of the other pass, in the order of the route.
    """
    found = run.at_taps(tables.taps)
    if found is None or [x.shape for x in found.tensors] != tables.shapes:
        return None
    places = zip(found.tensors, tables.places, strict=True)
    return found if all(node_of(x) is node_at(place, nodes) is not None for x, place in places) else None


def remember_plain(run: PlainPass, model: nn.Module, found: StreamsOfPass, changes: FoundUpdates | None) -> None:
    """Remember the streams of a pass that was measured, for passes in which the same is done to tokens.

    Args:
        changes: what its layers add to the streams, where that was measured.
    """
    if found.streams.seen.by_chance:
        return
    known, ends = known_of(model, run.inputs).plain, _plain_ends(run)
    if not ends.complete:
        return
    met = known.find(ends, lambda one: one)
    if met is None:
        new = KnownPass(tables_of(found, saves=keeps_saved(model)), _attending(found.streams.seen.calls))
        known.keep(route := read_route(ends), new)
        met = new, route.nodes_in(ends) or []
    one, nodes = met
    if changes is not None and one.changes is None and not keeps_saved(model):
        one.found = tables_of(found, saves=False)  # tables are of these numbers of tokens
        one.changes = _placed(changes, run, nodes)


def _placed(changes: FoundUpdates, run: PlainPass, nodes: Sequence[Node]) -> UpdateTables | None:
    """Return the tables with places in the graph of a pass; None where it does not show what was measured."""
    found = run.at_taps(changes.tables.taps)
    if found is None or not all(map(torch.equal, found.tensors, changes.tensors)):
        return None
    stand = [node_of(x) for x in found.tensors]
    places = places_of({node for node in stand if node is not None}, nodes)
    if not all(node in places for node in stand):
        return None
    shapes = [x.shape for x in found.tensors]
    return replace(changes.tables, places=[places[node] for node in stand], shapes=shapes)


def _attending(calls: Sequence[TracedCall]) -> frozenset[int] | None:
    """Return the modules that make all attention calls; None where one is written by hand, in whatever modules."""
    return None if any(one.call.weights is not None for one in calls) else frozenset(one.module for one in calls)


def known_places(model: nn.Module, inputs: Inputs, *, changes: bool) -> tuple[frozenset[Tap], frozenset[int]] | None:
    """Return where a pass over inputs of this form is read: tensors of modules, and modules that attend.

    No modules that attend stand for all. None where no such pass is known.

    Args:
        changes: whether a method reads what layers add to the streams.
    """
    known = [one for _, one in known_of(model, inputs).plain.routes if one.changes is not None or not changes]
    if not known:
        return None
    taps = frozenset(
        tap for one in known if changes and one.changes is not None for tap in one.changes.taps if tap is not None
    )
    attending = [one.attending for one in known if one.attending is not None]
    return taps, frozenset[int]().union(*attending) if len(attending) == len(known) else frozenset()


def _plain_ends(run: PlainPass) -> GraphEnds:
    """Return where the graph of a pass as it is is read."""
    return graph_ends(run.calls, run.output, run.roots, run.inputs)
