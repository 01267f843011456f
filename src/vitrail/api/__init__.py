"""`explain` and `compare`: check what the user gave, run the model, hand layers to methods, label what comes back."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from vitrail.api.attributions import attach_metadata, attribution_of, timed, walk_requests
from vitrail.api.requests import (
    MethodLike,
    MethodSpec,
    Request,
    check_scalar,
    default_on_several,
    fallback_or_raise,
    read_request,
    wanted_by,
)
from vitrail.api.stream_gradients import check_level_at_inputs, explain_at_inputs, is_gradient
from vitrail.api.streams import explain_streams, reads_changes
from vitrail.attribution import Attribution, Comparison
from vitrail.capture.outputs import Scalar
from vitrail.capture.provenance import DRAWN, fingerprint, provenance
from vitrail.capture.recording.continuations import rows_read
from vitrail.capture.recording.forward import find_body, forward
from vitrail.capture.recording.pass_options import ComputeSettings
from vitrail.capture.recording.passes import Pass
from vitrail.capture.samples import check_all_apart, check_apart
from vitrail.capture.shadow import dtypes_of, shadow
from vitrail.capture.structure.blocks import forget
from vitrail.capture.structure.sequences import has_streams
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
from vitrail.methods import DEFAULT_METHOD, METHODS, READABLE
from vitrail.models.anatomy import Anatomy, Body
from vitrail.models.inputs import Inputs, led_by_text, read_inputs
from vitrail.models.taking import FromFeatures, Prepared, check_target, generates, named_target, opened, prepared
from vitrail.relevance import Result
from vitrail.relevance.dense import backends_used
from vitrail.relevance.runner import RerunMethod, Runner
from vitrail.targets import AnyTarget, as_target

logger = logging.getLogger("vitrail")

Question = tuple[MethodSpec, AnyTarget]
"""A method, and the target that it explains."""
Outcomes = tuple[str | None, Sequence[Attribution | VitrailError]]
"""The model's fingerprint, where it was taken; for each request an attribution, or why its method does not apply."""
Explain = Callable[[nn.Module, list[Request], ComputeSettings], Outcomes]


def explain(  # noqa: PLR0913  (each is a choice of its own)
    model: object,
    inputs: Any,  # noqa: ANN401  (see `vitrail.models.taking`)
    method: MethodSpec = DEFAULT_METHOD,
    target: AnyTarget = None,
    preset: str = "recommended",
    *,
    anatomy: Anatomy | None = None,
    backend: str = "auto",
    chunk_rows: int | None = None,
    memory: str = "auto",
    device: str | None = None,
    **options: Any,  # noqa: ANN401
) -> Attribution:
    """Return the attribution of a prediction to the input: one score per patch or token.

    Args:
        model: any `torch.nn.Module` that returns logits, or an object that holds one: what `vitrail.load` gives, or
            just a name or folder that it takes; a pipeline, a model of sentence-transformers, or a pair of a model of
            transformers and its tokenizer or processor. It is not changed.
        inputs: a preprocessed image batch `[b, 3, h, w]`, or a mapping passed on as keywords. A model that brings its
            preprocessing also takes a picture, a path, an array `[h, w, 3]`, a text, or a list of them; one that
            answers about a picture takes `(picture, question)`, one that answers about a text `(question, context)`.
        method: a name of `vitrail.METHODS`, also with options, `"gae(start_layer=1)"`; `auto` is `consensus` where it
            applies, `attn_lrp` on several streams of tokens, else `gae`; of a contrast of two classes, methods with
            signs. Or a method of your own: a `Walk`, a `RerunMethod`, or a function of a recording that returns one
            score per token.
        target: None (the predicted class, or the answer that was written), a class by its index or its name, one of
            them per sample, a `vitrail.targets` object, or a function of the logits that gives one value per sample.
        preset: `paper`, `official` (the authors' released code) or `recommended`.
        anatomy: where the model's parts are, if it is of no known family.
        backend: `dense`, `chunked`, `fused` (CUDA) or `auto`.
        chunk_rows: rows of attention held at a time by the chunked backend.
        memory: `full` keeps what every block computed for the backward pass, `low` keeps only what entered it and runs
            it again; `auto` keeps what a GPU has room for, and all on a CPU. The results are the same up to rounding.
        device: where a model that is given by its name runs, such as `cuda`; None is the CPU.
        **options: the method's own options, see `vitrail.METHODS[method].options`.
    """
    settings = ComputeSettings(backend, chunk_rows, memory)
    if device is not None:
        model = opened(model, device)
    spec = (method[0], {**method[1], **options}) if isinstance(method, tuple) else (method, options)
    return _explain_each(model, prepared(model, inputs), [(spec, target)], preset, settings, anatomy)[0]


