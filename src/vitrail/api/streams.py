"""Explanations of models with several streams of tokens, or whose tokens change between blocks."""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitrail.api.attributions import TokenLabels, add_scalars, build_attribution, timed
from vitrail.api.bounds import DROPPED, UNSHOWN, credits_unreachable, drop_unreachable, with_zeros
from vitrail.api.requests import Request, by_target
from vitrail.api.stream_gradients import explain_at_inputs, is_gradient
from vitrail.attribution import Attribution
from vitrail.capture.origin import signal_kind
from vitrail.capture.outputs import Scalar
from vitrail.capture.pass_options import ComputeSettings
from vitrail.capture.provenance import fingerprint
from vitrail.capture.reach import pass_down
from vitrail.capture.recording import Layer, Readout
from vitrail.capture.seams import AttentionCall
from vitrail.capture.stream_checks import (
    KnownPass,
    hidden_tokens,
    known_places,
    known_streams,
    measured_streams,
    remember_plain,
)
from vitrail.capture.stream_origins import LEFT_OUT, WORDS, ShownStream, own_texts
from vitrail.capture.stream_passes import StreamPass, last_results, read_answer, readout, stream_forward
from vitrail.capture.streams import Streams, Transition
from vitrail.capture.structure.projections import Unknown
from vitrail.capture.structure.stream_updates import FoundUpdates, ReadPass, StreamUpdates, find_updates, read_updates
from vitrail.errors import MethodError, RuleError, SeamError, VitrailError
from vitrail.methods import METHODS
from vitrail.models.inputs import Inputs
from vitrail.models.taking import generates
from vitrail.relevance import Walk
from vitrail.relevance.walk import Events, Result, walk_events

SHARES = "tokens that are merged, pooled or projected share the relevance of what they make equally"


def explain_streams(
    model: nn.Module, requests: list[Request], settings: ComputeSettings
) -> tuple[str, list[Attribution | VitrailError]]:
    """Explain over several sequences of tokens, or return why a method does not apply; walks share their passes."""
    walking = [request for request in requests if not is_gradient(request.entry.name)]
    shown, made = _streams_of_default(model, requests), dict[Request, Attribution | VitrailError]()
    if walking:
        shown, found = _walks(model, walking, settings)
        made |= dict(zip(walking, found, strict=True))
    for request in requests:
        if request in made:
            continue
        try:
            made[request] = explain_at_inputs(model, [request], shown=shown)[1][0]
        except RuleError as error:  # an operation that the method has no rule for
            made[request] = error
    return fingerprint(model), [made[request] for request in requests]


def _streams_of_default(model: nn.Module, requests: list[Request]) -> list[ShownStream] | None:
    """The streams, or the reason as an error why there are none, where the default explains; else None."""
    inputs = [one.inputs for one in requests if is_gradient(one.entry.name) and one.default is not None]
    if not inputs:
        return None
    with measured_streams(model, inputs[0]) as found:
        _check_inputs(inputs[0], found.shown)
        return found.shown


def _walks(
    model: nn.Module, requests: list[Request], settings: ComputeSettings
) -> tuple[list[ShownStream], Sequence[Attribution | VitrailError]]:
    """The streams, and the result of every method that walks over them: from one pass if they are known."""
    known = _walks_known(model, requests, settings)
    return _walks_measured(model, requests, settings) if known is None else known


