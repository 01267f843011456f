"""Public module names for code that lives in another package: `vitrail.metrics` is `vitrail.evaluate.metrics`.

Both names give the same module object, also for submodules. Nothing is imported before it is used.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ALIASES = {
    "vitrail.bench": "vitrail.evaluate.bench",
    "vitrail.data": "vitrail.evaluate.data",
    "vitrail.many": "vitrail.api.many",
    "vitrail.metrics": "vitrail.evaluate.metrics",
    "vitrail.report": "vitrail.plots.report",
    "vitrail.zoo": "vitrail.models.zoo",
}


class _AliasLoader(Loader):
    """Give the module of the real name, unchanged."""

    def __init__(self, real: str) -> None:
        self.real = real
        self.spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.real)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has replaced it by the alias's


class AliasFinder(MetaPathFinder):
    """Find a module of an alias, or below one, under its real name."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of an alias; None for every other name."""
        top = ".".join(fullname.split(".")[:2])
        if top not in ALIASES:
            return None
        return ModuleSpec(fullname, _AliasLoader(ALIASES[top] + fullname.removeprefix(top)))


def install() -> None:
    """Make the aliases importable; a second call changes nothing."""
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())
