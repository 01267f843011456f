"""The methods' own switches, as their papers' ablations set them.

`vtranm`: Table 4 of arXiv:2403.14552. The baseline is the map of one block, which one is not said: both are run. With
lengths but without directions the start is not said either: both are run.
`gradtoken`: Table 3 (schemes), Table 4 (heads) and the curve over depth of the paper (Neural Networks 2024).
"""

from collections.abc import Callable
from typing import Any

from vitrail.errors import OptionError, suggest

Spec = tuple[str, dict[str, Any]]
_BARE: dict[str, Any] = {"length": False, "direction": False, "ffn": False, "initial": "identity"}
_SCHEMES = ("none", "rollout_elementwise", "rollout_matmul", "average_elementwise", "average_matmul")


def vtranm(blocks: int) -> list[Spec]:
    """Baseline; with aggregation (AF); with lengths (L) in both readings; with directions (NECC), the full method."""
    return [
        ("tokentm", {**_BARE, "blocks": "first"}),
        ("tokentm", {**_BARE, "blocks": "last"}),
        ("tokentm", dict(_BARE)),
        ("tokentm", {"direction": False, "initial": "identity"}),
        ("tokentm", {"direction": False}),
        ("tokentm", {}),
    ]


def gradtoken(blocks: int) -> list[Spec]:
    """Every scheme; the plain mean over heads; the full method propagated to every depth above the first."""
    schemes = [("gradtoken", {"scheme": scheme}) for scheme in _SCHEMES]
    joined = [("gradtoken", {"heads": "mean"})]
    depths = [("gradtoken", {"depth": depth}) for depth in range(2, blocks)]
    return schemes + joined + depths


ABLATIONS: dict[str, Callable[[int], list[Spec]]] = {"vtranm": vtranm, "gradtoken": gradtoken}


def ablation(name: str, blocks: int) -> list[Spec]:
    """The variants of an ablation for a model with so many blocks."""
    if name not in ABLATIONS:
        raise OptionError(f"there is no ablation {name!r}. {suggest(name, ABLATIONS)}")
    return ABLATIONS[name](blocks)
