"""`explain` and `compare`: check what the user gave, run the model, hand layers to methods, label what comes back."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import nn

from vitrail.api.attributions import attach_metadata, attribution_of, timed
from vitrail.api.requests import (
    MethodSpec,
    Request,
    by_target,
    check_scalar,
    instead,
    on_streams,
    read_request,
    settled,
    wanted_by,
    with_reason,
)
from vitrail.api.stream_gradients import check_level_at_inputs, is_gradient
from vitrail.api.streams import explain_at_inputs, explain_streams, reads_changes
from vitrail.attribution import Attribution, Comparison
from vitrail.capture.continuations import rows_read
from vitrail.capture.forward import find_body, forward
from vitrail.capture.measure import has_streams
from vitrail.capture.outputs import Scalar
from vitrail.capture.pass_options import ComputeSettings
from vitrail.capture.passes import Pass
from vitrail.capture.provenance import fingerprint, provenance
from vitrail.capture.samples import check_all_apart, check_apart
from vitrail.capture.shadow import dtypes_of, shadow
from vitrail.capture.structure.blocks import forget
from vitrail.capture.structure.variants import structure_of
from vitrail.capture.torch_private import current_transform
from vitrail.errors import (
    CutGraphError,
    InputError,
    MethodError,
    NoAttentionError,
    OptionError,
    OtherBlocksError,
    RuleError,
    SeamError,
    VitrailError,
    suggest,
)
from vitrail.methods import (
    DEFAULT_METHOD,
    LAST_RESORT,
    METHODS,
    READABLE,
)
from vitrail.models.anatomy import Anatomy, Body
from vitrail.models.inputs import Inputs, led_by_text, read_inputs
from vitrail.models.taking import FromFeatures, Prepared, check_target, generates, prepared
from vitrail.relevance import Result
from vitrail.relevance.dense import backends_used
from vitrail.relevance.runner import RerunMethod, Runner
from vitrail.relevance.walk import Events, walk_events
from vitrail.targets import AnyTarget, as_target

logger = logging.getLogger("vitrail")


def at_inputs_instead(request: Request, error: SeamError, anatomy: Anatomy | None) -> Request:
    """What stands in for a request where attention cannot be followed: itself or a gradient method, or the error.

    Nothing stands in for the default where there is no attention, or where the caller's own anatomy is contradicted.
    Where attention has no gradient, nothing stands in for any method: gradients at the inputs would leave it out.
    """
    if isinstance(error, CutGraphError):
        raise error
    if not is_gradient(request.entry.name):
        last = [one for one in request.others if one.spec == LAST_RESORT]
        if not last or anatomy is not None or isinstance(error, NoAttentionError):
            raise error
        return with_reason(read_request(*last[0]), str(error))
    found = replace(request, at_inputs=str(error))
    check_level_at_inputs(found)
    logger.warning("%s is read at the inputs: %s", request.entry.name, error)
    return found


def explain(  # noqa: PLR0913  (each is a choice of its own)
    model: object,
    inputs: Any,  # noqa: ANN401  (see `vitrail.models.taking`)
    method: str = DEFAULT_METHOD,
    target: AnyTarget = None,
    preset: str = "recommended",
    *,
    anatomy: Anatomy | None = None,
    backend: str = "auto",
    chunk_rows: int | None = None,
    memory: str = "auto",
    **options: Any,  # noqa: ANN401
) -> Attribution:
    """What the model looked at, as one score per patch or token.

    Args:
        model: any `torch.nn.Module` that returns logits, or an object that holds one: a model of `vitrail.zoo` or its
            name, what `vitrail.models.loading.load` gives, a pipeline, a model of sentence-transformers. It is not
            changed.
        inputs: a preprocessed image batch `[b, 3, h, w]`, or a mapping passed on as keywords. A model that brings its
            preprocessing also takes a picture, a path, an array `[h, w, 3]`, a text, or a list of them.
        method: a name of `vitrail.METHODS`; `auto` is `consensus` where it applies, `attn_lrp` on several streams of
            tokens, else `gae`.
        target: None (the predicted class), an int, one int per sample, a `vitrail.targets` object, or a function of
            the logits that gives one value per sample.
        preset: `paper`, `official` (the authors' released code) or `recommended`.
        anatomy: where the model's parts are, if it is of no known family.
        backend: `dense`, `chunked`, `fused` (CUDA) or `auto`.
        chunk_rows: rows of attention held at a time by the chunked backend.
        memory: `full` keeps what every block computed for the backward pass, `low` keeps only what entered it and runs
            it again; `auto` keeps what a GPU has room for, and all on a CPU. The results are the same up to rounding.
        **options: the method's own options, see `vitrail.METHODS[method].options`.
    """
    settings = ComputeSettings(backend, chunk_rows, memory)
    return _answer(model, prepared(model, inputs), [((method, options), target)], preset, settings, anatomy)[0]


def compare(  # noqa: PLR0913  (each is a choice of its own)
    model: object,
    inputs: Any,  # noqa: ANN401  (see `vitrail.models.taking`)
    methods: Sequence[MethodSpec] | str | None = None,
    target: AnyTarget = None,
    preset: str = "recommended",
    *,
    anatomy: Anatomy | None = None,
    backend: str = "auto",
    chunk_rows: int | None = None,
    memory: str = "auto",
    on_error: str = "raise",
) -> Comparison:
    """Several methods on the same inputs, from one forward pass and one backward pass per target scalar.

    Args:
        model: any `torch.nn.Module` that returns logits, or a pipeline or a model of sentence-transformers around one.
            It is not changed.
        inputs: as for `explain`.
        methods: names, or pairs of a name and options; an option `preset` overrides the common one. `auto` is as for
            `explain`. None: a few methods of different kinds, `auto` first.
        target: as for `explain`.
        preset: the preset of methods that name none.
        anatomy: where the model's parts are, if it is of no known family.
        backend: `dense`, `chunked`, `fused` (CUDA) or `auto`.
        chunk_rows: rows of attention held at a time by the chunked backend.
        memory: as for `explain`.
        on_error: `raise` the error of a method that fails, or `keep` the results of the others; `Comparison.failed`
            then holds the errors by the position of their methods.
    """
    if on_error not in ON_ERROR:
        raise OptionError(f"unknown on_error={on_error!r}. {suggest(on_error, ON_ERROR)}")
    given = prepared(model, inputs)
    if methods is None:
        methods = READABLE[read_inputs(given.inputs).kind]
    methods = [methods] if isinstance(methods, str) else list(methods)
    if not methods:
        raise MethodError(f"no method was named. {suggest('', METHODS)}")
    settings = ComputeSettings(backend, chunk_rows, memory)

    def run(methods: Sequence[MethodSpec]) -> list[Attribution]:
        return _answer(model, given, [(method, target) for method in methods], preset, settings, anatomy)

    return Comparison(run(methods)) if on_error == "raise" else _keeping(run, methods)


ON_ERROR = ("raise", "keep")


def _keeping(run: Callable[[Sequence[MethodSpec]], list[Attribution]], methods: Sequence[MethodSpec]) -> Comparison:
    """All methods from one recording; where one of them fails, each from its own, and the errors beside them."""
    if len(methods) > 1:
        with suppress(VitrailError):  # found again below, with the method it belongs to
            return Comparison(run(methods))
    found: list[Attribution] = []
    failed: dict[int, VitrailError] = {}
    for position, spec in enumerate(methods):
        try:
            found += run([spec])
        except VitrailError as error:
            failed[position] = error
    return Comparison(found, failed)


def _by_text(model: object, read: Inputs) -> Inputs:
    """Pictures with texts; of a model that writes text, or of what holds one, each text is a sample with all of its."""
    held = (model, *(getattr(model, name, None) for name in ("model", "module")))
    return led_by_text(read) if any(generates(one) for one in held) else read


def explain_each(
    model: object,
    inputs: Any,  # noqa: ANN401  (see `vitrail.models.taking`)
    method: str,
    targets: Sequence[AnyTarget],
    preset: str = "recommended",
    *,
    memory: str = "auto",
    **options: Any,  # noqa: ANN401
) -> Comparison:
    """One method for several targets, from one forward pass and one backward pass for each; arguments as `explain`."""
    spec = (method, options)
    asked = [(spec, target) for target in targets]
    return Comparison(_answer(model, prepared(model, inputs), asked, preset, ComputeSettings(memory=memory)))


def _answer(
    model: object,
    given: Prepared,
    asked: Sequence[tuple[MethodSpec, AnyTarget]],
    preset: str,
    settings: ComputeSettings,
    anatomy: Anatomy | None = None,
) -> list[Attribution]:
    """Every method for its target, in their order, on a shadow of the model; with where each result comes from."""
    if current_transform() is not None:
        raise InputError(
            "an explanation cannot be computed inside of torch.vmap, torch.func.grad, jvp or another transform: its "
            "passes are its own, and its result has no gradient. Call it outside, on the whole batch."
        )
    started, read = time.perf_counter(), read_inputs(given.inputs)
    read = _by_text(model, read) if read.shared else read
    requests = [read_request(spec, preset, read, as_target(target)) for spec, target in asked]
    if len(asked) > 1 and all(spec is asked[0][0] for spec, _ in asked):
        # One method for several targets: what it needs of a forward pass is done once.
        requests = [replace(one, plan=requests[0].plan, inputs=requests[0].inputs) for one in requests]
    random = torch.get_rng_state()
    with shadow(model) as own:
        for request in requests if isinstance(own, FromFeatures) else ():
            check_target(own, request.target)
        try:
            identity, made = _by_attention(own, read, requests, settings, anatomy)
        except SeamError as error:
            check_all_apart(own, read)
            identity, made = explain_at_inputs(own, [at_inputs_instead(one, error, anatomy) for one in requests])
        draws = not torch.equal(random, torch.get_rng_state())
        origin = provenance(own, samples=read.batch, identity=identity, draws=draws)
        seconds = time.perf_counter() - started
    if len(made) == 1:  # all of the call is its own
        return [attach_metadata(made[0], given, read, origin, seconds=seconds, shared_seconds=0.0)]
    shared = max(0.0, seconds - sum(one.provenance["seconds"] for one in made.values()))
    return [attach_metadata(made[i], given, read, origin, shared_seconds=shared) for i in range(len(requests))]


def _by_attention(
    model: nn.Module,
    read: Inputs,
    requests: list[Request],
    settings: ComputeSettings,
    anatomy: Anatomy | None,
    *,
    again: bool = False,
) -> tuple[str | None, dict[int, Attribution]]:
    """Every request answered by what attention shows; again where other blocks run than earlier inputs had found."""
    try:
        if has_streams(model, read, anatomy):
            check_memory(settings, "a model with several streams")
            if any(is_gradient(one.entry.name) for one in requests):
                check_apart(model, read)  # of others the pass that is measured says it
            return explain_streams(model, [on_streams(one) for one in requests], settings)
        body = find_body(model, anatomy, read)
        answer = _on_one_stream if body.loose is None else _without_blocks
        return answer(model, body, requests, settings)
    except OtherBlocksError:
        if again:
            raise
    forget(model)
    return _by_attention(model, read, requests, settings, anatomy, again=True)


def _on_one_stream(
    model: nn.Module, body: Body, requests: list[Request], settings: ComputeSettings
) -> tuple[str | None, dict[int, Attribution]]:
    """Every request answered: procedures one by one, all else from one pass for each form of the inputs."""
    made: dict[int, Attribution] = {}
    identity: str | None = None
    requests = [settled(r, model, body) if isinstance(r.plan, RerunMethod) else r for r in requests]
    for _, same in groupby(range(len(requests)), key=lambda i: id(requests[i].plan)):
        group = list(same)
        plan = requests[group[0]].plan
        if isinstance(plan, RerunMethod):
            if plan.pass_options.graph:
                check_memory(settings, requests[group[0]].entry.name)
            try:
                begun = time.perf_counter()
                found = _rerun(model, body, [requests[i] for i in group], plan, settings)
                spent = time.perf_counter() - begun
                made |= {i: timed(one, spent) for i, one in zip(group, found, strict=True)}
            except (RuleError, OptionError, MethodError) as error:  # what has no rule, or no word embeddings
                for i in group:
                    requests[i] = instead(requests[i], error)
    order = sorted(set(range(len(requests))) - set(made), key=lambda i: id(requests[i].inputs))
    for _, group in groupby(order, key=lambda i: id(requests[i].inputs)):
        indices = list(group)
        identity, found = _walk(model, body, [requests[i] for i in indices], settings)
        made |= dict(zip(indices, found, strict=True))
    return identity, made


def _without_blocks(
    model: nn.Module, body: Body, requests: list[Request], settings: ComputeSettings
) -> tuple[str | None, dict[int, Attribution]]:
    """Every request answered where no module is a block: what blocks would show is measured as on several streams."""
    at_inputs = [is_gradient(one.entry.name) and one.options.get("level") == BETWEEN for one in requests]
    apart = [i for i, one in enumerate(requests) if reads_changes(one) or (at_inputs[i] and one.level is None)]
    rest = [i for i in range(len(requests)) if i not in apart]
    if apart:
        check_memory(settings, "a model whose blocks are no modules")
        refusal = structure_of(model, requests[0].inputs, body).refusal
        if refusal is not None and any(reads_changes(requests[i]) for i in apart):  # such as attention side by side
            raise SeamError(refusal)
    moved = [replace(requests[i], at_inputs=body.loose if at_inputs[i] else None) for i in apart]
    identity, found = explain_streams(model, moved, settings) if apart else (None, {})
    made = {i: found[place] for place, i in enumerate(apart)}
    if rest:
        identity, found = _on_one_stream(model, body, [requests[i] for i in rest], settings)
        made |= {i: found[place] for place, i in enumerate(rest)}
    return identity, made


BETWEEN = "embedding_output"
"""The level of what enters the first block."""


def _with_reach(result: Result, run: Pass, part: Scalar) -> Result:
    """Add which tokens can reach the scalar, unless the method follows other rows and says so itself."""
    if result.reached is not None or not run.masked:
        return result
    return replace(result, reached=run.reached(part))


def check_memory(settings: ComputeSettings, what: str) -> None:
    """Refuse to save memory where blocks cannot be run again one by one."""
    if settings.memory == "low":
        raise OptionError(
            f"memory='low' is for methods that walk from the last layer to the first, such as gae and tokentm, and not "
            f"for {what}. Leave memory out."
        )


def _walk(
    model: nn.Module, body: Body, requests: list[Request], settings: ComputeSettings
) -> tuple[str, list[Attribution]]:
    """One forward pass, then one backward pass for every scalar that any of the requests differentiates.

    The model's fingerprint comes with it: it is taken while a GPU is still busy, before anything waits for numbers.
    """
    begun, inputs = time.perf_counter(), requests[0].inputs
    rows = None if inputs.ids is None else rows_read([request.target for request in requests], inputs)
    wanted = requests[0].wanted if len(requests) == 1 else wanted_by([request.plan for request in requests])
    with forward(model, inputs, body, wanted, settings, lean=True, rows=rows) as run:
        jobs = [(part, group) for target, group in by_target(requests) for part in run.parts(target)]
        found: dict[Request, list[tuple[Scalar, Result]]] = {request: [] for request in requests}
        used: dict[Request, set[str]] = {request: set() for request in requests}
        spent = dict.fromkeys(requests, 0.0)
        for job, (part, group) in enumerate(jobs):
            for request in group if part.target.name == "answer_span" else ():
                check_scalar(request)
            plans = [request.plan for request in group if not isinstance(request.plan, RerunMethod)]
            own = wanted if len(group) == len(requests) else wanted_by([request.plan for request in group])
            events = Events(run.events(part, own, again=job + 1 < len(jobs), shared=len(group) > 1))
            for request, one in zip(group, walk_events(plans, events), strict=True):
                result = replace(one.result, reached=run.reached(part)) if run.masked else one.result
                found[request].append((part, result))
                used[request] |= one.backends
                spent[request] += one.seconds
        identity = fingerprint(model)
        made = []
        for request in requests:
            if len(requests) > 1:  # else both passes are its own
                begun = time.perf_counter() - spent[request]
            made.append(attribution_of(request, found[request], run, backends=used[request], begun=begun))
        return identity, made


def _rerun(
    model: nn.Module, body: Body, requests: list[Request], procedure: RerunMethod, settings: ComputeSettings
) -> list[Attribution]:
    """A pass as the method asks for it, and the procedure on each scalar of each request."""
    double = torch.float64 in dtypes_of(model)
    inputs, made = requests[0].inputs, []
    rows = None if inputs.ids is None else rows_read([request.target for request in requests], inputs)
    with forward(model, inputs, body, requests[0].wanted, settings, procedure.pass_options, rows=rows) as run:
        if run.structure.refusal is not None:  # of what the model did to these inputs
            check_all_apart(model, inputs)
        for request in requests:
            found: list[tuple[Scalar, Result]] = []
            with backends_used() as used:
                for part in run.parts(request.target):
                    if part.target.name == "answer_span":
                        check_scalar(request)
                    runner = Runner(model, run.capture.body, inputs, run, part, settings)
                    result = procedure.explain(runner)
                    found.append((part, _with_reach(result, run, part)))
            dtype = torch.float64 if double else torch.float32
            run.settle()  # what reads nothing is said before a map of zeros is
            made.append(attribution_of(request, found, run, backends=used, dtype=dtype))
    return made
