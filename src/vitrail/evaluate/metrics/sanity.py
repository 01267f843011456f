"""Sanity checks: do scores depend on the class, the weights and the method, and on small changes of the input?

Rankings are compared between classes (Kendall, class sensitivity) and between methods (agreement).

Cascading randomisation: Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018, arXiv:1810.03292. Weights are
redrawn from a normal distribution with their own mean and spread, layer after layer from the output down, so that
activations keep their size. The model itself is never changed. Infidelity and max-sensitivity: Yeh et al., "On the
(In)fidelity and Sensitivity of Explanations", NeurIPS 2019, arXiv:1901.09392.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, check_same, flags_of, look_up, numbers_of, to_array, to_tensor

Row = Float[np.ndarray, " t"]
Rows = Float[np.ndarray, "n t"]


def _by_scores(a: Row, b: Row) -> float:
    """Ordinary tau-b of the scores."""
    return float(scipy.stats.kendalltau(a, b).statistic)  # pyright: ignore[reportAttributeAccessIssue]


def _by_positions(a: Row, b: Row) -> float:
    """AttCAT's definition: tau of the two arrays of token positions in order of falling score."""
    return _by_scores(np.argsort(-a, kind="stable").astype(float), np.argsort(-b, kind="stable").astype(float))


MODES: dict[str, Callable[[Row, Row], float]] = {"scores": _by_scores, "attcat": _by_positions}


def kendall(a: Numbers, b: Numbers, *, mode: str = "scores") -> Float[np.ndarray, " n"]:
    """Kendall's tau of the scores `[n, t]` for one class and for another, one number per example.

    NaN where all scores of an example are equal: there is no ranking.

    Args:
        a: scores for the explained class.
        b: scores for another class; low correlation means the explanation depends on the class.
        mode: `"scores"`, tau-b of the scores; `"attcat"`, tau of the sorted token positions, as AttCAT defines it.
    """
    measure = look_up(MODES, mode, "mode")
    left, right = _two(a, b)
    return np.array([measure(x, y) for x, y in zip(left, right, strict=True)])


def rank_correlation(a: Numbers, b: Numbers, *, valid: Numbers | None = None) -> Float[np.ndarray, " n"]:
    """Spearman's correlation of the maps of each example; a constant map, which ranks nothing, correlates 0.

    Args:
        a: maps, the examples first.
        b: maps of the same shape.
        valid: True for the entries that are real; all if None.
    """
    left, right = _two(a, b)
    real = _real(valid, left)
    return (_unit_ranks(left, real) * _unit_ranks(right, real)).sum(axis=1)


def class_sensitivity(maps: Numbers, other_maps: Numbers, *, valid: Numbers | None = None) -> Float[np.ndarray, " n"]:
    """Rank correlation of the maps of two classes: near 1, the method does not look at the class at all."""
    return rank_correlation(maps, other_maps, valid=valid)


@dataclass(frozen=True, eq=False)
class Agreement:
    """Rank correlations between methods: the mean over examples, and each example's."""

    names: tuple[str, ...]
    matrix: Float[np.ndarray, "m m"]
    per_example: Float[np.ndarray, "n m m"]


def agreement(maps: Mapping[str, Numbers], *, valid: Numbers | None = None) -> Agreement:
    """Spearman's correlation between the maps of every two methods.

    Args:
        maps: name -> maps of the same examples, the examples first.
        valid: True for the entries that are real; all if None.
    """
    if not maps:
        raise InputError("agreement needs maps of at least one method, but there are none.")
    all_rows = {name: _rows(values, name) for name, values in maps.items()}
    first, expected = next(iter(all_rows.items()))
    for name, rows in all_rows.items():
        check_same(expected.shape, rows.shape, f"the shapes [examples, entries] of {first} and {name}")
    real = _real(valid, expected)
    ranks = np.stack([_unit_ranks(rows, real) for rows in all_rows.values()])
    per_example = np.einsum("ant,bnt->nab", ranks, ranks)
    return Agreement(tuple(all_rows), per_example.mean(axis=0), per_example)


def _two(a: Numbers, b: Numbers) -> tuple[Rows, Rows]:
    left, right = _rows(a, "the first maps"), _rows(b, "the second maps")
    check_same(to_array(a).shape, to_array(b).shape, "the shapes of the two sets of maps")
    return left, right


def _rows(maps: Numbers, name: str) -> Rows:
    array = to_array(maps)
    return numbers_of(array.reshape(len(array), -1) if array.ndim > 2 else array, name, "n t")


def _real(valid: Numbers | None, rows: Rows) -> Bool[np.ndarray, "n t"] | None:
    if valid is None:
        return None
    real = flags_of(valid, "valid", "n t")
    check_same(rows.shape, real.shape, "the shapes of the maps and of valid")
    return real


def _unit_ranks(rows: Rows, valid: Bool[np.ndarray, "n t"] | None) -> Rows:
    """Ranks with mean 0 and length 1, so that products are correlations; zeros where not real, or all equal."""
    if valid is None:
        ranks = scipy.stats.rankdata(rows, axis=1)
        centred = ranks - ranks.mean(axis=1, keepdims=True)
    else:
        centred = np.zeros_like(rows)
        for out, row, real in zip(centred, rows, valid, strict=True):
            ranks = scipy.stats.rankdata(row[real])
            out[real] = ranks - ranks.mean()
    length = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    return centred / np.where(length > 0, length, 1)


