"""Walk over the recording of a pass, and build an `Attribution`: scores with their tokens, and where they come from."""

import time
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from math import inf
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from vitrail.api.bounds import DROPPED, OF_TOKENS, PADDING_IS_READ, UNSHOWN, explain_sizes, hold_to_reach, reads_padding
from vitrail.api.requests import Request, by_target, check_scalar, wanted_by
from vitrail.attribution import Attribution, SeenPictures, class_titles
from vitrail.capture.outputs import Scalar
from vitrail.capture.recording.layer import Layer
from vitrail.capture.recording.pass_options import Wanted
from vitrail.capture.recording.passes import Pass
from vitrail.capture.recording.reach import pass_down
from vitrail.capture.recording.stream_passes import StreamPass
from vitrail.capture.structure.origins import signal_kind
from vitrail.models.inputs import Inputs, patch_sums
from vitrail.models.taking import Prepared
from vitrail.relevance import Result, Walk
from vitrail.relevance.runner import RerunMethod
from vitrail.relevance.walk import walk_events
from vitrail.targets import Target

ARRAY = "array of {}"
"""An array among the options, as a result keeps it."""


@dataclass(frozen=True, eq=False)
class TokenLabels:
    """The labels of scores: patches of a picture, or tokens of a text. The fields are those of `Attribution`."""

    kind: str
    grid: tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    tokens: tuple[tuple[str, ...], ...] | None = None
    valid: Tensor | None = None
    readout: Tensor | None = None


def build_attribution(
    request: Request,
    target: Target,
    scores: Tensor,
    labels: TokenLabels,
    provenance: Mapping[str, Any],
    *,
    backends: Collection[str] = (),
    options: Mapping[str, Any] = MappingProxyType({}),
    maps: Mapping[str, Tensor | None] = MappingProxyType({}),
) -> Attribution:
    """Return the attribution of what a method found.

    Args:
        provenance: how the scores were made; what is None or an empty list is left out.
        backends: what computed sums over attention maps.
        options: further options that the result names.
        maps: what it holds beside the scores: `own`, `pixels`, `layers`, `heads`.
    """
    named = {**request.options, **options}
    for name, value in named.items():
        if hasattr(value, "shape"):
            named[name] = ARRAY.format(" x ".join(map(str, value.shape)))
    known = {name: x for name, x in provenance.items() if x is not None and x != []}
    own = not isinstance(request.entry.built_by, str)
    if own:
        known["method"] = request.entry.paper
    return Attribution(
        scores=scores,
        method=request.entry.name,
        target=target,
        signed=request.signed or (own and bool((scores < 0).any())),
        preset=request.preset,
        options=named,
        provenance={**known, "backend": ", ".join(sorted(backends, reverse=True)) or "none"},
        own=maps.get("own"),
        pixels=maps.get("pixels"),
        layers=maps.get("layers"),
        heads=maps.get("heads"),
        **vars(labels),
    )


@dataclass(eq=False)
class WalkOutcome:
    """The results of the walk of a request: one for each scalar of its target."""

    results: list[tuple[Scalar, Result]] = field(default_factory=list)
    backends: set[str] = field(default_factory=set)
    seconds: float = 0.0


def walk_requests(run: Pass | StreamPass, requests: list[Request], wanted: Wanted) -> dict[Request, WalkOutcome]:
    """Walk over the recording of a pass, once for every scalar that any of the requests differentiates.

    Args:
        wanted: what all the requests read of the pass.
    """
    groups = by_target(requests) if len(requests) > 1 else [(one.target, requests) for one in requests]
    jobs = [(part, group) for target, group in groups for part in run.parts(target)]
    found = {request: WalkOutcome() for request in requests}
    for job, (part, group) in enumerate(jobs):
        for request in group if part.target.name == "answer_span" else ():
            check_scalar(request)
        plans = [request.plan for request in group if not isinstance(request.plan, RerunMethod)]
        own = wanted if len(group) == len(requests) else wanted_by([request.plan for request in group])
        events = run.events(part, own, again=job + 1 < len(jobs), shared=len(group) > 1)
        if isinstance(run, StreamPass) and run.masked:
            *walked, marks = walk_events([*plans, REACH], events)
            reached = None if marks.result.scores is None else marks.result.scores > 0
        else:
            walked = walk_events(plans, events)
            reached = run.reached(part) if isinstance(run, Pass) and run.masked else None
        for request, one in zip(group, walked, strict=True):
            found[request].results.append((part, replace(one.result, reached=reached)))
            found[request].backends |= one.backends
            found[request].seconds += one.seconds
    return found


