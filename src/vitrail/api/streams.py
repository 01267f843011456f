"""Explanations of models with several streams of tokens, or whose tokens change between blocks."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitrail.api.attributions import TokenLabels, add_scalars, build_attribution, timed, walk_requests
from vitrail.api.bounds import DROPPED, UNSHOWN, credits_unreachable, drop_unreachable, with_zeros
from vitrail.api.requests import Request, wanted_by
from vitrail.api.stream_gradients import explain_at_inputs, is_gradient
from vitrail.attribution import Attribution
from vitrail.capture.outputs import Scalar
from vitrail.capture.provenance import fingerprint
from vitrail.capture.recording.pass_options import ComputeSettings
from vitrail.capture.recording.stream_passes import StreamPass, UnknownReadout
from vitrail.capture.recording.stream_recording import record_streams
from vitrail.capture.structure.origins import signal_kind
from vitrail.capture.structure.stream_checks import measured_streams
from vitrail.capture.structure.stream_origins import LEFT_OUT, WORDS, ShownStream, own_texts
from vitrail.capture.structure.streams import Streams, Transition
from vitrail.errors import MethodError, RuleError, SeamError, VitrailError
from vitrail.methods import METHODS
from vitrail.models.inputs import Inputs
from vitrail.relevance import Result, Walk

SHARES = "tokens that are merged, pooled or projected share the relevance of what they make equally"


def explain_streams(
    model: nn.Module, requests: list[Request], settings: ComputeSettings
) -> tuple[str, list[Attribution | VitrailError]]:
    """Explain over several sequences of tokens, or return why a method does not apply; walks share their passes."""
    walking = [request for request in requests if not is_gradient(request.entry.name)]
    shown, made = _streams_of_default(model, requests), dict[Request, Attribution | VitrailError]()
    if walking:
        shown, found = _walk_streams(model, walking, settings)
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


def _walk_streams(
    model: nn.Module, requests: list[Request], settings: ComputeSettings, *, cut_readout: bool = False
) -> tuple[list[ShownStream], list[Attribution | VitrailError]]:
    """Return the streams, and what every method that walks over them gives; methods share the passes.

    Args:
        cut_readout: let a pass whose results are cut tell which tokens are read.
    """
    begun, inputs = time.perf_counter(), requests[0].inputs
    targets = [request.target for request in requests]
    changes = any(map(reads_changes, requests))
    norms = any(request.options.get("readout") == "gradient" for request in requests)
    passes = record_streams(model, inputs, targets, settings, changes=changes, norms=norms, cut_readout=cut_readout)
    made: dict[Request, Attribution | VitrailError] = {}
    try:
        with passes as run:
            _check_inputs(inputs, run.found.shown)
            for request in requests:
                if (why := _refusal(request, run.found.shown, run.unknown)) is not None:
                    made[request] = why
            walking = [request for request in requests if request not in made]
            for request, one in walk_requests(run, walking, wanted_by([request.plan for request in walking])).items():
                made[request] = _attribution(request, one.results, run, backends=one.backends)
    except UnknownReadout:
        return _walk_streams(model, requests, settings, cut_readout=True)
    seconds = (time.perf_counter() - begun) / len(requests)
    outcomes = [made[request] for request in requests]
    return run.found.shown, [timed(one, seconds) if isinstance(one, Attribution) else one for one in outcomes]


def reads_changes(request: Request) -> bool:
    """Return True if a method walks over several streams and reads how tokens are transformed."""
    return _walks_several(request.plan) and "output_weight" in request.plan.needs


def _walks_several(plan: object) -> bool:
    """Return True if a method is defined on several sequences of tokens."""
    return isinstance(plan, Walk) and plan.several


def _refusal(request: Request, shown: Sequence[ShownStream], unknown: SeamError | None) -> VitrailError | None:
    """Return the reason as an error if a method is not defined on several streams, else None.

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
    request: Request, results: list[tuple[Scalar, Result]], run: StreamPass, *, backends: Collection[str]
) -> Attribution:
    """The attribution of the stream the user gave, with those of all streams."""
    part, starts = results[0][0], [run.read[id(part)].readout for part, _ in results]
    read = torch.stack(starts).amax(dim=0) > 0
    shown = own_texts(run.found.shown, run.plain.inputs.batch, part.target, read, compares=run.plain.answer.compares)
    held = [(scalar, *_held(result)) for scalar, result in results]
    total = add_scalars([(scalar, result) for scalar, result, _ in held], ("scores", "own"))
    scores, own = total["scores"], total.get("own")
    start = starts[0] if len(starts) == 1 else None
    # What was not measured, or is a choice where the method's paper has one stream alone.
    merged = any(isinstance(event, Transition) and bool((event.share < 1).any()) for event in run.found.streams.events)
    changed = run.updates.assumed if run.updates is not None and reads_changes(request) else []
    left_out = [LEFT_OUT] * (len(shown) < len(run.found.shown))
    left_out += [DROPPED.format(request.entry.name)] * any(dropped for _, _, dropped in held)
    assumed = [*[SHARES] * merged, *run.found.streams.assumed, *changed, *left_out]
    assumed += [said for one in shown if (said := _unlabelled(run.found.streams, one, shown)) is not None]
    assumed += _unplaced(run.plain.inputs, shown)
    known = assumed, backends
    each = {one.name: _one(request, part, run, one, scores, own, start, known) for one in shown}
    each = with_zeros(each, signed=request.signed)
    # The stream the user gave: an encoder's, the whole text of a language model with pictures.
    targets = {target for _, target in run.found.streams.since}
    whole = [one.name for one in shown if one.given == "input_ids" and one.sequence in targets]
    main = "encoder" if "encoder" in each else (whole or list(each))[0]
    return replace(each[main], streams=each if len(each) > 1 else {})


