"""The border: check what the user gave, run the model, hand layers to methods, label what comes back."""

import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.attribution import Attribution
from vitrail.capture.forward import find_body, forward
from vitrail.capture.outputs import Scalar
from vitrail.capture.passes import Settings
from vitrail.capture.runner import RerunMethod, Runner
from vitrail.capture.shadow import shadow
from vitrail.comparison import Comparison
from vitrail.defaults import DEFAULT_METHOD, instead, read_spec, settled
from vitrail.errors import MethodError, OptionError, RuleError, suggest
from vitrail.labelling import attribution_of
from vitrail.methods import METHODS
from vitrail.models.anatomy import Anatomy, Body
from vitrail.models.inputs import read_inputs
from vitrail.models.taking import check_target
from vitrail.provenance import fingerprint, provenance
from vitrail.relevance import Result, Walk
from vitrail.relevance.walk import Walker
from vitrail.requests import MethodSpec, Request, by_target, check_scalar, wanted_by
from vitrail.targets import AnyTarget, as_target


def explain(
    model: object,
    inputs: Tensor | Mapping[str, Any],
    method: str = DEFAULT_METHOD,
    target: AnyTarget = None,
    preset: str = "recommended",
    *,
    anatomy: Anatomy | None = None,
    backend: str = "auto",
    chunk_rows: int | None = None,
    **options: Any,  # noqa: ANN401
) -> Attribution:
    """What the model looked at, as one score per patch or token.

    Args:
        model: any `torch.nn.Module` that returns logits, or a pipeline or a model of sentence-transformers around one.
            It is not changed.
        inputs: a preprocessed image batch `[b, 3, h, w]`, or a mapping passed on as keywords.
        method: a name of `vitrail.METHODS`; `auto` is `consensus` where it applies, else `gae`.
        target: None (the predicted class), an int, one int per sample, a `vitrail.targets` object, or a function of
            the logits that gives one value per sample.
        preset: `paper`, `official` (the authors' released code) or `recommended`.
        anatomy: where the model's parts are, if it is of no known family.
        backend: `dense`, `chunked`, `fused` (CUDA) or `auto`.
        chunk_rows: rows of attention held at a time by the chunked backend.
        **options: the method's own options, see `vitrail.METHODS[method].options`.
    """
    (found,) = compare(
        model,
        inputs,
        [(method, options)],
        target,
        preset,
        anatomy=anatomy,
        backend=backend,
        chunk_rows=chunk_rows,
    )
    return found


def compare(
    model: object,
    inputs: Tensor | Mapping[str, Any],
    methods: Sequence[MethodSpec] | str,
    target: AnyTarget = None,
    preset: str = "recommended",
    *,
    anatomy: Anatomy | None = None,
    backend: str = "auto",
    chunk_rows: int | None = None,
) -> Comparison:
    """Several methods on the same inputs, from one forward pass and one backward pass per target scalar.

    Args:
        model: any `torch.nn.Module` that returns logits, or a pipeline or a model of sentence-transformers around one.
            It is not changed.
        inputs: as for `explain`.
        methods: names, or pairs of a name and options; an option `preset` overrides the common one. `auto` is
            `consensus` where it applies, else `gae`.
        target: as for `explain`.
        preset: the preset of methods that name none.
        anatomy: where the model's parts are, if it is of no known family.
        backend: `dense`, `chunked`, `fused` (CUDA) or `auto`.
        chunk_rows: rows of attention held at a time by the chunked backend.
    """
    started = time.perf_counter()
    settings = Settings(backend, chunk_rows)
    methods = [methods] if isinstance(methods, str) else methods
    if not methods:
        raise MethodError(f"no method was named. {suggest('', METHODS)}")
    read = read_inputs(inputs)
    requests = [read_spec(spec, preset, read, as_target(target)) for spec in methods]
    with shadow(model) as own:
        check_target(own, as_target(target))
        identity, made = _explained(own, find_body(own, anatomy, read), requests, settings)
        seconds = time.perf_counter() - started
        backend = made[0].provenance["backend"]
        origin = provenance(own, seconds=seconds, backend=backend, samples=read.batch, identity=identity)
    return Comparison(
        [_with_provenance(one, origin) for one in _timed([made[i] for i in range(len(requests))], seconds)]
    )


