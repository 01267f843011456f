"""Requests: a method with its options, made ready to run; where none is named, the first that applies."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from torch import Tensor

from vitrail.capture.recording.pass_options import Wanted
from vitrail.errors import MethodError, OptionError, TargetError, VitrailError, suggest
from vitrail.methods import CONTRAST, DEFAULT_METHOD, DEFAULTS, METHODS, Method, check_kind, find_method, parse_spec
from vitrail.methods.table import NO_PAPER, check_options, name_of, reads_recording
from vitrail.models.inputs import Inputs
from vitrail.relevance import LayerReader, Walk
from vitrail.relevance.runner import RerunMethod
from vitrail.targets import AnyTarget, Target, with_scalar

logger = logging.getLogger("vitrail")

MethodLike = str | Walk | LayerReader | RerunMethod | Callable[..., Any]
"""A method by its name, also with options, `"gae(start_layer=1)"`; a method; or a function of a recording."""
MethodSpec = MethodLike | tuple[MethodLike, Mapping[str, Any]]
AnyScalar = Target | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Default:
    """The methods that may explain where none is named.

    Args:
        case: a name of `DEFAULTS`, which says in what order.
        left: the options and the preset of each method that has not failed.
        inputs, target: what is explained.
        reasons: why methods that come before do not explain.
    """

    case: str
    left: Mapping[str, tuple[Mapping[str, Any], str]]
    inputs: Inputs
    target: AnyScalar
    reasons: tuple[str, ...] = ()

    @property
    def best(self) -> str | None:
        """The first method that may explain; None if there is none."""
        return next((name for name in DEFAULTS[self.case] if name in self.left), None)

    def without(self, name: str | None, reason: str, case: str | None = None) -> "Default":
        """Return what is left without a method, with the reason; in another case, earlier reasons say nothing."""
        left = {other: given for other, given in self.left.items() if other != name}
        reasons = (*self.reasons, reason) if case is None else (reason,)
        return replace(self, case=case or self.case, left=left, reasons=reasons)

    def request(self) -> "Request":
        """Return the request of the best method; say why it stands in for another one, if it does."""
        assert self.best is not None
        options, preset = self.left[self.best]
        found = read_request((self.best, options), preset, self.inputs, self.target)
        if self.reasons:
            logger.warning("no method was named, and %s explains: %s", self.best, self.reasons[-1])
        return replace(
            found, default=self, reason=" ".join(self.reasons) or None, reads_inputs=self.case == "no attention"
        )


@dataclass(frozen=True, eq=False)
class Request:
    """One method with all its options, on inputs prepared for it.

    Args:
        default: the methods that may explain in its place; None where the user asked for it by name.
        reason: why it stands in for another one, if it does.
        level: where the user asked for relevance to be read; None where the method's own level is taken.
        named: the options that the user gave.
        at_inputs: why gradients are read at the inputs and not at the method's own level, if they are.
        reads_inputs: whether they are read there because attention cannot be followed.
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
    target: AnyScalar
    scalar_given: bool = False
    default: Default | None = None
    reason: str | None = None
    level: str | None = None
    named: frozenset[str] = frozenset()
    at_inputs: str | None = None
    reads_inputs: bool = False
    differentiates: bool = True


def read_request(spec: MethodSpec, preset: str, inputs: Inputs, target: AnyScalar) -> Request:
    """A method by name, or by name and options, made ready to run; for the default, the best one that applies."""
    method, given = read_spec(spec)
    preset = given.pop("preset", preset)
    if method == DEFAULT_METHOD:
        return read_default(given, preset, inputs, target).request()
    entry = entry_of(method) if not isinstance(method, str) else METHODS.get(method) or find_method(method)
    # Others than plain options may be large, or change.
    plain = isinstance(method, str) and all(type(x) in PLAIN_OPTIONS for x in given.values())
    known = _resolved if plain else _resolved.__wrapped__
    found = known(entry, preset, inputs.kind, tuple((option, type(x), x) for option, x in given.items()))
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
        named=frozenset(given),
        differentiates=any(need.endswith("_grad") for need in plan.needs),
    )


def read_spec(spec: MethodSpec) -> tuple[MethodLike, dict[str, Any]]:
    """Return the name of a method, or the method, and the options that were given with it.

    `"gae(start_layer=1)"` is read as the command line reads it.
    """
    match spec:
        case (method, Mapping() as options):
            given = dict(options)
        case method:
            given = {}
    if isinstance(method, str):
        if "(" in method:
            name, written = parse_spec(method, auto=True)
            if twice := sorted(written.keys() & given.keys()):
                raise OptionError(f"the option {twice[0]} is given twice: in {method!r}, and beside it.")
            return name, {**written, **given}
        return method, given
    if not isinstance(method, PLANS) and (not callable(method) or isinstance(method, type)):
        raise MethodError(
            f"unknown method {method!r}: a method is a name, a method or a function of a recording, or a pair of one "
            f"and a mapping of options. {suggest('', METHODS)}"
        )
    return method, given


