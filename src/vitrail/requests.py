"""What one method needs of a run: its options, its inputs, its target."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from vitrail.capture.passes import Wanted
from vitrail.capture.runner import RerunMethod
from vitrail.errors import MethodError, TargetError, suggest
from vitrail.methods import METHODS, Method
from vitrail.models.inputs import Inputs
from vitrail.relevance import Walk
from vitrail.targets import AnyTarget, Target, with_scalar

MethodSpec = str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Request:
    """One method with all its options, on inputs prepared for it.

    Args:
        otherwise: what stands in for it where it does not apply; None where the user asked for it by name.
        reason: why it stands in for another one, if it does.
    """

    entry: Method
    preset: str
    options: Mapping[str, Any]
    plan: Walk | RerunMethod
    inputs: Inputs
    target: Target | Callable[[Tensor], Tensor]
    scalar_given: bool = False
    otherwise: "Request | None" = None
    reason: str | None = None

    @property
    def differentiates(self) -> bool:
        """Whether the method reads any gradient."""
        return any(name.endswith("_grad") for name in self.plan.needs)


def read_request(spec: MethodSpec, preset: str, inputs: Inputs, target: Target | Callable[[Tensor], Tensor]) -> Request:
    """A method by name, or by name and options, made ready to run."""
    name, given = (spec, {}) if isinstance(spec, str) else spec
    if not isinstance(name, str) or name not in METHODS:
        raise MethodError(f"unknown method {name!r}. {suggest(name, METHODS)}")
    entry, given = METHODS[name], dict(given)
    preset = given.pop("preset", preset)
    options = entry.resolve(preset, given, inputs.kind)
    if inputs.kind not in entry.inputs:
        raise MethodError(f"{name} explains {' and '.join(entry.inputs)} inputs, but these are {inputs.kind}.")
    plan = entry.build(**options)
    return Request(
        entry=entry,
        preset=preset,
        options=options,
        plan=plan,
        inputs=entry.prepare(inputs, options),
        target=with_scalar(target, plan.scalar, explicit="scalar" in given),
        scalar_given="scalar" in given,
    )


def check_scalar(request: Request, answered: Target) -> None:
    """Refuse a scalar that was asked for where the model answers with a span, which is explained by its logits."""
    if request.scalar_given and answered.name == "answer_span":
        raise TargetError(
            "the option scalar applies to a plain class or next token, but this model answers with a span."
        )


def wanted_by(requests: Sequence[Request]) -> Wanted:
    """All that these requests read."""
    needs = frozenset[str]().union(*(request.plan.needs for request in requests))
    last_only = [isinstance(r.plan, Walk) and r.plan.last_only for r in requests if r.differentiates]
    early = [r.plan.early if isinstance(r.plan, Walk) else None for r in requests]
    # A gradient is taken at the state itself, which has to be there then.
    late = frozenset(name.removesuffix("_grad") for name in needs if name.endswith("_grad")).union(
        *(r.plan.needs - (frozenset() if e is None else e.needs) for r, e in zip(requests, early, strict=True))
    )
    wanted = Wanted.of(needs, last_only=bool(last_only) and all(last_only))
    return replace(wanted, early=tuple(e for e in early if e is not None), passing=wanted.states - late)


def by_target(requests: Sequence[Request]) -> list[tuple[AnyTarget, list[Request]]]:
    """Requests that share a scalar share a backward pass; those without gradients join the first."""
    groups: list[tuple[AnyTarget, list[Request]]] = []
    # Sorting is stable: those that differentiate come first, in their order.
    for request in sorted(requests, key=lambda r: not r.differentiates):
        fitting = (group for target, group in groups if target == request.target or not request.differentiates)
        group = next(fitting, None)
        if group is None:
            groups.append((request.target, [request]))
        else:
            group.append(request)
    return groups
