"""Options as text, and what a function declares of its options.

`name(option=value, other=[1, 2])` is how methods, protocols and data sets are written. This is the one place where a
word becomes a value. The type that an option is declared with decides how it is read.

The table of methods names its functions as `module:function`. Help, completion and checks of options need the
docstring, the defaults and the types of their options, but not torch. So they are read from the source text without
importing the module. What the text alone does not say, such as a default that is a named constant, is looked up by
importing the module after all.
"""

import ast
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from vitrail.errors import OptionError, suggest

CALL = re.compile(r"\s*([^\s()]+)\s*(?:\((.*)\)\s*)?", re.DOTALL)
SWITCHES = {"true": True, "yes": True, "false": False, "no": False}
OPENING, CLOSING, QUOTES = "([{", ")]}", "'\""


def parse_call(text: str, what: str) -> tuple[str, dict[str, str]]:
    """The name and the options of `name(option=value)`, each option still as text.

    Args:
        what: what the text stands for, in words, such as `a method`.
    """
    match = CALL.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise OptionError(f"{text!r} is not {what}: write a name, or name(option=value, option=value).")
    return match[1], parse_options(match[2] or "", text)


def parse_options(inside: str, whole: str) -> dict[str, str]:
    """The options between the brackets of a call, each still as text.

    Args:
        whole: what the user wrote, for words about it.
    """
    found: dict[str, str] = {}
    for part in _split(inside, whole):
        option, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not option:
            raise OptionError(f"{part!r} in {whole!r} is not an option: write option=value, separated by commas.")
        if option in found:
            raise OptionError(f"{whole!r} gives the option {option!r} twice.")
        found[option] = value
    return found


def _split(inside: str, whole: str) -> list[str]:
    """The parts between commas, except for commas inside brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in inside:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        else:
            depth += (letter in OPENING) - (letter in CLOSING)
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    if depth or quote:
        raise OptionError(f"a bracket or a quotation mark in {whole!r} is not closed.")
    return [part.strip() for part in parts if part.strip()]


def kinds_of(function: Callable[..., Any], option: str) -> tuple[type, ...]:
    """The types that a function declares for one of its options."""
    return plain_types(signature(function).parameters[option].annotation)


def plain_types(annotation: Any) -> tuple[type, ...]:  # noqa: ANN401
    """A type, or those of a union, without what stands in their square brackets."""
    if annotation is Parameter.empty:
        return (str,)
    origin = get_origin(annotation)
    if origin is Literal:
        return tuple(dict.fromkeys(type(value) for value in get_args(annotation)))
    if isinstance(origin, type) and origin.__module__ != "types":
        return (origin,)
    return tuple(kind for part in get_args(annotation) for kind in plain_types(part)) or (annotation or NoneType,)


def _nothing(text: str) -> None:
    if text.lower() != "none":
        raise ValueError(text)


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(text)
    return found


def _word(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] in QUOTES and text[0] == text[-1] else text


def _list(text: str) -> list[Any]:
    """The items of `[1, 2]` or `1+2`."""
    inside = text[1:-1] if text[0] + text[-1] in ("[]", "()") else text.replace("+", ",")
    items = _split(inside, text)
    if not items or (len(items) == 1 and inside == text):
        raise ValueError(text)
    return [read_value(item, (bool, int, float, str), text) for item in items]


READERS: dict[type, tuple[Callable[[str], Any], str]] = {
    NoneType: (_nothing, "none"),
    bool: (lambda text: SWITCHES[text.lower()], "true or false"),
    int: (int, "a whole number"),
    float: (_number, "a number"),
    list: (_list, "a list such as [1, 2]"),
    tuple: (lambda text: tuple(_list(text)), "a list such as [1, 2]"),
    Sequence: (_list, "a list such as [1, 2]"),
    Path: (lambda text: Path(_word(text)), "a path"),
    str: (_word, "a word"),
}
"""By type, how a value is read and what it is called; the most special first, so that 2 is a number before a word."""


def read_value(text: str, kinds: Sequence[type], what: str) -> Any:  # noqa: ANN401
    """The value of a text, as the first of these types that it can be read as.

    Args:
        kinds: the types that the option takes.
        what: the option, for words about it.
    """
    readable = [kind for kind in READERS if kind in kinds]
    if Path in readable and str in readable:
        readable.remove(Path)  # a path is given as text
    for kind in readable:
        try:
            return READERS[kind][0](text)
        except (ValueError, KeyError, IndexError, OptionError):
            continue
    wanted = " or ".join(dict.fromkeys(READERS[kind][1] for kind in readable if kind is not NoneType))
    raise OptionError(
        f"{what} is not {wanted}." if wanted else f"{what}: this option cannot be written as text, use Python."
    )


def read_options(
    texts: Mapping[str, str], kinds: Callable[[str], Sequence[type]], known: Sequence[str], owner: str
) -> dict[str, Any]:
    """The values of options, each of the type that its owner declares.

    Args:
        kinds: the types of an option by its name.
        known: the options there are.
        owner: whose options they are, for words.
    """
    for option in texts:
        if option not in known:
            raise OptionError(f"{owner} has no option {option!r}. {suggest(option, known)}")
    return {option: read_value(text, kinds(option), f"{option}={text!r} of {owner}") for option, text in texts.items()}


TYPES: dict[str, Any] = {
    **{kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict, Path)},
    "Any": object,
    "Callable": Callable,
    "Mapping": Mapping,
    "Sequence": Sequence,
}
"""What the annotation of an option may be made of."""


@dataclass(frozen=True)
class Declared:
    """The docstring of a function, and its options with their defaults."""

    doc: str
    defaults: Mapping[str, Any]


def load(place: str) -> Any:  # noqa: ANN401
    """The object named by `module:name`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@cache
