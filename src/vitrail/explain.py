"""The border: check what the user gave, run the model, hand layers to methods, label what comes back."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, overload

import torch
from torch import Tensor, nn

from vitrail.anatomy import Anatomy, Body
from vitrail.attribution import Attribution
from vitrail.errors import InputError, MethodError, OptionError, suggest
from vitrail.inputs import Inputs, read_inputs
from vitrail.methods import METHODS, Method
from vitrail.provenance import provenance
from vitrail.record import Pass, Settings, Wanted, find_body, forward
from vitrail.relevance import Result, Walk
from vitrail.relevance.walk import Walker
from vitrail.targets import AnyTarget, Target, as_target, with_scalar

DEFAULT_METHOD = "gae"
MethodSpec = str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Request:
    """One method with all its options, on inputs prepared for it."""

    entry: Method
    preset: str
    options: Mapping[str, Any]
    walk: Walk
    inputs: Inputs
    target: Target | Callable[[Tensor], Tensor]


class Comparison(Sequence[Attribution]):
    """Attributions of the same inputs by several methods, by position or by label."""

    def __init__(self, attributions: Sequence[Attribution]) -> None:
        self.attributions = tuple(attributions)

    @property
    def labels(self) -> tuple[str, ...]:
        """The methods with the options that differ from their defaults."""
        return tuple(a.label for a in self.attributions)

    @overload
    def __getitem__(self, key: int | str) -> Attribution: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Attribution]: ...
    def __getitem__(self, key: int | str | slice) -> Attribution | Sequence[Attribution]:
        """By position, or by label: `comparison["gae"]`."""
        if not isinstance(key, str):
            return self.attributions[key]
        for name, attribution in zip(self.labels, self.attributions, strict=True):
            if key in (name, attribution.method):
                return attribution
        raise MethodError(f"{key!r} is not in this comparison. {suggest(key, self.labels)}")

    def __len__(self) -> int:
        """How many methods were compared."""
        return len(self.attributions)

    def plot(self, image: Any = None, *, index: int = 0) -> Any:  # noqa: ANN401
        """All methods side by side for one sample."""
        from vitrail.plots import comparison_sheet

        return comparison_sheet([list(self.attributions)], image, index=index)


def explain(
    model: nn.Module,
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
        model: any module that returns logits. It is not changed.
        inputs: a preprocessed image batch `[b, 3, h, w]`, or a mapping passed on as keywords.
        method: a name of `vitrail.METHODS`.
        target: None (the predicted class), an int, one int per sample, a `vitrail.targets` object, or a function of
            the logits that gives one value per sample.
        preset: `paper`, `official` (the authors' released code) or `recommended`.
        anatomy: where the model's parts are, if it is of no known family.
        backend: `dense`, `chunked` or `auto`.
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
    model: nn.Module,
    inputs: Tensor | Mapping[str, Any],
    methods: Sequence[MethodSpec],
    target: AnyTarget = None,
    preset: str = "recommended",
    *,
    anatomy: Anatomy | None = None,
    backend: str = "auto",
    chunk_rows: int | None = None,
) -> Comparison:
    """Several methods on the same inputs, from one forward pass and one backward pass per target scalar.

    Args:
        model: any module that returns logits. It is not changed.
        inputs: as for `explain`.
        methods: names, or pairs of a name and options; an option `preset` overrides the common one.
        target: as for `explain`.
        preset: the preset of methods that name none.
        anatomy: where the model's parts are, if it is of no known family.
        backend: `dense`, `chunked` or `auto`.
        chunk_rows: rows of attention held at a time by the chunked backend.
    """
    started = time.perf_counter()
    model = getattr(model, "_orig_mod", model)  # torch.compile hides attention; its original module does not
    settings = Settings(backend, chunk_rows)
    if not methods:
        raise MethodError(f"no method was named. {suggest('', METHODS)}")
    read = read_inputs(inputs)
    requests = [_request(spec, preset, read, as_target(target)) for spec in methods]
    body = find_body(model, anatomy)
    made: dict[int, Attribution] = {}
    order = sorted(range(len(requests)), key=lambda i: id(requests[i].inputs))
    for _, group in groupby(order, key=lambda i: id(requests[i].inputs)):
        indices = list(group)
        made |= dict(zip(indices, _run(model, body, [requests[i] for i in indices], settings), strict=True))
    origin = provenance(
        model, seconds=time.perf_counter() - started, backend=made[0].provenance["backend"], samples=read.batch
    )
    return Comparison([_with_provenance(made[i], origin) for i in range(len(requests))])


def _with_provenance(attribution: Attribution, origin: Mapping[str, Any]) -> Attribution:
    return Attribution(**{**vars(attribution), "provenance": {**origin, **attribution.provenance}})


def _request(spec: MethodSpec, preset: str, inputs: Inputs, target: Target | Callable[[Tensor], Tensor]) -> Request:
    name, given = (spec, {}) if isinstance(spec, str) else spec
    if name not in METHODS:
        raise MethodError(f"unknown method {name!r}. {suggest(name, METHODS)}")
    entry, given = METHODS[name], dict(given)
    preset = given.pop("preset", preset)
    options = entry.resolve(preset, given, inputs.kind)
    walk = entry.build(**options)
    return Request(
        entry=entry,
        preset=preset,
        options=options,
        walk=walk,
        inputs=entry.prepare(inputs, options),
        target=with_scalar(target, walk.scalar, explicit="scalar" in given),
    )


def _run(model: nn.Module, body: Body, requests: list[Request], settings: Settings) -> list[Attribution]:
    """One forward pass, then one backward pass for every scalar that any of the requests differentiates."""
    wanted = _wanted(requests)
    with forward(model, requests[0].inputs, body, wanted, settings) as run:
        jobs = [(part, group) for target, group in _by_target(requests) for part in run.parts(target)]
        found: dict[int, list[tuple[Any, Result]]] = {}
        for job, (part, group) in enumerate(jobs):
            walkers = [Walker(request.walk) for request in group]

            def see(layer: Any, walkers: list[Walker] = walkers) -> None:  # noqa: ANN401
                for walker in walkers:
                    walker.see(layer)

            run.visit(part, _wanted(group), see, again=job + 1 < len(jobs), shared=len(group) > 1)
            for request, walker in zip(group, walkers, strict=True):
                assert walker.result is not None
                found.setdefault(id(request), []).append((part, walker.result))
        return [_attribution(request, found[id(request)], run) for request in requests]


def _wanted(requests: Sequence[Request]) -> Wanted:
    needs = frozenset[str]().union(*(r.walk.needs for r in requests))
    with_gradients = [r.walk for r in requests if any(n.endswith("_grad") for n in r.walk.needs)]
    return Wanted.of(needs, last_only=bool(with_gradients) and all(w.last_only for w in with_gradients))


def _by_target(requests: list[Request]) -> Iterator[tuple[AnyTarget, list[Request]]]:
    """Requests that share a scalar share a backward pass; those without gradients join the first."""
    plain = [r for r in requests if not any(n.endswith("_grad") for n in r.walk.needs)]
    groups: list[tuple[AnyTarget, list[Request]]] = []
    for request in requests:
        if request in plain:
            continue
        for target, group in groups:
            if target == request.target:
                group.append(request)
                break
        else:
            groups.append((request.target, [request]))
    if not groups:
        return iter([(plain[0].target, plain)])
    groups[0][1].extend(plain)
    return iter(groups)


def _attribution(request: Request, results: list[tuple[Any, Result]], run: Pass) -> Attribution:
    """The results of all parts of the target, added, cut to the content and labelled."""
    inputs, target = run.inputs, results[0][0].target

    def joined(name: str) -> Tensor | None:
        found = [getattr(result, name) for _, result in results]
        if found[0] is None:
            return None
        total = sum((x.abs() if target.absolute else x) for x in found)
        return _content(total, run)

    scores = joined("scores")
    assert scores is not None
    if not bool(torch.isfinite(scores).all()):
        raise InputError(
            f"{request.entry.name} gave scores that are not finite for the target {target}. Ratios and relative "
            "differences break down where a logit is near zero: use targets.difference."
        )
    patches = scores.shape[1]
    return Attribution(
        scores=scores,
        method=request.entry.name,
        target=target,
        kind=inputs.kind,
        signed=request.entry.is_signed(request.options),
        preset=request.preset,
        options=dict(request.options),
        grid=grid_of(patches, inputs.size) if inputs.size else None,
        size=inputs.size,
        tokens=inputs.tokens if inputs.kind == "text" else None,
        valid=run.valid if inputs.kind == "text" and not bool(run.valid.all()) else None,
        readout=run.readout_position(results[0][0]) if inputs.kind == "text" and len(results) == 1 else None,
        layers=joined("layers"),
        heads=joined("heads"),
        provenance={"backend": run.backend},
    )


def _content(x: Any, run: Pass) -> Tensor:  # noqa: ANN401
    """Scores of real tokens only: padding zero, and for images without the prefix."""
    x = x * run.valid.view(x.shape[0], *[1] * (x.ndim - 2), -1)
    return x[..., run.prefix :].clone() if run.inputs.kind == "image" else x


def grid_of(patches: int, size: tuple[int, int]) -> tuple[int, int]:
    """How the patches lie in an image of this size: square patches, or an error."""
    height, width = size
    rows = round((patches * height / width) ** 0.5)
    if rows < 1 or patches % rows or abs(height / rows - width / (patches // rows)) > 1:
        raise OptionError(
            f"{patches} patches do not tile an image of {height} x {width} with square patches. If tokens stand before "
            "the patches, name their number: vitrail.Anatomy(prefix=...)."
        )
    return rows, patches // rows