def _explained(
    model: nn.Module, body: Body, requests: list[Request], settings: Settings
) -> tuple[str | None, dict[int, Attribution]]:
    """Every request answered: procedures one by one, all else from one pass for each form of the inputs."""
    made: dict[int, Attribution] = {}
    identity: str | None = None
    requests = [settled(request, model, body) for request in requests]
    for i, request in enumerate(requests):
        if isinstance(request.plan, RerunMethod):
            try:
                begun = time.perf_counter()
                made[i] = _with_seconds(_follow(model, body, request, request.plan, settings), begun=begun)
            except (RuleError, OptionError) as error:  # what has no rule, or no word embeddings, is met on the way
                requests[i] = instead(request, error)
    order = sorted(set(range(len(requests))) - set(made), key=lambda i: id(requests[i].inputs))
    for _, group in groupby(order, key=lambda i: id(requests[i].inputs)):
        indices = list(group)
        identity, found = _run(model, body, [requests[i] for i in indices], settings)
        made |= dict(zip(indices, found, strict=True))
    return identity, made


def _timed(made: Sequence[Attribution], total: float) -> list[Attribution]:
    """Each result with its own seconds, and with those of the call that belong to no one result alone."""
    if len(made) == 1:
        return [_with_provenance(made[0], {}, seconds=total, shared_seconds=0.0)]
    shared = max(0.0, total - sum(one.provenance["seconds"] for one in made))
    return [_with_provenance(one, {}, shared_seconds=shared) for one in made]


def _with_seconds(attribution: Attribution, *, begun: float) -> Attribution:
    """The result with the seconds that were spent on it alone."""
    return _with_provenance(attribution, {}, seconds=time.perf_counter() - begun)


def _with_provenance(attribution: Attribution, origin: Mapping[str, Any], **more: Any) -> Attribution:  # noqa: ANN401
    return Attribution(**{**vars(attribution), "provenance": {**origin, **attribution.provenance, **more}})


def _run(model: nn.Module, body: Body, requests: list[Request], settings: Settings) -> tuple[str, list[Attribution]]:
    """One forward pass, then one backward pass for every scalar that any of the requests differentiates.

    The model's fingerprint comes with it: it is taken while a GPU is still busy, before anything waits for numbers.
    """
    begun = time.perf_counter()
    with forward(model, requests[0].inputs, body, wanted_by(requests), settings, lean=True) as run:
        jobs = [(part, group) for target, group in by_target(requests) for part in run.parts(target)]
        found: dict[Request, list[tuple[Scalar, Result]]] = {request: [] for request in requests}
        ran: dict[Request, set[str]] = {request: set() for request in requests}
        spent = dict.fromkeys(requests, 0.0)
        for job, (part, group) in enumerate(jobs):
            for request in group:
                check_scalar(request, part.target)
            walkers = [Walker(request.plan) for request in group if isinstance(request.plan, Walk)]
            again = job + 1 < len(jobs)
            for layer in run.layers(part, wanted_by(group), again=again, shared=len(group) > 1):
                for walker in walkers:
                    walker.see(layer)
            for request, walker in zip(group, walkers, strict=True):
                assert walker.result is not None
                found[request].append((part, walker.result))
                ran[request] |= walker.ran
                spent[request] += walker.seconds
        identity = fingerprint(model)
        made = []
        for request in requests:
            run.ran = ran[request]
            if len(requests) > 1:  # else both passes are its own
                begun = time.perf_counter() - spent[request]
            made.append(_with_seconds(attribution_of(request, found[request], run), begun=begun))
        return identity, made


def _follow(model: nn.Module, body: Body, request: Request, procedure: RerunMethod, settings: Settings) -> Attribution:
    """A pass under the circumstances the procedure asks for, and the procedure on each of its scalars."""
    double = any(p.dtype is torch.float64 for p in model.parameters())
    with forward(model, request.inputs, body, wanted_by([request]), settings, procedure.pass_options) as run:
        found: list[tuple[Scalar, Result]] = []
        for part in run.parts(request.target):
            check_scalar(request, part.target)
            found.append((part, procedure.explain(Runner(model, run.trace.body, request.inputs, run, part, settings))))
        return attribution_of(request, found, run, torch.float64 if double else torch.float32)