def _pass_reach(rows: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """Mark the keys that queries which can reach the answer may see."""
    found, seen, keys = rows > 0, layer.visible, layer.valid.shape[1]
    if seen is None:
        return rows, found.any(dim=1, keepdim=True).to(rows).expand(-1, keys)
    return rows, pass_down(found, seen.any(dim=1).expand(-1, -1, keys)).to(rows)


REACH = Walk(_pass_reach, needs=frozenset())
"""Tokens that can reach what is read, by what attention lets pass, get more than zero."""


def add_scalars(found: list[tuple[Scalar, Result]], names: Iterable[str]) -> dict[str, Tensor]:
    """Add what a method found for every scalar of a target, by its names; of what it did not find, nothing."""
    total: dict[str, Tensor] = {}
    for name in names:
        parts = [getattr(result, name) for _, result in found]
        if parts[0] is not None:
            total[name] = reduce(torch.add, [x.abs() for x in parts] if found[0][0].target.absolute else parts)
    return total


def attribution_of(
    request: Request,
    results: list[tuple[Scalar, Result]],
    run: Pass,
    *,
    backends: Collection[str] = (),
    dtype: torch.dtype | None = None,
    begun: float | None = None,
) -> Attribution:
    """Add the results of all scalars of the target, cut them to the content, and label them.

    Args:
        backends: what computed the sums over attention maps.
        dtype: what the numbers are given in, if not in that of the pass.
        begun: when the work on this result began.
    """
    inputs, target, grid = run.inputs, results[0][0].target, run.origin.grid
    dropped = False
    if any(result.reached is not None for _, result in results):
        results, dropped = hold_to_reach(results, run)
    total = add_scalars(results, (*OF_TOKENS, "pixels", "residual"))
    padding = [] if inputs.attention_mask is None else [reads_padding(results, total.get("scores"), run)]
    for name, x in total.items():
        total[name] = x if dtype is None else x.to(dtype)
        if name in OF_TOKENS:  # those of the input in their order, padding zero
            real = run.valid.view(x.shape[0], *[1] * (x.ndim - 2), -1)
            total[name] = run.patches(total[name] * real)
    pixels, scores = total.get("pixels"), total.get("scores")
    if pixels is not None and grid is not None:
        scores = patch_sums(pixels, grid, run.origin.patch)
    assert scores is not None
    sizes, *padding = torch.stack([scores.abs().amax(dim=1), *padding]).tolist()  # a device is asked once
    zero = None if all(0 < size < inf for size in sizes) else explain_sizes(request, results, run, sizes)
    text = inputs.kind == "text"
    labels = TokenLabels(
        kind=inputs.kind,
        grid=grid,
        size=inputs.size,
        tokens=inputs.tokens if run.origin.labels is None else (run.origin.labels,) * inputs.batch,
        valid=run.patches(run.valid) if text and not bool(run.valid.all()) else None,
        readout=run.readout_position() if text and len(results) == 1 else None,
    )
    provenance = {
        **_provenance(request, results, run, total.get("residual"), dropped=dropped, padding=any(map(any, padding))),
        "zero": zero,
        "seconds": None if begun is None else time.perf_counter() - begun,
    }
    return build_attribution(request, target, scores, labels, provenance, backends=backends, maps=total)


def _provenance(
    request: Request,
    results: list[tuple[Scalar, Result]],
    run: Pass,
    residual: Tensor | None,
    *,
    dropped: bool,
    padding: bool,
) -> dict[str, Any]:
    """Return how a result was made: what was assumed, which parts were added, how far they agree."""
    target, first = results[0][0].target, results[0][1]
    differences = [result.disagreement for _, result in results if result.disagreement is not None]
    rest = run.origin.tokens - len(run.origin.index)
    said = {
        "signal": None if run.origin.labels is None else signal_kind(run.inputs.shown.ndim, run.origin.labels),
        "residual": None if residual is None else residual.tolist(),
        "default": request.reason,
        "assumed": [
            *run.assumed,
            *dict.fromkeys(one for _, result in results for one in result.assumed),
            *[DROPPED.format(request.entry.name)] * dropped,
            *[UNSHOWN.format(rest, run.origin.tokens)] * (run.origin.labels is not None and rest > 0),
            *[PADDING_IS_READ] * padding,
        ],
        "recomputed_blocks": max(run.recomputed, first.recomputed) or None,
        "virtual_tokens": run.virtual or None,  # what they got is not among the scores
        "parts": list(first.parts),
        "disagreement": torch.stack(differences).mean(dim=0).tolist() if differences else None,
    }
    logits, one_class = run.output.wide.detach(), target.first is not None and target.second is None
    if one_class and not run.output.span and logits.ndim == 2 and logits.shape[1] > 1:
        classes = torch.as_tensor(target.first, device=logits.device).reshape(-1, 1).expand(len(logits), 1)
        said["probability"] = logits.softmax(dim=1).gather(1, classes)[:, 0].tolist()
    return said


def timed(one: Attribution, seconds: float) -> Attribution:
    """Return the result with the seconds that were spent on it."""
    return replace(one, provenance={**one.provenance, "seconds": seconds})


def attach_metadata(
    attribution: Attribution,
    given: Prepared,
    read: Inputs,
    origin: Mapping[str, Any] = MappingProxyType({}),
    **more: float,
) -> Attribution:
    """Return the attribution with where it comes from, the names of its classes, and what its maps are drawn over."""
    classes = given.class_names
    names = None if classes is None else class_titles(attribution.target, classes, attribution.scores.shape[0])
    seen = None
    if attribution.kind == "image":
        borrowed = None if given.pictures else weakref.ref(read.shown)
        seen = SeenPictures(given.pictures, borrowed, preprocess=given.preprocess, photographs=given.photographs)
    elif "signal" in attribution.provenance:
        seen = SeenPictures(borrowed=weakref.ref(read.shown), signal=True)
    known = {**origin, **attribution.provenance, **more, **({"classes": names} if names else {})}
    if given.multi_label:  # the softmax of independent classes says nothing
        known.pop("probability", None)
    return replace(attribution, provenance=known, seen=seen)