def _held(result: Result) -> tuple[Result, bool]:
    """Return relevance without what is given to tokens that cannot reach the answer, and whether that was notable."""
    reached = result.reached
    if reached is None or result.scores is None:
        return result, False
    dropped = credits_unreachable(result.scores[None], reached[None])
    scores = drop_unreachable(result.scores[None], reached[None])[0]
    own = None if result.own is None else drop_unreachable(result.own[None], reached[None])[0]
    return replace(result, scores=scores, own=own), dropped


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
    known: tuple[list[str], Collection[str]],
) -> Attribution:
    """The attribution of one stream.

    Args:
        start: the weights of the tokens that are read; None where several scalars are.
        known: what was assumed, and the backends.
    """
    assumed, backends = known
    real = stream.tokens >= 0
    real = real if stream.mask is None else real & stream.mask
    index = stream.tokens.clamp(min=0).to(scores.device)

    def read(x: Tensor) -> Tensor:
        return x[index] * real.to(x.device)

    size = None
    pixels = run.plain.inputs.kwargs.get("pixel_values", run.plain.inputs.args[0] if run.plain.inputs.args else None)
    if stream.kind == "image" and isinstance(pixels, Tensor) and pixels.ndim in (4, 5):
        size = (pixels.shape[-2], pixels.shape[-1])
    own_scores, signal = None if own is None else read(own), run.plain.inputs.signal
    labels = TokenLabels(
        kind=stream.kind,
        grid=stream.grid,
        size=size,
        tokens=_words(stream, run.plain.inputs),
        valid=real.to(scores.device) if stream.kind == "text" and not bool(real.all()) else None,
        readout=_position(stream, start) if stream.kind == "text" else None,
    )
    provenance = {
        "default": request.reason,
        "assumed": assumed,
        "signal": signal_kind(run.plain.inputs.shown.ndim, stream.labels) if signal and stream.labels else None,
    }
    own_scores = own_scores if own_scores is not None and bool((own_scores != 0).any()) else None
    return build_attribution(
        request, part.target, read(scores), labels, provenance, backends=backends, maps={"own": own_scores}
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