def _walks_known(
    model: nn.Module, requests: list[Request], settings: ComputeSettings
) -> tuple[list[ShownStream], list[Attribution]] | None:
    """The same from one pass, in which a pass that was measured is known again; None where it is not."""
    begun, inputs = time.perf_counter(), requests[0].inputs
    adds = any(reads_changes(request) for request in requests)
    places = known_places(model, inputs, changes=adds)
    if places is None:
        return None
    with stream_forward(model, inputs, *places) as plain:
        met = known_streams(plain, model)
        if met is None:
            return None
        known, changing = met
        found, where, made = known.found, known.where, dict[Request, Attribution]()
        if found.refusal is not None or any(_refusal(one, found.shown, None) is not None for one in requests):
            return None
        changed = _known_changes(known, changing, plain.calls) if adds else None
        if adds and changed is None:
            return None
        run = plain.on(found.streams, changed)
        for target, group in by_target(requests):
            needs = any(request.differentiates for request in group)
            scalars = [
                (part, run.gradients(part, None if needs else where.calls)) for part in run.answer.scalars(target)
            ]
            starts = [run.read_off(part, gradients, where, found.samples) for part, gradients in scalars]
            rows = [one for one in starts if one is not None]
            if len(rows) < len(starts) or _lacks_norms(group, rows):
                return None
            results = _walked(run, group, [(*one, start) for one, start in zip(scalars, rows, strict=True)], settings)
            made |= _attributions(run, group, results, rows, found.shown)
    seconds = (time.perf_counter() - begun) / len(requests)
    return found.shown, [timed(made[request], seconds) for request in requests]


def _lacks_norms(group: list[Request], rows: list[Readout]) -> bool:
    """Return True if a method starts by norms of gradients that are not known."""
    return any(request.options.get("readout") == "gradient" for request in group) and any(
        one.readout_norms is None for one in rows
    )


def _walks_measured(
    model: nn.Module, requests: list[Request], settings: ComputeSettings
) -> tuple[list[ShownStream], list[Attribution | VitrailError]]:
    """The same from a pass that is measured and one that is differentiated."""
    begun, inputs = time.perf_counter(), requests[0].inputs
    adds = any(reads_changes(request) for request in requests)
    with measured_streams(model, inputs, sums=adds) as found:
        streams, samples, shown = found.streams, found.samples, found.shown
        if found.refusal is not None:
            raise SeamError(found.refusal)
        _check_inputs(inputs, shown)
        changes, unknown = _changes(streams, samples, shown) if adds else (None, None)
        made: dict[Request, Attribution | VitrailError] = {}
        for request in requests:
            if (why := _refusal(request, shown, unknown)) is not None:
                made[request] = why
        if len(made) == len(requests):
            return shown, [made[request] for request in requests]
        calls = [one.call for one in streams.seen.calls]
        answer = read_answer(streams.seen.answer, inputs, calls, generates=generates(model))
        groups = by_target([request for request in requests if request not in made])
        starts = [
            [
                Readout(*(readout(streams, samples, part.scalar, by_norm=norms) for norms in (False, True)))
                for part in answer.scalars(target)
            ]
            for target, _ in groups
        ]
        where = last_results(streams, answer)
    taps = [] if changes is None else [tap for tap in changes.tables.taps if tap is not None]
    with stream_forward(model, inputs, taps) as plain:
        if where is not None:
            remember_plain(plain, model, found, where, changes)
        run = plain.on(streams, None if changes is None else changes.updates)
        for (target, group), rows in zip(groups, starts, strict=True):
            parts, needs = run.answer.scalars(target), any(request.differentiates for request in group)
            scalars = [(part, run.gradients(part) if needs else None) for part in parts]
            results = _walked(run, group, [(*one, start) for one, start in zip(scalars, rows, strict=True)], settings)
            made |= _attributions(run, group, results, rows, shown)
    seconds = (time.perf_counter() - begun) / len(requests)
    found_by = [made[request] for request in requests]
    return shown, [timed(one, seconds) if isinstance(one, Attribution) else one for one in found_by]


def _attributions(
    run: StreamPass,
    group: list[Request],
    found: "dict[Request, Found]",
    starts: list[Readout],
    shown: list[ShownStream],
) -> dict[Request, Attribution]:
    """Label what the methods of a group found."""
    made = {}
    for request in group:
        read = torch.stack([one.readout for one in starts]).amax(dim=0) > 0
        target = found[request][0][0].target
        kept = own_texts(shown, run.inputs.batch, target, read, compares=run.answer.compares)
        left_out = [LEFT_OUT] * (len(kept) < len(shown))
        made[request] = _attribution(request, found[request], run, kept, starts, left_out)
    return made


Found = list[tuple[Scalar, Result]]


