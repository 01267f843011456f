"""Detail interpretation: which parts of one object are evidence for one class, and which for another.

Cui, Fan and Chen, arXiv:2605.11392, Eq. 8: `(y_1 - y_2) / y_1`, explained by the complete correction; positive scores
are evidence for the first class, negative ones for the second. Its gradient is `(y_2/y_1²) ∇y_1 - (1/y_1) ∇y_2`: where
a logit is negative one of the signs turns, and near zero one class drops out. There the difference is the safe form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail import targets
from vitrail.api import explain
from vitrail.attribution import Attribution
from vitrail.capture.forward import predict
from vitrail.errors import OptionError, TargetError, suggest
from vitrail.models.anatomy import Anatomy
from vitrail.targets import Index, Target

DEFAULT_METHOD = "complete_gradient"
SMALL = 0.1
"""Logits below this share of the sample's largest magnitude count as near zero."""
AUTO = "auto"
FORMS = {
    "relative_difference": targets.relative_difference,
    "difference": targets.difference,
    "ratio": targets.ratio,
}


def detail(
    model: nn.Module,
    input: Tensor | Mapping[str, Any],
    target1: Index | None = None,
    target2: Index | None = None,
    *,
    form: str = AUTO,
    method: str = DEFAULT_METHOD,
    anatomy: Anatomy | None = None,
    **options: Any,  # noqa: ANN401
) -> Attribution:
    """Evidence for one class against another: above zero for the first, below zero for the second.

    The form that was used stands in `.target`, and why in `.provenance["detail"]`.

    Args:
        model: any module that returns logits. It is not changed.
        input: pictures or texts, as for `explain`.
        target1: a class index, or one for each sample; None is the most likely class other than `target2`.
        target2: the same for the other class; None is the most likely class other than `target1`.
        form: `relative_difference` (Eq. 8), `difference`, `ratio`, or `auto`: Eq. 8 where both logits of every sample
            lie clearly above zero, else the difference.
        method: a name of `vitrail.METHODS`; signed ones tell the two classes apart.
        anatomy: where the model's parts are, if it is of no known family.
        **options: what `explain` takes: `preset`, and the method's own options.
    """
    check_form(form)
    logits = predict(model, input, anatomy).logits
    first, second = contrast(logits, target1, target2)
    chosen, why = choose_form(logits, first, second) if form == AUTO else (form, "asked for")
    found = explain(model, input, method, FORMS[chosen](first, second), anatomy=anatomy, **options)
    return replace(found, provenance={**found.provenance, "detail": {"form": chosen, "why": why}})


def check_form(form: str) -> None:
    """Refuse a form that does not exist."""
    if form not in {AUTO, *FORMS}:
        raise OptionError(f"there is no form {form!r}. {suggest(form, [AUTO, *FORMS])}")


def contrast(
    logits: Float[Tensor, "b c"], target1: Index | None, target2: Index | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two classes of each sample; where one is not named, the most likely that is not the other."""
    if logits.shape[1] < 2:
        raise TargetError("a contrast needs two classes, but the model has a single logit.")
    first, second = (None if c is None else targets.logit(c).of(logits).first for c in (target1, target2))
    if first is None:
        first = _best_beside(logits, second)
    if second is None:
        second = _best_beside(logits, first)
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    for a, b in zip(first, second, strict=True):
        if a == b:
            raise TargetError(f"both classes are {a}, but a contrast needs two: name another one, or only one of them.")
    return first, second


def _best_beside(logits: Float[Tensor, "b c"], other: Any) -> tuple[int, ...]:  # noqa: ANN401
    if other is None:
        return tuple(logits.argmax(dim=1).tolist())
    taken = torch.tensor(other, device=logits.device)[:, None]
    return tuple(logits.scatter(1, taken, -torch.inf).argmax(dim=1).tolist())


def choose_form(logits: Float[Tensor, "b c"], first: Sequence[int], second: Sequence[int]) -> tuple[str, str]:
    """Eq. 8 where it is safe for every sample, else the difference; and the reason in words."""
    chosen = torch.tensor([first, second], device=logits.device).T
    pair = logits.gather(1, chosen)
    if bool((pair < 0).any()):
        return "difference", "a logit is negative, and Eq. 8 would turn its sign"
    if bool((pair < SMALL * logits.abs().amax(dim=1, keepdim=True)).any()):
        return "difference", "a logit is near zero, and Eq. 8 would leave one class out"
    return "relative_difference", "both logits are clearly above zero"


def detail_matrix(
    model: nn.Module,
    input: Tensor | Mapping[str, Any],
    *,
    top: int = 3,
    form: str = AUTO,
    method: str = DEFAULT_METHOD,
    anatomy: Anatomy | None = None,
    **options: Any,  # noqa: ANN401
) -> list[list[Attribution]]:
    """Every one of the most likely classes against every other, row against column; on the diagonal the class itself.

    Args:
        model: any module that returns logits. It is not changed.
        input: one picture or text, as for `explain`.
        top: how many classes.
        form: as for `detail`.
        method: as for `detail`.
        anatomy: as for `detail`.
        **options: as for `detail`.
    """
    check_form(form)
    seen = predict(model, input, anatomy)
    if seen.inputs.batch != 1:
        raise OptionError(f"a matrix shows the classes of one input, but {seen.inputs.batch} were given.")
    if not 2 <= top <= seen.logits.shape[1]:
        raise OptionError(f"top={top}, but a matrix takes 2 to {seen.logits.shape[1]} classes, as many as there are.")
    best = seen.logits[0].topk(top).indices.tolist()
    targeted = [[_cell(seen.logits, row, column, form) for column in best] for row in best]
    return [[explain(model, input, method, cell, anatomy=anatomy, **options) for cell in row] for row in targeted]


def _cell(logits: Tensor, row: int, column: int, form: str) -> Target:
    if row == column:
        return targets.logit(row)
    name = choose_form(logits, (row,), (column,))[0] if form == AUTO else form
    return FORMS[name](row, column)
