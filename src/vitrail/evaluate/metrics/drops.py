"""How far the probability falls when tokens or pixels are taken away.

AOPC and LOdds as in AttCAT (Qiang et al., NeurIPS 2022) and TokenTM (arXiv:2403.14552); comprehensiveness and
sufficiency as in ERASER (DeYoung et al., ACL 2020, arXiv:1911.03429). p is `[n]`, the clean probability of the
explained class; p_k is `[n, levels]`, the same after removal.
"""

import numpy as np
from jaxtyping import Float

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, check_same, numbers_of

Levels = Float[np.ndarray, " l"]


def aopc(p: Numbers, p_k: Numbers, *, absolute: bool = False) -> float:
    """Mean over examples and levels of p - p_k.

    Args:
        p: clean probabilities.
        p_k: probabilities after removal.
        absolute: |p - p_k| instead, as in AttCAT's released code.
    """
    return float(aopc_per_level(p, p_k, absolute=absolute).mean())


def aopc_per_level(p: Numbers, p_k: Numbers, *, absolute: bool = False) -> Levels:
    """AOPC at each level, the mean over examples."""
    clean, removed = _probabilities(p, p_k)
    drops = clean - removed
    return (np.abs(drops) if absolute else drops).mean(axis=0)


def log_odds(p: Numbers, p_k: Numbers) -> float:
    """Mean over examples and levels of log(p_k / p)."""
    return float(log_odds_per_level(p, p_k).mean())


def log_odds_per_level(p: Numbers, p_k: Numbers) -> Levels:
    """LOdds at each level, the mean over examples."""
    clean, removed = _probabilities(p, p_k)
    zeros = int((clean == 0).sum() + (removed == 0).sum())
    if zeros:
        raise InputError(f"{zeros} probabilities are exactly 0, and log 0 is infinite: take the softmax in float64.")
    return np.log(removed / clean).mean(axis=0)


def comprehensiveness(p: Numbers, p_without: Numbers) -> float:
    """ERASER: mean of p - p(without the rationale) over examples and rationale sizes; high is good."""
    return aopc(p, p_without)


def sufficiency(p: Numbers, p_only: Numbers) -> float:
    """ERASER: mean of p - p(with the rationale only) over examples and rationale sizes; low is good."""
    return aopc(p, p_only)


def _probabilities(p: Numbers, p_k: Numbers) -> tuple[Float[np.ndarray, "n 1"], Float[np.ndarray, "n l"]]:
    clean, removed = numbers_of(p, "p", "n"), numbers_of(p_k, "p_k", "n levels")
    check_same(clean.shape, removed.shape[:1], "the numbers of examples of p and of p_k")
    for name, values in (("p", clean), ("p_k", removed)):
        if values.min() < 0 or values.max() > 1 + 1e-6:
            raise InputError(f"{name} must be probabilities, but they run from {values.min():g} to {values.max():g}.")
    return clean[:, None], removed