def compare(  # noqa: PLR0913  (each is a choice of its own)
    model: object,
    inputs: Any,  # noqa: ANN401  (see `vitrail.models.taking`)
    methods: Sequence[MethodSpec] | MethodLike | None = None,
    target: AnyTarget = None,
    preset: str = "recommended",
    *,
    anatomy: Anatomy | None = None,
    backend: str = "auto",
    chunk_rows: int | None = None,
    memory: str = "auto",
    on_error: str = "raise",
    targets: Sequence[AnyTarget] | None = None,
    device: str | None = None,
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
        targets: several targets in place of one; every method explains the first, then every method the next.
    """
    if on_error not in ON_ERROR:
        raise OptionError(f"unknown on_error={on_error!r}. {suggest(on_error, ON_ERROR)}")
    if device is not None:
        model = opened(model, device)
    given = prepared(model, inputs)
    if methods is None:
        methods = READABLE[read_inputs(given.inputs).kind]
    methods = list(methods) if isinstance(methods, Sequence) and not isinstance(methods, str) else [methods]
    if not methods:
        raise MethodError(f"no method was named. {suggest('', METHODS)}")
    if targets is not None and target is not None:
        raise OptionError("target and targets were both given: name one target, or several.")
    chosen = [target] if targets is None else list(targets)
    if not chosen:
        raise OptionError("targets is empty: name a target, or leave targets out.")
    questions = [(method, one) for one in chosen for method in methods]
    settings = ComputeSettings(backend, chunk_rows, memory)

    def run(questions: Sequence[Question]) -> list[Attribution]:
        return _explain_each(model, given, questions, preset, settings, anatomy)

    return Comparison(run(questions)) if on_error == "raise" else _keeping(run, questions)


ON_ERROR = ("raise", "keep")


def _keeping(run: Callable[[Sequence[Question]], list[Attribution]], questions: Sequence[Question]) -> Comparison:
    """All methods from one recording; where one of them fails, each from its own, and the errors beside them."""
    if len(questions) > 1:
        with suppress(VitrailError):  # found again below, with the method it belongs to
            return Comparison(run(questions))
    found: list[Attribution] = []
    failed: dict[int, VitrailError] = {}
    for position, question in enumerate(questions):
        try:
            found += run([question])
        except VitrailError as error:
            failed[position] = error
    return Comparison(found, failed)


def _by_text(model: object, read: Inputs) -> Inputs:
    """Pictures with texts; of a model that writes text, or of what holds one, each text is a sample with all of its."""
    held = (model, *(getattr(model, name, None) for name in ("model", "module")))
    return led_by_text(read) if any(generates(one) for one in held) else read


def _explain_each(
    model: object,
    given: Prepared,
    questions: Sequence[Question],
    preset: str,
    settings: ComputeSettings,
    anatomy: Anatomy | None = None,
) -> list[Attribution]:
    """Explain every target by its method, on a shadow of the model; say where each result comes from."""
    if current_transform() is not None:
        raise InputError(
            "an explanation cannot be computed inside of torch.vmap, torch.func.grad, jvp or another transform: its "
            "passes are its own, and its result has no gradient. Call it outside, on the whole batch."
        )
    started, read = time.perf_counter(), read_inputs(given.inputs)
    read = _by_text(model, read) if read.shared else read
    requests, first = list[Request](), dict[int, Request]()
    for spec, target in questions:
        request = read_request(spec, preset, read, as_target(named_target(given, target)))
        same = first.setdefault(id(spec), request)
        if same is not request and same.entry is request.entry:  # its part of a forward pass is done once
            request = replace(request, plan=same.plan, inputs=same.inputs)
        requests.append(request)
    drawn = list[bool]()
    with shadow(model, drawn) as own:
        for request in requests if isinstance(own, FromFeatures) else ():
            check_target(own, request.target)
        identity, made = explain_requests(own, read, requests, settings, anatomy)
        origin = provenance(own, samples=read.batch, identity=identity)
        seconds = time.perf_counter() - started
    if drawn:
        origin["random"] = DRAWN
    if len(made) == 1:  # all of the call is its own
        return [attach_metadata(made[0], given, read, origin, seconds=seconds, shared_seconds=0.0)]
    shared = max(0.0, seconds - sum(one.provenance["seconds"] for one in made))
    return [attach_metadata(one, given, read, origin, shared_seconds=shared) for one in made]


def explain_requests(
    model: nn.Module, read: Inputs, requests: Sequence[Request], settings: ComputeSettings, anatomy: Anatomy | None
) -> tuple[str | None, list[Attribution]]:
    """Explain group after group; a request whose method does not apply waits again with the one that stands in.

    Where other blocks run than earlier inputs had shown, they are found again, once, and all begins anew.
    """
    waiting, made = dict(enumerate(requests)), dict[int, Attribution]()
    identity: str | None = None
    blocks_are_new = False
    while waiting:
        group = waiting
        try:
            group, explain = _next_group(model, read, waiting, settings, anatomy)
            known, outcomes = explain(model, list(group.values()), settings)
        except SeamError as error:
            if isinstance(error, OtherBlocksError) and not blocks_are_new:
                forget(model)
                waiting, made, blocks_are_new = dict(enumerate(requests)), {}, True
                continue
            known, outcomes = None, [error] * len(group)
        identity = known or identity
        if any(isinstance(outcome, SeamError) for outcome in outcomes):
            check_all_apart(model, read)
        for (i, request), outcome in zip(list(group.items()), outcomes, strict=True):
            if isinstance(outcome, Attribution):
                made[i] = outcome
                del waiting[i]
            else:
                waiting[i] = _stand_in(request, outcome, anatomy)
    return identity, [made[i] for i in range(len(requests))]


def _stand_in(request: Request, error: VitrailError, anatomy: Anatomy | None) -> Request:
    """Return what stands in for a request: another method, or itself at the inputs; or raise the error.

    Where attention cannot be followed, gradient methods are read at the inputs. Nothing stands in for the default where
    there is no attention, or where the caller's own anatomy is contradicted. Where attention has no gradient, nothing
    stands in for any method: gradients at the inputs would leave it out.
    """
    if not isinstance(error, SeamError):
        return fallback_or_raise(request, error)
    if isinstance(error, CutGraphError) or request.reads_inputs:
        raise error
    if request.default is None and is_gradient(request.entry.name):
        found = replace(request, at_inputs=str(error), reads_inputs=True)
        check_level_at_inputs(found)
        logger.warning("%s is read at the inputs: %s", request.entry.name, error)
        return found
    if anatomy is not None or isinstance(error, NoAttentionError):
        raise error
    return fallback_or_raise(request, error, "no attention")


def _next_group(
    model: nn.Module,
    read: Inputs,
    waiting: Mapping[int, Request],
    settings: ComputeSettings,
    anatomy: Anatomy | None,
) -> tuple[dict[int, Request], Explain]:
    """Return requests that share passes, by their position, and the function that explains them.

    Methods that make their own passes come first, so that a walk that stands in for one shares the pass of others.
    """
    if at_inputs := {i: one for i, one in waiting.items() if one.reads_inputs}:
        return at_inputs, explain_at_inputs
    if has_streams(model, read, anatomy):
        check_memory(settings, "a model with several streams")
        if any(is_gradient(one.entry.name) for one in waiting.values()):
            check_apart(model, read)  # of others the pass that is measured says it
        return {i: default_on_several(one) for i, one in waiting.items()}, explain_streams
    body = find_body(model, anatomy, read)
    if body.loose is not None and (apart := {i: one for i, one in waiting.items() if _reads_blocks(one)}):
        return apart, partial(_without_blocks, body)
    for one in waiting.values():
        if isinstance(one.plan, RerunMethod):
            return {i: x for i, x in waiting.items() if x.plan is one.plan}, partial(_rerun, body)
    first = next(iter(waiting.values()))
    return {i: one for i, one in waiting.items() if one.inputs is first.inputs}, partial(_walk, body)


BETWEEN = "embedding_output"
"""The level of what enters the first block."""


def _is_between(request: Request) -> bool:
    """Return True if a method reads gradients at what enters the first block."""
    return is_gradient(request.entry.name) and request.options.get("level", BETWEEN) == BETWEEN


def _reads_blocks(request: Request) -> bool:
    """Return True if a method reads what blocks would show, unless the user named the level."""
    return reads_changes(request) or (_is_between(request) and request.level is None)


def _without_blocks(body: Body, model: nn.Module, requests: list[Request], settings: ComputeSettings) -> Outcomes:
    """Explain where no module is a block: what blocks would show is measured as on several streams."""
    check_memory(settings, "a model whose blocks are no modules")
    refusal = structure_of(model, requests[0].inputs, body).refusal
    if refusal is not None and any(map(reads_changes, requests)):  # such as attention side by side
        raise SeamError(refusal)
    moved = [replace(one, at_inputs=body.loose) if _is_between(one) else one for one in requests]
    return explain_streams(model, moved, settings)


def check_memory(settings: ComputeSettings, what: str) -> None:
    """Refuse to save memory where blocks cannot be run again one by one."""
    if settings.memory == "low":
        raise OptionError(
            f"memory='low' is for methods that walk from the last layer to the first, such as gae and tokentm, and not "
            f"for {what}. Leave memory out."
        )


def _walk(body: Body, model: nn.Module, requests: list[Request], settings: ComputeSettings) -> Outcomes:
    """Explain in one forward pass, and one backward pass for every scalar that any of the requests differentiates.

    The model's fingerprint is taken while a GPU is still busy, before anything waits for numbers.
    """
    begun, inputs = time.perf_counter(), requests[0].inputs
    rows = None if inputs.ids is None else rows_read([request.target for request in requests], inputs)
    wanted = requests[0].wanted if len(requests) == 1 else wanted_by([request.plan for request in requests])
    with forward(model, inputs, body, wanted, settings, lean=True, rows=rows) as run:
        found = walk_requests(run, requests, wanted)
        identity = fingerprint(model)
        made = []
        for request, one in found.items():
            if len(requests) > 1:  # else both passes are its own
                begun = time.perf_counter() - one.seconds
            made.append(attribution_of(request, one.results, run, backends=one.backends, begun=begun))
        return identity, made


def _rerun(body: Body, model: nn.Module, requests: list[Request], settings: ComputeSettings) -> Outcomes:
    """Explain by a method that makes its own passes, or return why it does not apply."""
    procedure, begun = requests[0].plan, time.perf_counter()
    assert isinstance(procedure, RerunMethod)
    try:
        procedure.check(model, body, requests[0].inputs)
    except VitrailError as error:
        return None, [error] * len(requests)
    if procedure.pass_options.graph:
        check_memory(settings, requests[0].entry.name)
    try:
        made = _run_procedure(model, body, requests, procedure, settings)
    except (RuleError, OptionError, MethodError) as error:  # what has no rule, or no word embeddings
        return None, [error] * len(requests)
    spent = time.perf_counter() - begun
    return None, [timed(one, spent) for one in made]


def _run_procedure(
    model: nn.Module, body: Body, requests: list[Request], procedure: RerunMethod, settings: ComputeSettings
) -> list[Attribution]:
    """Make a pass as the method asks for it, and follow the procedure on each scalar of each request."""
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
                    found.append((part, _with_reach(procedure.explain(runner), run, part)))
            dtype = torch.float64 if double else torch.float32
            run.settle()  # what reads nothing is said before a map of zeros is
            made.append(attribution_of(request, found, run, backends=used, dtype=dtype))
    return made


def _with_reach(result: Result, run: Pass, part: Scalar) -> Result:
    """Add which tokens can reach the scalar, unless the method follows other rows and says so itself."""
    if result.reached is not None or not run.masked:
        return result
    return replace(result, reached=run.reached(part))