Scalars = list[tuple[Scalar, list[Tensor | None] | None, Readout]]
"""Scalars, each with the gradients at attention calls, if a method reads any, and the tokens that it reads."""


def _walked(run: StreamPass, group: list[Request], scalars: Scalars, settings: ComputeSettings) -> dict[Request, Found]:
    """Let the methods of a group walk, once for every scalar of their target."""
    found: dict[Request, Found] = {request: [] for request in group}
    needs = any(request.differentiates for request in group)
    plans = [request.plan for request in group if isinstance(request.plan, Walk)]
    hides = any(call.weights is not None or call.mask is not None or call.causal for call in run.calls)
    wide = run.answer.output.wide
    for part, gradients, start in scalars:
        events = Events(
            run.events(part, settings, gradients if needs else None),
            readout=start.to(wide),
            lengths=None if run.updates is None else run.updates.lengths.nan_to_num(0.0).to(wide),
            crosses=any(not torch.equal(event.queries, event.keys) for event in run.streams.attentions),
        )
        made = walk_events([*plans, *[REACH] * hides], events)
        reached = made.pop().result.scores > 0 if hides else None  # pyright: ignore[reportOptionalOperand]
        for request, one in zip(group, made, strict=True):
            found[request].append((part, _held(one.result, reached)))
            run.ran |= one.backends
    return found


