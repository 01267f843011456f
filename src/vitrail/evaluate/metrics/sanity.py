"""Sanity checks: do scores depend on the weights, and how do they react to small changes of the input?

Cascading randomisation: Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018, arXiv:1810.03292. Weights are
redrawn from a normal distribution with their own mean and spread, layer after layer from the output down, so that
activations keep their size. The model itself is never changed. Infidelity and max-sensitivity: Yeh et al., "On the
(In)fidelity and Sensitivity of Explanations", NeurIPS 2019, arXiv:1901.09392.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, check_same, numbers_of, to_array, to_tensor
from vitrail.evaluate.metrics.correlation import rank_correlation

INPUT = "(input)"


@dataclass(frozen=True, eq=False)
class Cascade:
    """Rank correlation with the maps of the trained model, after each part was randomised with all parts above it."""

    parts: tuple[str, ...]
    correlation: Float[np.ndarray, "s b"]


def cascading_randomisation(explain: Callable[[nn.Module], Numbers], model: nn.Module, *, seed: int = 0) -> Cascade:
    """How like the trained model's maps the maps stay while its parts are randomised from the output down.

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
    steps = 0
    for name, parameters in reversed(_parts(copy)):
        fresh = [parameter for parameter in parameters if id(parameter) not in done]
        done.update(map(id, fresh))
        for parameter in fresh:
            _redraw(parameter, generator)
        if fresh:
            steps += 1
            yield name, copy
    if not steps:
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
    plain = _rows(explain(given))
    size = np.maximum(np.linalg.norm(plain, axis=1), TINY)
    found = [np.linalg.norm(_rows(explain(given + delta)) - plain, axis=1) / size for delta in small]
    return np.max(found, axis=0)


def _rows(scores: Numbers) -> Float[np.ndarray, "n t"]:
    array = to_array(scores).astype(np.float64)
    return numbers_of(array.reshape(len(array), -1), "scores", "n t")
