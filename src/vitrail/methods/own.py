"""Methods of users: objects and functions given in the place of a name, and methods registered under one.

A method is a `Walk`, a `LayerReader`, a `RerunMethod`, or a function of a recording that returns one score per token.
`register_method` gives a name to a function that makes one. Packages name theirs in the entry-point group
`vitrail.methods`, which is read when a name is asked for that is not known otherwise.
"""

import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from vitrail.errors import InputError, MethodError, OptionError, VitrailError, one_line

logger = logging.getLogger("vitrail")

GROUP = "vitrail.methods"
"""The group of entry points by which packages name their methods."""
PLUGINS = "VITRAIL_PLUGINS"
"""The environment variable that names modules to import, separated by commas."""
NO_PAPER = "a method of your own"
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def reads_recording(function: Callable[..., Any]) -> bool:
    """Return True if a function takes a recording: its first parameter is given by position."""
    parameters = list(inspect.signature(function).parameters.values())
    return bool(parameters) and parameters[0].kind in POSITIONAL


def check_options(name: str, function: Callable[..., Any]) -> None:
    """Refuse a function whose options cannot be given by name alone, or have no default."""
    parameters = list(inspect.signature(function).parameters.values())
    options = parameters[1:] if reads_recording(function) else parameters
    for option in options:
        if option.kind is not inspect.Parameter.KEYWORD_ONLY or option.default is inspect.Parameter.empty:
            raise OptionError(
                f"the option {option.name} of {name} must be given by keyword and have a default: write "
                f"`def {getattr(function, '__name__', name)}(*, {option.name}: float = 1.0)`, or with the recording "
                "before the star."
            )


def name_of(given: object, taken: Mapping[str, Any]) -> str:
    """Return what a method that was given as an object is called in results."""
    formula = getattr(given, "step", None) or getattr(given, "explain", None) or given
    while isinstance(formula, partial):
        formula = formula.func
    words = getattr(formula, "__qualname__", type(formula).__name__).split(".<locals>.")[-1]
    name = words.removesuffix(".step").removesuffix(".explain").replace(".", "_").replace("<lambda>", "own")
    known = taken.get(name)
    return name if known is None or known.built_by is given else f"own_{name}"


class MethodTable(Mapping[str, Any]):
    """The methods by name. It is changed by `vitrail.register_method` alone."""

    def __init__(self, methods: Sequence[Any]) -> None:
        self._methods = {method.name: method for method in methods}
        self.built_in = tuple(self._methods)
        self._found = False

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        """Return the method of a name."""
        if name not in self._methods:
            self._find_packages()
        return self._methods[name]

    def __contains__(self, name: object) -> bool:
        """Return True if there is a method of this name."""
        if name in self._methods:
            return True
        self._find_packages()
        return name in self._methods

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        self._find_packages()
        return iter(self._methods)

    def __len__(self) -> int:
        """Return how many methods there are."""
        self._find_packages()
        return len(self._methods)

    def __repr__(self) -> str:
        """Name the methods."""
        return f"<{len(self)} methods: {', '.join(self)}>"

    def __setitem__(self, name: str, method: object) -> None:
        """Refuse to be written to."""
        raise MethodError(f"vitrail.METHODS is read-only: vitrail.register_method({name!r}, build) adds a method.")

    def __delitem__(self, name: str) -> None:
        """Refuse to be written to."""
        raise MethodError("vitrail.METHODS is read-only: a method cannot be taken out of it.")

    def add(self, method: Any) -> None:  # noqa: ANN401
        """Add a method; one that was registered before under its name is replaced."""
        if method.name in self.built_in:
            raise MethodError(f"{method.name!r} is a method of the library: choose another name for yours.")
        self._methods[method.name] = method

    def _find_packages(self) -> None:
        """Register the methods that installed packages name, once."""
        if self._found:
            return
        self._found = True
        import_plugins([name for name in os.environ.get(PLUGINS, "").split(",") if name])
        for found in entry_points(group=GROUP):
            try:
                register_method(found.name, found.load())
            except Exception as error:
                logger.warning("the method %r of %s cannot be used: %s", found.name, found.value, one_line(error))


def import_plugins(names: Sequence[str]) -> None:
    """Import modules that register methods: by name, as `my_methods`, from the working directory too, or `my.py`."""
    for name in names:
        place = Path(name)
        folder, module = (place.parent, place.stem) if place.suffix == ".py" else (Path(), name)
        if place.suffix == ".py" and not place.is_file():
            raise InputError(f"there is no plug-in {name}.")
        sys.path.insert(0, str(folder.resolve()))
        try:
            import_module(module)
        except VitrailError:
            raise
        except Exception as error:
            raise InputError(
                f"the plug-in {name} cannot be imported: {type(error).__name__}: {one_line(error)}"
            ) from error
        finally:
            sys.path.remove(str(folder.resolve()))
    known = [name for name in os.environ.get(PLUGINS, "").split(",") if name]
    os.environ[PLUGINS] = ",".join(dict.fromkeys([*known, *names]))  # for processes that this one starts


def register_method(
    name: str,
    build: Callable[..., Any],
    *,
    paper: str | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    signed: bool = False,
    class_specific: bool = True,
    cost: str = "1 forward + 1 backward",
    inputs: Sequence[str] = ("image", "text"),
) -> None:
    """Give a method of your own a name, which every function, command and page then takes.

    Args:
        name: the new name; registering it again replaces the method.
        build: takes the options as keywords, each with a default, and returns a `Walk`, a `LayerReader` or a
            `RerunMethod`. Or a function of a `Recording`, with its options after it, that returns scores `[b, tokens]`.
        paper: where the method is described.
        presets: by name, the options in which a preset differs from the defaults of `build`.
        signed: whether scores below zero mean evidence against the target.
        class_specific: whether the map depends on the target.
        cost: how many forward and backward passes it takes, in words.
        inputs: what it explains: `image`, `text`, or both.

    Raises:
        MethodError: if the name is no name, or belongs to a method of the library.
        OptionError: if an option has no default or cannot be given by keyword.

    Example:
        >>> def last_attention(recording, *, power: float = 1.0):
        ...     "The attention of the last layer, read at the class token."
        ...     return recording.layers[-1].probs.mean(dim=1)[:, 0] ** power
        >>> vitrail.register_method("last_attention", last_attention)
        >>> vitrail.explain("photo", torch.rand(1, 3, 160, 160), "last_attention", power=2.0).label
        'last_attention(power=2.0)'
    """
    from vitrail.methods import METHODS, Method

    if not isinstance(name, str) or not name.isidentifier():
        raise MethodError(f"{name!r} is no name for a method: use letters, digits and _, such as 'my_method'.")
    if not callable(build):
        raise MethodError(f"build of {name} is a function that makes the method, not {type(build).__name__}.")
    wrong = sorted(set(inputs) - {"image", "text"})
    if wrong or not inputs:
        raise OptionError(f"inputs={tuple(inputs)!r}, but a method explains 'image', 'text', or both.")
    check_options(name, build)
    presets = {"paper": {}} if presets is None else presets
    method = Method(
        name, build, NO_PAPER if paper is None else paper, presets, signed=signed,
        class_specific=class_specific, cost=cost, inputs=tuple(inputs),
    )  # fmt: skip
    for options in presets.values():
        method.resolve("recommended", options, inputs[0])
    METHODS.add(method)
