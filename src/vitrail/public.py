"""Public module names for code that lives elsewhere: `vitrail.metrics` gives what `vitrail.evaluate.metrics` has.

Nothing is imported before it is used, and nothing is loaded twice.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any


def forward(name: str, home: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module that gives what another one has, as the modules in it will."""
    inside = {found.name for found in iter_modules([str(Path(__file__).parent.joinpath(*home.split(".")[1:]))])}

    def get(wanted: str) -> Any:  # noqa: ANN401
        if wanted.startswith("__") and wanted != "__all__":  # not `__path__`, by which files would be loaded again
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
        real = import_module(home)
        if wanted == "__all__":
            return getattr(real, wanted, [one for one in dir(real) if not one.startswith("_")])
        if wanted in inside and not hasattr(real, wanted):
            import_module(f"{home}.{wanted}")
        return getattr(real, wanted)

    for part in inside:  # the import system takes a module that is there before it looks for a file
        module = sys.modules[f"{name}.{part}"] = ModuleType(f"{name}.{part}", f"`{home}.{part}` under a public name.")
        vars(module).update(zip(("__getattr__", "__dir__"), forward(module.__name__, f"{home}.{part}"), strict=True))
    return get, lambda: dir(import_module(home))
