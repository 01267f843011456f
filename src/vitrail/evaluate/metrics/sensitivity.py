"""How faithful and how stable scores are under small changes of the input: infidelity and max-sensitivity.

Yeh et al., "On the (In)fidelity and Sensitivity of Explanations", NeurIPS 2019, arXiv:1901.09392.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitrail.evaluate.metrics.arrays import Numbers, check_same, numbers_of, to_array, to_tensor

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