def declared(place: str | Callable[..., Any]) -> Declared:
    """Return the docstring and the options of a function, or of the one that is named by `module:name`."""
    if not isinstance(place, str):
        return Declared(inspect.getdoc(place) or "", {one.name: one.default for one in _options_of(place)})
    try:
        doc, options = _source(place)
        return Declared(doc, {option.arg: ast.literal_eval(value) for option, value in options})
    except (LookupError, ValueError):
        found = load(place)
        given = inspect.signature(found).parameters
        return Declared(inspect.getdoc(found) or "", {name: option.default for name, option in given.items()})


def _options_of(function: Callable[..., Any]) -> list[Parameter]:
    """The options of a function, which are given by keyword alone; annotations that are texts are read."""
    given = signature(function, eval_str=True).parameters.values()
    return [one for one in given if one.kind is Parameter.KEYWORD_ONLY]


@cache
def types_of(place: str | Callable[..., Any]) -> Mapping[str, tuple[type, ...]]:
    """The types of each option of a function, or of the one that is named by `module:name`."""
    if not isinstance(place, str):
        return {one.name: _own_types(one) for one in _options_of(place)}
    try:
        options = _source(place)[1]
        return {option.arg: _types(option.annotation) for option, _ in options if option.annotation}
    except (LookupError, ValueError):
        given = inspect.signature(load(place)).parameters
        return {name: plain_types(option.annotation) for name, option in given.items()}


def _own_types(option: Parameter) -> tuple[type, ...]:
    """The types of an option of a user's function; without an annotation, that of its default."""
    if option.annotation is not Parameter.empty:
        return plain_types(option.annotation)
    return (str, int, float) if option.default is None else (type(option.default),)


def _types(annotation: ast.expr) -> tuple[type, ...]:
    """The types of an annotation as `plain_types` gives them; LookupError where the text alone does not say them."""
    match annotation:
        case ast.Name(id=name):
            return (TYPES[name],)
        case ast.Constant(value=None):
            return (NoneType,)
        case ast.Subscript(value=kind):
            return _types(kind)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return (*_types(left), *_types(right))
    raise LookupError(ast.unparse(annotation))


def _source(place: str) -> tuple[str, list[tuple[ast.arg, ast.expr]]]:
    """The docstring and the keyword-only options with their defaults; ValueError where there is anything else."""
    module, _, name = place.partition(":")
    named = (one for one in _parsed(module).body if isinstance(one, ast.FunctionDef) and one.name == name)
    function = next(named, None)
    if function is None:
        raise LookupError(place)
    given = function.args
    pairs = [(option, default) for option, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default]
    if given.args or given.posonlyargs or given.vararg or given.kwarg or len(pairs) < len(given.kwonlyargs):
        raise ValueError(place)
    return inspect.cleandoc(ast.get_docstring(function) or ""), pairs


def module_doc(place: str | Callable[..., Any]) -> str:
    """The docstring of the module of a function, or of the one that is named by `module:name`."""
    if not isinstance(place, str):
        return inspect.getdoc(inspect.getmodule(place)) or "" if inspect.getmodule(place) else ""
    return ast.get_docstring(_parsed(place.partition(":")[0])) or ""


def _parsed(module: str) -> ast.Module:
    """The source text of a module; empty where there is none."""
    spec = find_spec(module)
    read = getattr(spec and spec.loader, "get_source", None)
    text = read(module) if read is not None else None
    return ast.parse(text or "")
