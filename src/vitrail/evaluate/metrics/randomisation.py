"""Sanity check: does the map change when the weights are randomised, layer after layer from the output down?

Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018, arXiv:1810.03292. Weights are redrawn from a normal
distribution with their own mean and spread, so that activations keep their size. The model itself is never touched.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers
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
