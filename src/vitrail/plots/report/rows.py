"""One input, explained: every method's map of a target, its curve, and how far the maps agree."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitrail.api import MethodSpec, compare
from vitrail.attribution import Attribution
from vitrail.errors import InputError, MethodError, VitrailError
from vitrail.evaluate.metrics import agreement
from vitrail.models.loading import Loaded, Sample
from vitrail.plots.report.drawing import drawn
from vitrail.plots.report.entries import Curve, Map, Row
from vitrail.plots.report.perturbing import Measure
from vitrail.targets import AnyTarget, only, probability


@dataclass(frozen=True, eq=False)
class Plan:
    """What is done with every input."""

    loaded: Loaded
    methods: Sequence[MethodSpec]
    targets: Sequence[AnyTarget]
    preset: str
    measure: Measure | None

    @property
    def pictures(self) -> int:
        """Of one input: for each target what the model saw, and every method's map."""
        return (len(self.methods) + 1) * len(self.targets)


def row_of(plan: Plan, sample: Sample, target: AnyTarget, logits: Tensor, origins: dict[str, Attribution]) -> Row:
    """One target of an input.

    Args:
        logits: what the model said of the input.
        origins: the first attribution under each label is kept here.
    """
    found, failed = _explained(plan, sample, target)
    if not found:
        return Row("", None, (), failed)
    labels = _labels(found)
    for label, made in zip(labels, found, strict=True):
        origins.setdefault(label, made)
    aim = found[0].target
    index = only(aim.first) if aim.first is not None else None
    curves, random, reason = _curves(plan, sample, found, index)
    maps = [
        Map(label, made.signed, curve=curve, **drawn(made, sample.picture, plan.pictures))
        for label, made, curve in zip(labels, found, curves, strict=True)
    ]
    likely = None if index is None else float(probability(index)(logits))
    alike = _alike(labels, found) if len(found) > 1 else None
    return Row(plan.loaded.target_name(aim), likely, tuple(maps), failed, alike, random, reason)


def _explained(plan: Plan, sample: Sample, target: AnyTarget) -> tuple[list[Attribution], dict[str, str]]:
    """The maps of all methods from one recording; where one of them fails, each from its own."""
    try:
        return list(compare(plan.loaded.model, sample.inputs, plan.methods, target, plan.preset)), {}
    except MethodError:
        raise
    except VitrailError as error:
        if len(plan.methods) == 1:
            raise InputError(one_line(error)) from error
    found: list[Attribution] = []
    failed: dict[str, str] = {}
    for spec in plan.methods:
        try:
            found += compare(plan.loaded.model, sample.inputs, [spec], target, plan.preset)
        except VitrailError as error:
            failed[spec if isinstance(spec, str) else spec[0]] = one_line(error)
    return found, failed


def _labels(found: Sequence[Attribution]) -> list[str]:
    """The methods' names, told apart where only the preset differs."""
    plain = [made.label for made in found]
    return [f"{x}, {made.preset}" if plain.count(x) > 1 else x for x, made in zip(plain, found, strict=True)]


def _curves(
    plan: Plan, sample: Sample, found: Sequence[Attribution], index: int | None
) -> tuple[Sequence[Curve | None], Curve | None, str]:
    none = [None] * len(found)
    if plan.measure is None:
        return none, None, ""
    if index is None:
        return none, None, "the target has no class whose probability could be watched"
    try:
        return *plan.measure(sample, found, index), ""
    except VitrailError as error:
        return none, None, one_line(error)


def _alike(labels: Sequence[str], found: Sequence[Attribution]) -> Float[np.ndarray, "m m"]:
    valid = found[0].valid
    maps = {label: made.scores.detach().cpu() for label, made in zip(labels, found, strict=True)}
    return agreement(maps, valid=None if valid is None else valid.cpu()).matrix


def one_line(error: BaseException) -> str:
    """The message without line breaks."""
    return " ".join(str(error).split())