def entry_of(method: Any) -> Method:  # noqa: ANN401
    """Return the entry of a method that was given as an object or as a function of a recording."""
    name = name_of(method, METHODS)
    if isinstance(method, PLANS):
        return Method(name, lambda: method, NO_PAPER)
    check_options(name, method)
    if not reads_recording(method):
        raise MethodError(
            f"{name} takes no recording: a method is a Walk, a LayerReader, a RerunMethod, or a function of a "
            "recording that returns scores. A function that makes one is registered: "
            f"vitrail.register_method({name!r}, {name})."
        )
    return Method(name, method, NO_PAPER)


PLANS = (Walk, LayerReader, RerunMethod)
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
    check_kind(entry, kind)
    plan = entry.build(**options)
    walk = None if isinstance(plan, RerunMethod) else plan
    return Resolved(entry, options, entry.is_signed(options), walk, None if walk is None else wanted_by([walk]))


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


def by_target(requests: Sequence[Request]) -> list[tuple[AnyScalar, list[Request]]]:
    """Requests that share a scalar share a backward pass; those without gradients join the first."""
    groups: list[tuple[AnyScalar, list[Request]]] = []
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
    """Return True if a request can share this target's backward pass: the class is its own, and so is the gradient."""
    if target == request.target or request.differentiates:
        return target == request.target
    both = [one for one in (target, request.target) if isinstance(one, Target) and one.name != "continuation"]
    return len(both) == 2 and (both[0].first, both[0].second) == (both[1].first, both[1].second)


def read_default(given: Mapping[str, Any], preset: str, inputs: Inputs, target: AnyScalar) -> Default:
    """Return the methods that may explain with these options."""
    if isinstance(target, Target) and target.name == "continuation":
        return _default_of_answers(given, preset, inputs, target)
    if isinstance(target, Target) and target.second is not None and preset == "recommended" and not given:
        return _default_of_contrasts(inputs, target)
    best, walk, last = DEFAULTS["prediction"]
    default = Default("prediction", {best: (given, preset)}, inputs, target)
    if _has_preset(walk, preset) and not _has_preset(best, preset):
        left = {**default.left, walk: (given, preset)}
        return replace(default, left=left).without(best, f"{best} has no preset {preset!r}.")
    # Options are those of the best method: where they are given, no other can stand in.
    if given or not _has_preset(walk, preset):
        return default
    others = {name: ({}, preset) for name in (DEFAULTS["several sequences"][0], walk) if _has_preset(name, preset)}
    return replace(default, left={**default.left, **others, last: ({}, "recommended")})


def _default_of_contrasts(inputs: Inputs, target: AnyScalar) -> Default:
    """Return the methods with signs that may explain why one class and not another."""
    best, *others = DEFAULTS[CONTRAST]
    left = {best: ({}, CONTRAST if inputs.kind == "image" else "recommended")}
    for name in (DEFAULTS["several sequences"][0], *others):
        left[name] = ({}, "recommended")
    return Default(CONTRAST, left, inputs, target)


def _default_of_answers(given: Mapping[str, Any], preset: str, inputs: Inputs, target: Target) -> Default:
    """Return the methods that may explain an answer; passages are named to those that know them."""
    best, walk, last = DEFAULTS["answer"]
    rest = {name: value for name, value in given.items() if name != "sources"}
    left = {walk: (rest, preset), last: ({}, "recommended")}
    on_several = DEFAULTS["several sequences"][0]
    if not rest and _has_preset(on_several, preset):
        left[on_several] = {}, preset
    default = Default("answer", left, inputs, target)
    named = _has_preset(best, preset) and rest.keys() <= METHODS[best].options.keys()
    if not named or inputs.kind not in METHODS[best].inputs:
        return default
    if (tokens := inputs.shown.shape[1]) > LONGEST_ANSWER:
        why = f"{best} is the default for answers in texts of at most {LONGEST_ANSWER} tokens; this one has {tokens}."
        return default.without(best, why)
    return replace(default, left={best: (given, preset), **({} if rest else left)})


def _has_preset(name: str, preset: str) -> bool:
    """Return True if a method has a preset; all have the recommended one."""
    return preset in {"recommended", *METHODS[name].presets}


LONGEST_ANSWER = 4096
"""Tokens up to which `soft_ablation` is the default for answers: it adds a number for each pair of tokens to the scores
of attention, and longer texts are explained by the walk, which was measured on them (docs/answers.md)."""


def fallback_or_raise(request: Request, error: VitrailError, case: str | None = None) -> Request:
    """Return the request of the next method that may explain, or raise the error where there is none.

    Args:
        case: the case of `DEFAULTS` that holds from now on, if it is another one.
    """
    if request.default is None:
        raise error
    left = request.default.without(request.entry.name, str(error), case)
    if left.best is None:
        raise error
    return left.request()


def default_on_several(request: Request) -> Request:
    """Return the request, or that of the best method on several sequences where none was named."""
    default, case = request.default, "several sequences"
    if default is None or default.case == case or DEFAULTS[case][0] not in default.left:
        return request
    why = (
        f"{DEFAULTS[default.case][0]} is defined on one stream of tokens. On several, {DEFAULTS[case][0]} found "
        "planted tokens most often (docs/streams.md)."
    )
    return default.without(None, why, case).request()