INPUT = "(input)"


@dataclass(frozen=True, eq=False)
class Cascade:
    """Rank correlation with the maps of the trained model, after each part was randomised with all parts above it."""

    parts: tuple[str, ...]
    correlation: Float[np.ndarray, "s b"]


def cascading_randomisation(explain: Callable[[nn.Module], Numbers], model: nn.Module, *, seed: int = 0) -> Cascade:
    """Return how like the trained model's maps the maps stay while its parts are randomised from the output down.

    Args:
        explain: model -> maps `[b, n]` or `[b, y, x]`, such as `lambda m: vitrail.explain(m, x, target=3).scores`.
        model: stays as it is; a copy is randomised.
        seed: of the new weights.
    """
    trained = explain(model)
    steps = [(name, rank_correlation(trained, explain(copy))) for name, copy in randomised(model, seed=seed)]
    return Cascade(tuple(name for name, _ in steps), np.stack([values for _, values in steps]))


def randomised(model: nn.Module, *, seed: int = 0) -> Iterator[tuple[str, nn.Module]]:
    """Copies of the model whose parts are randomised one after the other, from the output down.

    A part is a layer of a list of layers, or a module without such lists; what belongs to no part, such as position
    embeddings, comes last as "(input)". All steps are the same copy, so use it before taking the next. Tied weights
    are randomised with the first part that has them.
    """
    copy = deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    done: set[int] = set()
    for name, parameters in reversed(_parts(copy)):
        fresh = [parameter for parameter in parameters if id(parameter) not in done]
        done.update(map(id, fresh))
        for parameter in fresh:
            _redraw(parameter, generator)
        if fresh:
            yield name, copy
    if not done:
        raise InputError(f"{type(model).__name__} has no weights to randomise.")


def _parts(model: nn.Module) -> list[tuple[str, list[nn.Parameter]]]:
    """Names and weights of the parts, from the input up, in the order they were registered."""
    modules = _modules("", model)
    inside = {id(parameter) for _, module in modules for parameter in module.parameters()}
    loose = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    return [(INPUT, loose), *((name, list(module.parameters())) for name, module in modules)]


def _modules(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    lists = (nn.ModuleList, nn.Sequential)
    if name and not any(isinstance(inner, lists) for inner in module.modules()):
        return [(name, module)]
    children = ((f"{name}.{child}".removeprefix("."), inner) for child, inner in module.named_children())
    return [part for child in children for part in _modules(*child)] or [(name or INPUT, module)]


@torch.no_grad()
def _redraw(weights: Tensor, generator: torch.Generator) -> None:
    if not weights.is_floating_point():
        return
    spread, centre = torch.std_mean(weights.float(), correction=0)
    fresh = torch.randn(weights.shape, generator=generator).to(weights.device)
    weights.copy_(centre + spread * fresh)


TINY = np.finfo(np.float64).tiny


def infidelity(
    scores: Numbers, perturbations: Numbers, changes: Numbers, *, normalize: bool = False
) -> Float[np.ndarray, " n"]:
    """Def. 2.1: the mean over perturbations I of `(I . scores - (f(x) - f(x - I)))^2`; 0 is best.

    Args:
        scores: `[n, ...]`, one for each entry of the input.
        perturbations: `[m, n, ...]`, what is subtracted from the input.
        changes: `[m, n]`, `f(x) - f(x - I)` for each of them.
        normalize: scale the scores of each example by the factor that makes its infidelity least.
    """
    given, removed = to_array(scores).astype(np.float64), to_array(perturbations).astype(np.float64)
    check_same(given.shape, removed.shape[1:], "the shapes of scores and of a perturbation")
    observed = numbers_of(changes, "changes", "m n")
    check_same(removed.shape[:2], observed.shape, "the numbers of perturbations and examples, and the shape of changes")
    predicted = (removed * given).reshape(*removed.shape[:2], -1).sum(axis=2)
    if normalize:
        power = (predicted**2).mean(axis=0)
        predicted = predicted * ((predicted * observed).mean(axis=0) / np.maximum(power, TINY))
    return ((predicted - observed) ** 2).mean(axis=0)


def max_sensitivity(explain: Callable[[Any], Numbers], inputs: Numbers, deltas: Numbers) -> Float[np.ndarray, " n"]:
    """Def. 3.1: the largest relative change of the scores, `max |phi(x + d) - phi(x)| / |phi(x)|`; 0 is best.

    Args:
        explain: inputs `[n, ...]` -> scores `[n, ...]`; it is given what `inputs` is, a tensor or an array.
        inputs: `[n, ...]`.
        deltas: `[m, n, ...]`, small changes of the inputs.
    """
    given = inputs if isinstance(inputs, Tensor) else to_array(inputs)
    small = to_tensor(deltas).to(given) if isinstance(given, Tensor) else to_array(deltas)
    check_same(given.shape, small.shape[1:], "the shapes of inputs and of a delta")
    plain = _flat(explain(given))
    size = np.maximum(np.linalg.norm(plain, axis=1), TINY)
    found = [np.linalg.norm(_flat(explain(given + delta)) - plain, axis=1) / size for delta in small]
    return np.max(found, axis=0)


def _flat(scores: Numbers) -> Float[np.ndarray, "n t"]:
    array = to_array(scores).astype(np.float64)
    return numbers_of(array.reshape(len(array), -1), "scores", "n t")
