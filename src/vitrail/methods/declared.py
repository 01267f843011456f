"""What a function declares, read from its source text without importing its module.

The table of methods names its functions as `module:function`. Help, completion and checks of options need the
docstring, the defaults and the types of their options, but not torch. What the text alone does not say, such as a
default that is a named constant, is looked up by importing the module after all.
"""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitrail.methods.option_text import plain_types

NAMES = {"Any": object, "Callable": Callable, "Mapping": Mapping, "Path": Path, "Sequence": Sequence}
"""Names besides the built-in ones that may occur in the annotation of an option."""


@dataclass(frozen=True)
class Declared:
    """The docstring of a function, and its options with their defaults."""

    doc: str
    defaults: Mapping[str, Any]


def load(place: str) -> Any:  # noqa: ANN401
    """The object that `module:name` stands for."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@cache
def declared(place: str) -> Declared:
    """What the function `module:name` declares."""
    try:
        function = _find(place)
        defaults = {option.arg: ast.literal_eval(value) for option, value in _options(function)}
        return Declared(inspect.cleandoc(ast.get_docstring(function) or ""), defaults)
    except (LookupError, ValueError):
        found = load(place)
        options = inspect.signature(found).parameters
        return Declared(inspect.getdoc(found) or "", {name: option.default for name, option in options.items()})


@cache
def types_of(place: str) -> Mapping[str, tuple[type, ...]]:
    """The types of each option of the function `module:name`."""
    try:
        texts = {
            option.arg: ast.unparse(option.annotation) for option, _ in _options(_find(place)) if option.annotation
        }
        return {name: plain_types(eval(text, dict(NAMES))) for name, text in texts.items()}
    except (LookupError, NameError, TypeError, ValueError):
        options = inspect.signature(load(place)).parameters
        return {name: plain_types(option.annotation) for name, option in options.items()}


def _options(function: ast.FunctionDef) -> list[tuple[ast.arg, ast.expr]]:
    """The keyword-only options with their defaults; ValueError where there is anything else."""
    given = function.args
    pairs = [(option, default) for option, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default]
    if given.args or given.posonlyargs or given.vararg or given.kwarg or len(pairs) < len(given.kwonlyargs):
        raise ValueError(function.name)
    return pairs


def _find(place: str) -> ast.FunctionDef:
    module, _, name = place.partition(":")
    spec = find_spec(module)
    read = getattr(spec and spec.loader, "get_source", None)
    text = read(module) if read is not None else None
    for statement in ast.parse(text or "").body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return statement
    raise LookupError(place)
