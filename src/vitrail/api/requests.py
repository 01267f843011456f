"""Requests: a method with its options, made ready to run; what the default is, and what stands in for it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor, nn

from vitrail.capture.pass_options import Wanted
from vitrail.errors import MethodError, TargetError, VitrailError, suggest
from vitrail.methods import DEFAULT_METHOD, DEFAULT_OF, DEFAULT_ON_STREAMS, LAST_RESORT, METHODS, PREFERRED, Method
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import LayerReader, Walk
from vitrail.relevance.runner import RerunMethod
from vitrail.targets import AnyTarget, Target, with_scalar

MethodSpec = str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Request:
    """One method with all its options, on inputs prepared for it.

    Args:
        others: what stands in for it where it does not apply, in this order; none where the user asked for it by name.
        on_streams: what the default is instead on several streams of tokens, and what stands in for that.
        reason: why it stands in for another one, if it does.
        level: where the user asked for relevance to be read; None where the method's own level is taken.
        at_inputs: why gradients are read at the inputs and not at the method's own level, if they are.
        wanted: what it reads of a pass.
        differentiates: whether the method reads any gradient.
    """

    entry: Method
    preset: str
    options: Mapping[str, Any]
    signed: bool
    plan: Walk | LayerReader | RerunMethod
    wanted: Wanted
    inputs: Inputs
    target: Target | Callable[[Tensor], Tensor]
    scalar_given: bool = False
    others: "tuple[Candidate, ...]" = ()
    on_streams: "tuple[Candidate, ...]" = ()
    reason: str | None = None
    level: str | None = None
    at_inputs: str | None = None
    differentiates: bool = True


def read_request(spec: MethodSpec, preset: str, inputs: Inputs, target: Target | Callable[[Tensor], Tensor]) -> Request:
    """A method by name, or by name and options, made ready to run; for the default, the best one that applies."""
    match spec:
        case str(name):
            given = {}
        case (str(name), Mapping() as options):
            given = dict(options)
        case _:
            raise _unknown(spec)
    preset = given.pop("preset", preset)
    if name == DEFAULT_METHOD:
        return _default(given, preset, inputs, target)
    if name not in METHODS:
        raise _unknown(name)
    # Others than plain options may be large, or change.
    known = _resolved if all(type(x) in PLAIN_OPTIONS for x in given.values()) else _resolved.__wrapped__
    found = known(METHODS[name], preset, inputs.kind, tuple((option, type(x), x) for option, x in given.items()))
    plan = found.entry.build(**found.options) if found.walk is None else found.walk
    return Request(
        entry=found.entry,
        preset=preset,
        options=dict(found.options),
        signed=found.signed,
        plan=plan,
        wanted=found.wanted or wanted_by([plan]),
        inputs=inputs if found.entry.prepare_by is None else found.entry.prepare(inputs, found.options),
        target=with_scalar(target, plan.scalar, explicit="scalar" in given),
        scalar_given="scalar" in given,
        level=given.get("level"),
        differentiates=any(need.endswith("_grad") for need in plan.needs),
    )


PLAIN_OPTIONS = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Resolved:
    """A method with all its options; the walk that they make, and what it reads of a pass.

    A walk is three functions of what it is given, so that calls may share it. A `RerunMethod` may keep states of its
    pass, and threads that share one would mix their passes: `walk` is None, and it is built for each call.
    """

    entry: Method
    options: Mapping[str, Any]
    signed: bool
    walk: Walk | LayerReader | None
    wanted: Wanted | None


@lru_cache(maxsize=256)
def _resolved(entry: Method, preset: str, kind: str, given: tuple[tuple[str, type, Any], ...]) -> Resolved:
    """A method with all its options, checked, for one kind of input."""
    options = entry.resolve(preset, {option: value for option, _, value in given}, kind)
    if kind not in entry.inputs:
        raise MethodError(f"{entry.name} explains {' and '.join(entry.inputs)} inputs, but these are {kind}.")
    plan = entry.build(**options)
    walk = None if isinstance(plan, RerunMethod) else plan
    return Resolved(entry, options, entry.is_signed(options), walk, None if walk is None else wanted_by([walk]))


def _unknown(given: object) -> MethodError:
    """What to say of something that names no method."""
    if isinstance(given, str):
        return MethodError(f"unknown method {given!r}. {suggest(given, METHODS)}")
    wrong = given[0] if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping) else given
    return MethodError(
        f"unknown method {wrong!r}: a method is a name, or a pair of a name and a mapping of options. "
        f"{suggest('', METHODS)}"
    )


def check_scalar(request: Request) -> None:
    """Refuse a scalar that was asked for where the model answers with a span, which is explained by its logits."""
    if request.scalar_given:
        raise TargetError(
            "the option scalar applies to a plain class or next token, but this model answers with a span."
        )


def wanted_by(plans: Sequence[Walk | LayerReader | RerunMethod]) -> Wanted:
    """All that these methods read of one pass."""
    needs = frozenset[str]().union(*(plan.needs for plan in plans))
    last_only = [
        not isinstance(one, RerunMethod) and one.last_only
        for one in plans
        if any(need.endswith("_grad") for need in one.needs)
    ]
    early = [None if isinstance(plan, RerunMethod) else plan.early for plan in plans]
    # A gradient is taken at the state itself, which has to be there then.
    late = frozenset(name.removesuffix("_grad") for name in needs if name.endswith("_grad")).union(
        *(plan.needs if read is None else plan.needs - read.needs for plan, read in zip(plans, early, strict=True))
    )
    reads = tuple(read for read in early if read is not None)
    wanted = Wanted.of(needs, last_only=bool(last_only) and all(last_only))
    return replace(wanted, early=reads, passing=needs - late if reads else frozenset())


def by_target(requests: Sequence[Request]) -> list[tuple[Target | Callable[[Tensor], Tensor], list[Request]]]:
    """Requests that share a scalar share a backward pass; those without gradients join the first."""
    groups: list[tuple[Target | Callable[[Tensor], Tensor], list[Request]]] = []
    # Sorting is stable: those that differentiate come first, in their order.
    for request in sorted(requests, key=lambda r: not r.differentiates):
        fitting = (group for target, group in groups if _joins(request, target))
        group = next(fitting, None)
        if group is None:
            groups.append((request.target, [request]))
        else:
            group.append(request)
    return groups


def _joins(request: Request, target: AnyTarget) -> bool:
    """Whether a request can be read beside this target: it is its own, or only its gradients would tell them apart."""
    spans = any(isinstance(one, Target) and one.name == "continuation" for one in (target, request.target))
    return target == request.target or (not request.differentiates and not spans)


logger = logging.getLogger("vitrail")


class Candidate(NamedTuple):
    """A method that the default may be, as `read_request` takes it."""

    spec: MethodSpec
    preset: str
    inputs: Inputs
    target: Target | Callable[[Tensor], Tensor]


def first_of(candidates: Sequence[Candidate], on_streams: Sequence[Candidate] = ()) -> Request:
    """The first of the candidates; the others stand in for it, in their order."""
    found = read_request(*candidates[0])
    return replace(found, others=tuple(candidates[1:]), on_streams=tuple(on_streams))


def _default(
    given: Mapping[str, Any], preset: str, inputs: Inputs, target: Target | Callable[[Tensor], Tensor]
) -> Request:
    """The best method with these options, and what stands in where it does not apply."""
    if isinstance(target, Target) and target.name in DEFAULT_OF:
        return _default_of_answers(given, preset, inputs, target)
    best, second = (Candidate((name, given), preset, inputs, target) for name in PREFERRED)
    known = {name: preset in {"recommended", *METHODS[name].presets} for name in PREFERRED}
    if known[PREFERRED[1]] and not known[PREFERRED[0]]:
        return with_reason(read_request(*second), f"{PREFERRED[0]} has no preset {preset!r}.")
    # Options are those of the best method: where they are given, no other can stand in.
    others = () if given or not known[PREFERRED[1]] else (second, _last_resort(second))
    return first_of([best, *others], () if given else _on_streams(second, others))


def _default_of_answers(given: Mapping[str, Any], preset: str, inputs: Inputs, target: Target) -> Request:
    """The best method for answers, and the walk that stands in; passages are named to those that know them."""
    best, second = DEFAULT_OF[target.name]
    rest = {name: value for name, value in given.items() if name != "sources"}
    walk = Candidate((second, rest), preset, inputs, target)
    others = (walk, _last_resort(walk))
    streams = () if rest else _on_streams(walk, others)
    named = preset in {"recommended", *METHODS[best].presets} and rest.keys() <= METHODS[best].options.keys()
    if not named or inputs.kind not in METHODS[best].inputs:
        return first_of(others, streams)
    if (tokens := inputs.shown.shape[1]) > LONGEST_ANSWER:
        why = f"{best} is the default for answers in texts of at most {LONGEST_ANSWER} tokens; this one has {tokens}."
        return with_reason(first_of(others, streams), why)
    return first_of([Candidate((best, given), preset, inputs, target), *(() if rest else others)], streams)


LONGEST_ANSWER = 4096
"""Tokens up to which `soft_ablation` is the default for answers: it adds a number for each pair of tokens to the scores
of attention, and longer texts are explained by the walk, which was measured on them (docs/answers.md)."""


def _last_resort(candidate: Candidate) -> Candidate:
    """The gradient method that stands in where attention cannot be followed."""
    return candidate._replace(spec=LAST_RESORT, preset="recommended")


def _on_streams(candidate: Candidate, others: Sequence[Candidate]) -> Sequence[Candidate]:
    """What the default is on several streams, and what stands in where a rule is missing; none for other presets."""
    if candidate.preset not in {"recommended", *METHODS[DEFAULT_ON_STREAMS].presets}:
        return ()
    return candidate._replace(spec=DEFAULT_ON_STREAMS), *others


def on_streams(request: Request) -> Request:
    """The request, or what the default is on several streams."""
    if not request.on_streams:
        return request
    best = DEFAULT_OF.get(getattr(request.target, "name", ""), PREFERRED)[0]
    return with_reason(
        first_of(request.on_streams),
        f"{best} is defined on one stream of tokens. On several, {DEFAULT_ON_STREAMS} found planted tokens most often "
        "(docs/streams.md).",
    )


def settled(request: Request, model: nn.Module, body: Body) -> Request:
    """The request, or what stands in for it, if its method does not apply to the model and the inputs."""
    assert isinstance(request.plan, RerunMethod)
    try:
        request.plan.check(model, body, request.inputs)
    except VitrailError as error:
        return instead(request, error)
    return request


def instead(request: Request, error: VitrailError) -> Request:
    """What stands in for a request that cannot be done, or the reason as an error."""
    if not request.others:
        raise error
    return with_reason(first_of(request.others), str(error))


def with_reason(request: Request, reason: str) -> Request:
    """A request that stands in for another one, with the reason, which is logged."""
    logger.warning("no method was named, and %s explains: %s", request.entry.name, reason)
    return replace(request, reason=reason)
