"""Checks of what a walk over streams relies on beside the tokens of queries and keys, measured by coded gradients.

Streams that were measured once are remembered, by all that decides them.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from vitrail.capture.checkpointed import keep_saved, keeps_saved
from vitrail.capture.graph_nodes import node_of, reached
from vitrail.capture.outputs import read_output
from vitrail.capture.refusals import detached
from vitrail.capture.samples import check_apart
from vitrail.capture.seams import AttentionCall
from vitrail.capture.seams.call import tensors_in
from vitrail.capture.shadow import autograd, memory_of, remembered
from vitrail.capture.structure.cache import Variants, form_of, named_arguments
from vitrail.capture.structure.sequences import CUT_PASS
from vitrail.capture.structure.signature import GraphEnds, Route, ends_of, read_route
from vitrail.capture.structure.stream_origins import MASKS, WORDS, ShownStream, reported
from vitrail.capture.structure.stream_updates import UpdateTables
from vitrail.capture.structure.streams import AttentionEvent, RowLayout, Streams, Transition, measured
from vitrail.capture.structure.token_codes import MIXED, NOWHERE, State, sources
from vitrail.capture.structure.trace import TracedPass, trace_streams
from vitrail.capture.structure.unseen_mixing import TokenState, find_unseen_mixing
from vitrail.errors import CutGraphError, SeamError, VitrailError
from vitrail.models.inputs import Inputs


def check_detached(seen: TracedPass) -> None:
    """Raise if gradients of the model leave out some of what attention reads, or of what the answer reads."""
    given = [] if seen.inputs is None else list(tensors_in((seen.inputs.args, seen.inputs.kwargs)))
    places = [*given, *(vectors for _, vectors in seen.embedded), *(one.output for one in seen.calls)]
    read = [x for one in seen.calls for x in (one.call.query, one.call.key, one.call.value, one.uncut)]
    if seen.detached.cut([*read, *tensors_in(seen.answer)], places):
        raise CutGraphError(detached("a part of the model"))


def check_values(streams: Streams) -> None:
    """Raise if the values of a call belong to other tokens than its keys; what is not measured is added as assumed."""
    for event in streams.attentions:
        one = streams.seen.calls[event.call]
        key = one.call.key
        if key is None:
            continue  # the tokens are those of the values themselves
        rows = event.rows.of_keys(key, len(event.keys))
        if not _values_are_of(key, one.call.value, event.call, one.before, rows):
            assumed = f"the values of attention call {event.call + 1} are taken for those of the tokens of its keys"
            streams.assumed.append(assumed)


def check_order(streams: Streams) -> None:
    """Note which calls stand side by side: a later one reads tokens as they were before an earlier one gave to them.

    Streams that read each other at the same time (LXMERT) are such. A walk takes them together. It cannot where calls
    give to the same tokens, or where something happens between them.
    """
    for index, event in enumerate(streams.attentions):
        read = torch.cat([event.queries.flatten(), event.keys.flatten()])
        given = (x for x in reversed(streams.attentions[:index]) if bool(torch.isin(x.queries, read).any()))
        before = next(given, None)
        if before is None or _reads(streams, event, before):
            continue
        first = before.call if before.beside is None else before.beside
        group = [one for one in streams.attentions[:index] if one.call >= first]
        start, end = streams.events.index(group[0]), streams.events.index(event)
        apart = not any(bool(torch.isin(event.queries, one.queries).any()) for one in group)
        together = all(one.beside in (None, first) for one in group) and end - start == len(group)
        if not apart or not together or any(_reads(streams, event, one) for one in group):
            raise SeamError(
                f"attention call {event.call + 1} reads tokens as they were before attention call {before.call + 1} "
                "gave to them: the two stand side by side, and a walk takes one after the other. Use a gradient "
                "method, such as integrated_gradients or input_x_gradient."
            )
        for place in (*range(start, end), end):
            one = streams.events[place]
            assert isinstance(one, AttentionEvent)
            streams.events[place] = replace(one, beside=first)


def _reads(streams: Streams, event: AttentionEvent, given: AttentionEvent) -> bool:
    """Return True if a call reads the result of another one, or if that is not known."""
    call = streams.seen.calls[event.call].call
    operands = [node_of(x) for x in (call.query, call.key, call.value, call.softmax_input) if x is not None]
    leaf = node_of(streams.seen.calls[given.call].output)
    return leaf is None or not any(operands) or bool(reached(operands, {leaf}))


def _values_are_of(key: Tensor, value: Tensor | None, index: int, before: list[Tensor], rows: RowLayout) -> bool:
    """Return True if every value row of a call is known to be made of the token of its key row.

    Args:
        before: tensors that modules before the call were given or gave.
        rows: how rows lie in the keys.
    """
    if value is None or value.ndim != key.ndim or rows.four(key).shape[::2] != rows.four(value).shape[::2]:
        return False
    if bool((value == value[..., :1, :]).all()):
        return True  # one value for all tokens
    asked, given = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    every = torch.arange(rows.four(key).shape[::2].numel())
    # The last tensors mostly answer, and the way back to them is short.
    for channels, some in _from_the_last(before):
        of_keys = sources([(key, rows.numbers(key))], some, channels=channels)
        of_values = sources([(value, rows.numbers(value))], some, channels=channels)
        for found in zip(of_keys, of_values, strict=True):
            fed = [x.cpu() for x in found if x is not None and not bool((x == MIXED).any())]
            if len(fed) == 2:
                _check_same(index, *fed)
                given = torch.cat([given, fed[0][(fed[0] >= 0) & (fed[1] >= 0)]]).unique()
            asked = torch.cat([asked, *(x[x >= 0] for x in fed)]).unique()
        if torch.equal(given, every):
            return True
    return len(given) > 0 and torch.equal(asked, given)


def _from_the_last(before: list[Tensor]) -> Iterator[tuple[int, list[Tensor]]]:
    """Give tensors with the axis of their channels, twice as many each time: of feature maps, both that it may be."""
    left, most = before[::-1], FIRST_ASKED
    while left:
        asked, left, most = left[:most], left[most:], 2 * most
        yield -1, asked
        maps = [x for x in asked if x.ndim == 4]
        if maps:
            yield 1, maps


FIRST_ASKED = 4
"""How many of the last tensors before a call are asked first: its queries, keys and values, and what they are of."""


def _check_same(index: int, keys: Tensor, values: Tensor) -> None:
    wrong = (keys >= 0) & (values >= 0) & (keys != values)
    if bool(wrong.any()):
        raise SeamError(
            f"{int(wrong.sum())} of {wrong.numel()} tokens that attention call {index + 1} reads are in another row "
            f"of its values than of its keys: row {int(keys[wrong][0])} of the keys and row {int(values[wrong][0])} "
            "of the values belong to one token. A walk cannot tell which token a weight belongs to. Use a gradient "
            "method, such as integrated_gradients or input_x_gradient."
        )


def hidden_tokens(streams: Streams, calls: Sequence[AttentionCall]) -> Tensor:
    """Return which tokens are keys of some call and are seen by no query of any: padding, whatever its mask is called.

    Args:
        calls: all attention calls of the pass.
    """
    asked, seen = (torch.zeros(streams.count, dtype=torch.bool) for _ in range(2))
    for event in streams.attentions:
        call = calls[event.call]
        asked[event.keys.flatten()] = True
        shown = call.weights if call.weights is not None else call.mask
        if shown is None:
            seen[event.keys.flatten()] = True
            continue
        four = event.rows.four_of_mask(shown.detach())
        allowed = four if four.dtype is torch.bool else four != 0 if call.weights is not None else four > HIDDEN
        seen[event.keys[allowed.any(dim=2).any(dim=1).expand(event.keys.shape).cpu()]] = True
    return asked & ~seen


HIDDEN = -1e3
"""What is added to the scores of keys that are seen is more than this."""
UNMEASURED = "tokens of a batch belong to the samples in their order"


def sample_of(streams: Streams, batch: int, *, shared: Collection[str] = ()) -> Tensor:
    """The sample of every token: measured at the inputs, else by the tokens it is joined with.

    What is not measured is added to `streams.assumed`.

    Args:
        shared: names of inputs that belong to no one sample; tokens joined with none then count as the first's.
    """
    found = torch.full((streams.count,), -1)
    sure = torch.full((streams.count,), batch == 1)
    for index in range(len(streams.sequences)):
        claimed, exact = _claimed(streams, index, batch)
        found[streams.sequences[index].tokens] = claimed
        sure[streams.sequences[index].tokens] |= exact
    _check_apart(streams, found)
    found = _joined(streams, found)
    if shared:
        found = found.clamp(min=0)
    if bool((found < 0).any()):
        raise _unclear(f"{int((found < 0).sum())} of {streams.count} tokens belong to no known sample")
    if not bool(_reached(streams, sure).all()):
        streams.assumed.append(UNMEASURED)
    return found


def _claimed(streams: Streams, index: int, batch: int) -> tuple[Tensor, bool]:
    """The sample of every token of a sequence, by the order of its rows that the inputs confirm, and if they do.

    Rows are windows of samples, one sample after the other, or one window of all samples after the other. The first is
    what remains where the inputs do not reach the sequence.
    """
    sequence = streams.sequences[index]
    rows, positions = sequence.rows
    if rows % batch:
        return torch.full((sequence.count,), -1), False
    orders = [torch.arange(batch).repeat_interleave(rows // batch), torch.arange(batch).repeat(rows // batch)]
    places = _of_samples(streams, batch)
    for order in orders if batch > 1 and places else ():
        four = sequence.layout.four(sequence.operand)
        numbers = order.to(four.device).view(-1, 1, 1, 1).expand(-1, four.shape[1], positions, 1)
        coded = [(sequence.operand, sequence.layout.back(numbers, sequence.operand.shape))]
        seen = [x for x in sources(coded, places, channels=-1) if x is not None and bool((x >= 0).any())]
        own = [torch.arange(batch, device=x.device).view(-1, *[1] * (x.ndim - 1)) for x in seen]
        if seen and all(bool(((x == mine) | (x == -1)).all()) for x, mine in zip(seen, own, strict=True)):
            return order.repeat_interleave(positions), True
        if not seen:
            break
    else:
        if batch > 1 and places:
            raise _unclear(
                f"the rows of attention call {sequence.begins + 1} mix samples, or order them in another way"
            )
    return orders[0].repeat_interleave(positions), False


def _of_samples(streams: Streams, batch: int) -> list[Tensor | State]:
    """Inputs and word embeddings that have one entry for each sample along the first axis."""
    given = streams.seen.inputs
    floats = [] if given is None else list(tensors_in((given.args, given.kwargs)))
    places = [x for x in (*floats, *(vectors for _, vectors in streams.seen.embedded)) if x.ndim > 1]
    return [x for x in places if x.requires_grad and x.shape[0] == batch]


def _joined(streams: Streams, found: Tensor) -> Tensor:
    """The samples of all tokens, those not known taken from tokens that are made of them or ask for them."""
    for event in reversed(streams.events):
        if isinstance(event, Transition):
            unknown = found[event.source] < 0
            found[event.source[unknown]] = found[event.target[unknown]]
        elif bool((found[event.keys] < 0).any()):
            of_rows = found[event.queries].amax(dim=1, keepdim=True).expand_as(event.keys)
            found[event.keys] = torch.where(found[event.keys] < 0, of_rows, found[event.keys])
    return found


def _check_apart(streams: Streams, found: Tensor) -> None:
    """Raise if tokens taken for those of two samples meet in a row of attention, or one is made of the other."""
    for event in streams.events:
        rows = found[event.joined]
        if bool(((rows != rows[:, :1]) & (rows >= 0) & (rows[:, :1] >= 0)).any()):
            raise _unclear("tokens that are taken for those of two samples attend to each other")


def _reached(streams: Streams, sure: Tensor) -> Tensor:
    """Return a mask of the tokens that are of a measured sample, or joined with one that is."""
    before = -1
    while int(sure.sum()) != before:
        before = int(sure.sum())
        for event in streams.events:
            sure[event.joined[sure[event.joined].any(dim=1)]] = True
    return sure


def _unclear(seen: str) -> SeamError:
    return SeamError(f"tokens cannot be told apart by sample: {seen}. Explain one sample at a time.")


def samples_are_apart(streams: Streams, samples: Tensor, batch: int) -> bool:
    """Return True if what attention gives for a sample, and the answer to it, is made of its own tokens alone.

    Asked of all calls and of the answer at once.
    """
    own = torch.arange(batch)
    answers = [x for x in tensors_in(streams.seen.answer) if x.is_floating_point() and x.shape[:1] == (batch,)]
    rows = [(x, own.view(-1, *[1] * (x.ndim - 1))) for x in answers[:1]]
    asked: dict[int, list[tuple[Tensor | State, Tensor]]] = {}
    results = [place for place in streams.places if place.result]
    for place, one in zip(results, streams.seen.calls, strict=True):
        if one.uncut is None or bool((place.tokens < 0).any()):
            return False
        rows.append((one.uncut, samples[place.tokens].unsqueeze(place.channels)))
        asked.setdefault(place.channels, []).append((place.tensor, samples[place.tokens]))
    for x in _of_samples(streams, batch):
        asked.setdefault(x.ndim - 1, []).append((x, own.view(-1, *[1] * (x.ndim - 2))))
    return all(_are_fed_by_own(rows, some, channels) for channels, some in asked.items())


def _are_fed_by_own(
    rows: list[tuple[Tensor, Tensor]], places: list[tuple[Tensor | State, Tensor]], channels: int
) -> bool:
    """Return True if every position of some places feeds rows of its own sample alone."""
    for found, (_, own) in zip(sources(rows, [x for x, _ in places], channels=channels), places, strict=True):
        if found is not None and bool(((found != own.to(found.device)) & (found != NOWHERE)).any()):
            return False
    return True


@dataclass(frozen=True, eq=False)
class StreamsOfPass:
    """The streams of a pass. What is remembered of them are tables of tokens, and no tensor of the pass."""

    streams: Streams
    samples: Tensor  # the sample of every token
    shown: list[ShownStream]  # the streams that are reported
    saves: bool = False  # whether the shadow had to be kept from recomputing anything
    refusal: str | None = None  # why a walk would miss what happens after the last attention, if it would
    last_calls: Tensor | None = None  # where a gradient tells which tokens the answer reads; None where it does not


@dataclass(eq=False)
class KnownPass:
    """Facts about passes over one route."""

    found: StreamsOfPass
    attending: frozenset[int] | None  # the modules that make all attention calls; None where that is not known
    changes: UpdateTables | None = None  # where a method has asked for it, and modules show it


@dataclass(eq=False)
class _Known:
    """Facts about inputs of one form: tables for each route of tokens, or why there are none."""

    cut: Variants[StreamsOfPass] = field(default_factory=Variants[StreamsOfPass])  # of passes whose results are cut
    plain: Variants[KnownPass] = field(default_factory=Variants[KnownPass])  # of passes as they are
    refusal: SeamError | None = None


def known_of(model: nn.Module, inputs: Inputs) -> _Known:
    """Return what is known of inputs of this form; keep the shadow from recomputing, if it had to be."""
    texts = set(inputs.kwargs) <= {*WORDS, *MASKS.values()} and not inputs.args
    deciding = [
        name
        for name, x in named_arguments(inputs)
        if isinstance(x, Tensor) and ("mask" in str(name) or not (x.is_floating_point() or (texts and name in WORDS)))
    ]
    form = form_of(inputs, inputs.shared, samples=None, deciding=deciding).keys[-1]
    known = remembered.get(model, "streams", form, _Known)
    if any(found.saves for _, found in known.cut.routes):
        keep_saved(model)
    return known


@contextmanager
def measured_streams(model: nn.Module, inputs: Inputs, *, sums: bool = False) -> Iterator[StreamsOfPass]:
    """A pass of a shadow whose attention results are cut, and its streams, measured now or remembered.

    Args:
        sums: keep what is added to the residual streams, too.
    """
    kept = known_of(model, inputs)
    if kept.refusal is not None:
        raise type(kept.refusal)(str(kept.refusal))
    new: list[Route] = []

    def measure(seen: TracedPass, streams: Streams | None = None) -> StreamsOfPass:
        new.clear()
        ends = _cut_ends(seen, inputs)
        met = None if seen.by_chance else kept.cut.find(ends, partial(_again, seen=seen, inputs=inputs))
        if met is not None:
            return met[0]
        new.append(read_route(ends))
        return _measured(model, seen, inputs, kept, streams)

    with _trace_of_call(model, inputs, measure, sums=sums) as found:
        if new and not found.streams.seen.by_chance:
            kept.cut.keep(new[0], tables_of(found, saves=keeps_saved(model)))
        yield found


@contextmanager
def _trace_of_call(
    model: nn.Module, inputs: Inputs, measure: Callable[..., StreamsOfPass], *, sums: bool
) -> Iterator[StreamsOfPass]:
    """A cut pass: the one by which this call has found that there are several streams, or a new one."""
    given, streams = memory_of(model).call.pop(CUT_PASS, (None, None))
    if streams is None or given is not inputs or sums or streams.seen.by_chance:
        with trace_streams(model, inputs, measure, sums=sums) as found:
            yield found
        return
    with autograd(gradients=True):
        streams.seen.maxima.on = True
        found = measure(streams.seen, streams)
        streams.seen.maxima.on = False
        yield found


def _cut_ends(seen: TracedPass, inputs: Inputs) -> GraphEnds:
    """Return where the graph of a pass whose results are cut is read."""
    roots = [one.output for one in seen.calls if one.output is not None]
    roots += [] if seen.inputs is None else list(tensors_in((seen.inputs.args, seen.inputs.kwargs)))
    return graph_ends([one.call for one in seen.calls], seen.answer, roots, inputs)


def graph_ends(calls: list[AttentionCall], answer: object, roots: list[Tensor], inputs: Inputs) -> GraphEnds:
    """Return where the graph of a pass is read."""
    answers = [x for x in tensors_in(answer) if x.requires_grad]
    given = {**dict(enumerate(inputs.args)), **inputs.kwargs}
    texts = [x for x in given.values() if isinstance(x, Tensor) and not x.is_floating_point() and x.ndim == 2]
    return ends_of(
        calls,
        answers[0] if answers else torch.zeros(()),
        entering=None,
        leaving=None,
        roots=[x for x in roots if x.requires_grad],
        ids=tuple(texts),
    )


def _measured(
    model: nn.Module, seen: TracedPass, inputs: Inputs, kept: _Known, streams: Streams | None
) -> StreamsOfPass:
    """The streams of a pass, if they have not been found already; a refusal is remembered."""
    try:
        check_detached(seen)
        streams = streams or measured(seen)
        check_order(streams)
        check_values(streams)
        samples = sample_of(streams, inputs.batch, shared=inputs.shared)
        if inputs.batch > 1 and (inputs.shared or not samples_are_apart(streams, samples, inputs.batch)):
            check_apart(model, inputs)
        refusal = _find_unseen_mixing(streams, samples)
        return StreamsOfPass(streams, samples, reported(streams, inputs, samples), refusal=refusal)
    except SeamError as error:
        kept.refusal = type(error)(str(error))
        raise


def _find_unseen_mixing(streams: Streams, samples: Tensor) -> str | None:
    """Return what mixes tokens of one sequence after the last attention, in words; None if nothing does.

    Sequences may meet there: pictures and texts are compared in the answer.
    """
    places = [place for place in streams.places if place.result]
    with suppress(VitrailError):  # what the answer is, is asked again when it is explained
        answer = read_output(streams.seen.answer).logits
        # What becomes other tokens is asked of these: between the two, `measured` has found what is made of what.
        becoming = {source for source, _ in streams.since}
        for index in sorted(set(range(len(streams.sequences))) - becoming):
            chosen = (samples == 0) & (streams.sequence_of == index)
            states = [
                TokenState(x.tensor, torch.where(chosen[x.tokens.clamp(min=0)], x.tokens, -1), x.channels)
                for x in places
                if index in x.sequences
            ]
            found = find_unseen_mixing(answer, states, streams.seen.runs)
            if found is not None:
                return found
    return None


def tables_of(found: StreamsOfPass, *, saves: bool) -> StreamsOfPass:
    """The tables alone, with the shapes of what attention gave."""
    streams = found.streams
    sequences = [replace(sequence, operand=torch.empty(0)) for sequence in streams.sequences]
    results = [place for place in streams.places if place.result]
    places = [replace(place, tensor=torch.empty_like(place.tensor, device="meta")) for place in results]
    return replace(found, streams=replace(streams, sequences=sequences, places=places, seen=TracedPass()), saves=saves)


def _again(known: StreamsOfPass, seen: TracedPass, inputs: Inputs) -> StreamsOfPass | None:
    """The streams as they were measured before; None where the calls of this pass are others."""
    outputs, before = [one.output for one in seen.calls if one.output is not None], known.streams.places
    if [x.shape for x in outputs] != [place.tensor.shape for place in before]:
        return None
    places = [replace(place, tensor=x) for place, x in zip(before, outputs, strict=True)]
    streams = replace(known.streams, places=places, seen=seen)
    return replace(known, streams=streams, shown=[with_words(one, inputs) for one in known.shown])


def with_words(shown: ShownStream, inputs: Inputs) -> ShownStream:
    """A stream with the words and the mask of other inputs of the same form."""
    if shown.given not in WORDS or shown.words is None:
        return shown
    ids, mask = (inputs.kwargs.get(name) for name in (shown.given, MASKS[shown.given]))
    ids = ids if isinstance(ids, Tensor) else inputs.args[0] if inputs.args else None
    assert isinstance(ids, Tensor)
    masked = isinstance(mask, Tensor) and mask.shape == ids.shape
    return replace(shown, words=ids.detach().cpu(), mask=mask.bool().cpu() if masked else None)  # pyright: ignore[reportOptionalMemberAccess]
