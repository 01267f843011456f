"""Vitrail explains what any PyTorch Transformer looked at, for images and text.

Every public name is imported when it is first used, so `import vitrail` alone does not import torch.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"
"""The one place of the version: the build, results and files read it here."""

if TYPE_CHECKING:
    from vitrail import plots, targets
    from vitrail.api import compare, explain
    from vitrail.api.explainer import Explainer, prepare
    from vitrail.api.many import explain_many
    from vitrail.attribution import Attribution, Comparison
    from vitrail.capture.recording.forward import record
    from vitrail.capture.recording.layer import Layer, Recording
    from vitrail.errors import VitrailError
    from vitrail.evaluate import bench, data, metrics
    from vitrail.methods import METHODS, register_method
    from vitrail.models import zoo
    from vitrail.models.anatomy import Anatomy, TextTower
    from vitrail.models.loading import load
    from vitrail.plots import report
    from vitrail.tools.answers import answer
    from vitrail.tools.audit import audit
    from vitrail.tools.doctor import structure
    from vitrail.tools.generations import generate
    from vitrail.tools.guide import detail, guide
    from vitrail.tools.rewrite import rewrite
    from vitrail.tools.transfer import transfer

    PreparedExplainer = Explainer
else:
    _HOMES = {
        "METHODS": "vitrail.methods",
        "Anatomy": "vitrail.models.anatomy",
        "Attribution": "vitrail.attribution",
        "Comparison": "vitrail.attribution",
        "Explainer": "vitrail.api.explainer",
        "Layer": "vitrail.capture.recording.layer",
        "Recording": "vitrail.capture.recording.layer",
        "TextTower": "vitrail.models.anatomy",
        "VitrailError": "vitrail.errors",
        "answer": "vitrail.tools.answers",
        "audit": "vitrail.tools.audit",
        "compare": "vitrail.api",
        "detail": "vitrail.tools.guide",
        "explain": "vitrail.api",
        "explain_many": "vitrail.api.many",
        "generate": "vitrail.tools.generations",
        "guide": "vitrail.tools.guide",
        "load": "vitrail.models.loading",
        "prepare": "vitrail.api.explainer",
        "record": "vitrail.capture.recording.forward",
        "register_method": "vitrail.methods",
        "rewrite": "vitrail.tools.rewrite",
        "structure": "vitrail.tools.doctor",
        "transfer": "vitrail.tools.transfer",
    }
    _RENAMED = {"PreparedExplainer": "Explainer"}
    _MODULES = ("bench", "data", "many", "metrics", "plots", "report", "targets", "zoo")

    def __getattr__(name: str) -> Any:  # noqa: ANN401
        if name in _RENAMED:
            warnings.warn(f"vitrail.{name} is now called vitrail.{_RENAMED[name]}.", DeprecationWarning, stacklevel=2)
            return __getattr__(_RENAMED[name])
        if name not in _MODULES and name not in _HOMES:
            raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
        try:
            module = import_module(_HOMES.get(name, f"vitrail.{name}"))
        except ModuleNotFoundError as error:
            if (error.name or "vitrail").startswith("vitrail"):
                raise
            from vitrail.errors import MissingExtraError

            raise MissingExtraError(
                f"vitrail.{name} needs {error.name}, which is not installed: pip install 'vitrail[all]'"
            ) from error
        found = module if name in _MODULES else getattr(module, name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES, *_MODULES})


__all__ = [
    "METHODS",
    "Anatomy",
    "Attribution",
    "Comparison",
    "Explainer",
    "Layer",
    "Recording",
    "TextTower",
    "VitrailError",
    "answer",
    "audit",
    "bench",
    "compare",
    "data",
    "detail",
    "explain",
    "explain_many",
    "generate",
    "guide",
    "load",
    "metrics",
    "plots",
    "prepare",
    "record",
    "register_method",
    "report",
    "rewrite",
    "structure",
    "targets",
    "transfer",
    "zoo",
]