def _pass_reach(rows: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """Mark the keys that queries which can reach the answer may see."""
    found, seen, keys = rows > 0, layer.visible, layer.valid.shape[1]
    if seen is None:
        return rows, found.any(dim=1, keepdim=True).to(rows).expand(-1, keys)
    return rows, pass_down(found, seen.any(dim=1).expand(-1, -1, keys)).to(rows)


REACH = Walk(_pass_reach, needs=frozenset())
"""Tokens that can reach what is read, by what attention lets pass, get more than zero."""


def _held(found: Result, reached: Tensor | None) -> Result:
    """Return relevance without what is given to tokens that cannot reach the answer."""
    if reached is None or found.scores is None:
        return found
    dropped = credits_unreachable(found.scores[None], reached[None])
    scores = drop_unreachable(found.scores[None], reached[None])[0]
    own = None if found.own is None else drop_unreachable(found.own[None], reached[None])[0]
    return replace(found, scores=scores, own=own, dropped=dropped)


def reads_changes(request: Request) -> bool:
    """Whether a method reads how tokens are transformed."""
    return _walks_several(request.plan) and "output_weight" in request.plan.needs


def _walks_several(plan: object) -> bool:
    """Return True if a method is defined on several sequences of tokens."""
    return isinstance(plan, Walk) and plan.several


def _changes(
    streams: Streams, samples: Tensor, shown: Sequence[ShownStream]
) -> tuple[FoundUpdates | None, SeamError | None]:
    """Return how every layer transforms tokens, or why that is not known."""
    real = _real_tokens(streams, shown, [one.call for one in streams.seen.calls])
    try:
        return find_updates(streams, samples, real), None
    except SeamError as why:
        return None, why


def _known_changes(known: KnownPass, changing: ReadPass | None, calls: Sequence[AttentionCall]) -> StreamUpdates | None:
    """Return the same in a pass that is known; None where it has to be measured."""
    if known.changes is None or changing is None:
        return None
    try:
        return read_updates(known.changes, changing, _real_tokens(known.found.streams, known.found.shown, calls))
    except Unknown:  # what to say of it is found out where it is measured
        return None


def _real_tokens(streams: Streams, shown: Sequence[ShownStream], calls: Sequence[AttentionCall]) -> Tensor:
    """Return which tokens are no padding."""
    real = ~hidden_tokens(streams, calls)
    for one in shown:
        if one.mask is not None:
            real[one.tokens[~one.mask & (one.tokens >= 0)]] = False
            real[list(one.padding)] = False
    return real


def _refusal(request: Request, shown: Sequence[ShownStream], unknown: SeamError | None) -> VitrailError | None:
    """Why a method is not defined on several streams, or None if it is.

    Args:
        unknown: why it is not known how layers transform tokens.
    """
    if _walks_several(request.plan):
        return unknown if reads_changes(request) else None
    usual = request.entry.resolve("recommended", {}, "text")
    if _walks_several(request.entry.build(**usual)):
        given = ", ".join(f"{name}={value!r}" for name, value in request.options.items() if value != usual.get(name))
        return MethodError(
            f"{request.entry.name} with {given} reads what is not measured on several streams. Leave these options at "
            "their defaults."
        )
    several = f"has {len(shown)} ({', '.join(one.name for one in shown)})"
    what = several if len(shown) > 1 else "changes its tokens between blocks, or keeps them in several axes"
    plans = {name: entry.build(**entry.resolve("recommended", {}, "text")) for name, entry in METHODS.items()}
    walking = [name for name, plan in plans.items() if _walks_several(plan)]
    gradients = [name for name in METHODS if is_gradient(name)]
    return MethodError(
        f"{request.entry.name} is defined on one stream of tokens, but this model {what}. Methods that walk over all "
        f"streams: {', '.join(walking)}; gradients at all inputs: {', '.join(gradients)}."
    )


def _attribution(
    request: Request,
    found: Found,
    run: StreamPass,
    shown: Sequence[ShownStream],
    starts: list[Readout],
    left_out: list[str],
) -> Attribution:
    """The attribution of the stream the user gave, with those of all streams."""
    part = found[0][0]
    total = add_scalars(found, ("scores", "own"))
    scores, own = total["scores"], total.get("own")
    start = starts[0].readout if len(starts) == 1 else None
    # What was not measured, or is a choice where the method's paper has one stream alone.
    merged = any(isinstance(event, Transition) and bool((event.share < 1).any()) for event in run.streams.events)
    changed = run.updates.assumed if run.updates is not None and reads_changes(request) else []
    left_out = [*left_out, *[DROPPED.format(request.entry.name)] * any(one.dropped for _, one in found)]
    assumed = [*[SHARES] * merged, *run.streams.assumed, *changed, *left_out]
    assumed += [said for one in shown if (said := _unlabelled(run.streams, one, shown)) is not None]
    assumed += _unplaced(run.inputs, shown)
    each = {one.name: _one(request, part, run, one, scores, own, start, assumed) for one in shown}
    each = with_zeros(each, signed=request.signed)
    # The stream the user gave: an encoder's, the whole text of a language model with pictures.
    targets = {target for _, target in run.streams.since}
    whole = [one.name for one in shown if one.given == "input_ids" and one.sequence in targets]
    main = "encoder" if "encoder" in each else (whole or list(each))[0]
    return replace(each[main], streams=each if len(each) > 1 else {})


def _unlabelled(streams: Streams, one: ShownStream, shown: Sequence[ShownStream]) -> str | None:
    """Return what to say of tokens beside a signal's that no stream shows; None if there are none."""
    sequence = streams.sequences[one.sequence]
    together = torch.cat([x.tokens.flatten() for x in shown if x.sequence == one.sequence])
    every = sequence.count // len(one.tokens)
    rest = (sequence.count - int(torch.isin(sequence.tokens, together).sum())) // len(one.tokens)
    return None if one.labels is None or rest == 0 else UNSHOWN.format(rest, every)


def _check_inputs(inputs: Inputs, shown: Sequence[ShownStream]) -> None:
    """Refuse a picture or a text none of whose parts is a token of a stream that was seen."""
    given = [x for x in (*inputs.args, *inputs.kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
    pictures = [x for x in given if x.ndim == 4 and x.shape[1] in (1, 3)]
    if pictures and not any(one.kind == "image" for one in shown):
        raise SeamError(
            f"the inputs hold a picture of shape {tuple(pictures[0].shape)}, but which tokens come from which part of "
            "it cannot be told: it is read in another way than by attention over patches (deformable attention samples "
            "it), or mixed before the first attention. Use a gradient method, such as integrated_gradients."
        )
    _check_origins(inputs, shown)
    for name in WORDS:
        if isinstance(inputs.kwargs.get(name), Tensor) and not any(one.given == name for one in shown):
            raise SeamError(
                f"no attention that was intercepted asks for the tokens of {name}: they are read by attention in "
                "another form (within sliding chunks, for example), or mixed before the first attention. A walk would "
                "leave them out. Use a gradient method, such as integrated_gradients."
            )


def _check_origins(inputs: Inputs, shown: Sequence[ShownStream]) -> None:
    """Refuse scores of tokens alone that come from no known part of the input, such as latents that are learned."""
    x = inputs.shown
    if not shown or not all(one.learned for one in shown) or not x.is_floating_point():
        return
    counts = " and ".join(str(one.tokens.shape[1]) for one in shown)
    raise SeamError(
        f"attention asks for {counts} tokens that are learned, and which of those it reads come from which part of the "
        f"input of shape {tuple(x.shape)} is not known. A walk would give scores of learned tokens alone, and nothing "
        "of the input. Use a gradient method, such as integrated_gradients."
    )


def _unplaced(inputs: Inputs, shown: Sequence[ShownStream]) -> list[str]:
    """Return what to say where nothing is known of tokens but their order, and they are not the places of the input."""
    known = any(one.given or one.labels or one.words is not None or one.kind == "image" for one in shown)
    x = inputs.shown
    if known or not x.is_floating_point() or any(one.tokens.shape[1] == x.shape[1] for one in shown):
        return []
    return [UNPLACED.format(max(one.tokens.shape[1] for one in shown), tuple(x.shape))]


UNPLACED = (
    "which part of the input of shape {1} each of the {0} tokens comes from was not measured: scores are those of the "
    "tokens in their order, such as a class token among them"
)


def _one(
    request: Request,
    part: Scalar,
    run: StreamPass,
    stream: ShownStream,
    scores: Tensor,
    own: Tensor | None,
    start: Tensor | None,
    assumed: list[str],
) -> Attribution:
    real = stream.tokens >= 0
    real = real if stream.mask is None else real & stream.mask
    index = stream.tokens.clamp(min=0).to(scores.device)

    def read(x: Tensor) -> Tensor:
        return x[index] * real.to(x.device)

    size = None
    pixels = run.inputs.kwargs.get("pixel_values", run.inputs.args[0] if run.inputs.args else None)
    if stream.kind == "image" and isinstance(pixels, Tensor) and pixels.ndim in (4, 5):
        size = (pixels.shape[-2], pixels.shape[-1])
    own_scores, signal = None if own is None else read(own), run.inputs.signal
    labels = TokenLabels(
        kind=stream.kind,
        grid=stream.grid,
        size=size,
        tokens=_words(stream, run.inputs),
        valid=real.to(scores.device) if stream.kind == "text" and not bool(real.all()) else None,
        readout=_position(stream, start) if stream.kind == "text" else None,
    )
    provenance = {
        "default": request.reason,
        "assumed": assumed,
        "signal": signal_kind(run.inputs.shown.ndim, stream.labels) if signal and stream.labels else None,
    }
    own_scores = own_scores if own_scores is not None and bool((own_scores != 0).any()) else None
    return build_attribution(
        request, part.target, read(scores), labels, provenance, backends=run.ran, maps={"own": own_scores}
    )


def _words(stream: ShownStream, inputs: Inputs) -> tuple[tuple[str, ...], ...] | None:
    """The tokens of a text, as the tokenizer wrote them where it is known."""
    if stream.labels is not None:
        return (stream.labels,) * len(stream.tokens)
    if stream.words is None:
        return None
    if stream.given == "input_ids" and inputs.tokens is not None and inputs.kind == "text":
        return inputs.tokens
    return tuple(tuple(map(str, row)) for row in stream.words.tolist())


def _position(stream: ShownStream, start: Tensor | None) -> Tensor | None:
    """The one position of a stream that each sample is read from, -1 where there are several; None where none is."""
    if start is None:
        return None
    weights = start[stream.tokens.clamp(min=0)] * (stream.tokens >= 0)
    if not bool((weights > 0).any()):
        return None
    return torch.where(weights.amax(dim=1) == 1, weights.argmax(dim=1), -1)
