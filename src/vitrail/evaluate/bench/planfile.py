"""Plans as users write them: `NAME=PATH` on a command line, or a YAML file."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.errors import InputError, MissingExtraError, OptionError, as_path, suggest
from vitrail.evaluate.bench.opened import DATA, find_entry, guess
from vitrail.evaluate.bench.plan import NUMBERS, DataSpec, ModelSpec, Plan, Trial, check_number
from vitrail.evaluate.bench.protocols import find_protocol
from vitrail.methods import METHODS, PREFERRED, parse_spec
from vitrail.methods.option_text import kinds_of, parse_options, read_options

SHAPE = re.compile(r"(\w+)(?:\(([^)]*)\))?(?:=(.*))?", re.DOTALL)


def parse_data(text: str) -> DataSpec:
    """`NAME=PATH`, `NAME(option=value)=PATH`, or the path of a folder of pictures or a `.txt` file of one's own."""
    if not isinstance(text, str):
        raise InputError(f"data must be given as text such as pets=PATH, not as {type(text).__name__}.")
    match = SHAPE.fullmatch(text.strip())
    if match is None or match[1] not in DATA:
        if match is not None and match[3] is not None and not Path(text).exists():
            find_entry(match[1])  # says which names there are
        return DataSpec(guess(text), text)
    entry = find_entry(match[1])
    texts = parse_options(match[2] or "", text)
    options = read_options(texts, partial(kinds_of, entry.read), list(entry.options), entry.name)
    return DataSpec(match[1], match[3] or "", options)


def parse_trials(texts: Sequence[str], subset: int | None = None) -> tuple[Trial, ...]:
    """Methods by name and options; `usual` for all that need one pass, `default` for that one, `all` for every one.

    Args:
        subset: how many examples methods that run the model again are measured on.
    """
    found: list[tuple[str, Mapping[str, Any], bool]] = []
    for text in texts:
        found += [(name, {}, False) for name in SEVERAL[text]()] if text in SEVERAL else [(*parse_spec(text), True)]
    return tuple(
        Trial(name, options, subset if METHODS[name].kind == "rerun" else None, named) for name, options, named in found
    )


SEVERAL: dict[str, Callable[[], list[str]]] = {
    "all": lambda: list(METHODS),
    "default": lambda: [PREFERRED],
    "usual": lambda: [name for name, entry in METHODS.items() if entry.kind == "recording"],
}


def read_plan(path: str | Path) -> Plan:
    """The plan in a YAML file: models, data, methods, protocols, and any other field of `Plan`."""
    content = _read(as_path(path, "a plan"))
    known = {field.name for field in fields(Plan)} - {"trials"} | {"methods"}
    for name in content:
        if name not in known:
            raise OptionError(f"{path}: a plan has no entry {name!r}. {suggest(name, known)}")
    rest = {name: x for name, x in content.items() if name not in {*LISTS, "metrics"}}
    for name, value in rest.items():
        if name in NUMBERS:
            check_number(name, value)
        elif not isinstance(value, str) and not (value is None and name in {"ablation", "target"}):
            raise InputError(f"{path}: {name} is a word, but {value!r} was given.")
    metrics = None if content.get("metrics") is None else tuple(map(str, _list(content, "metrics", path)))
    lists: dict[str, Any] = {name: _specs(content, name, path) for name in LISTS}
    return Plan(trials=lists.pop("methods"), metrics=metrics, **lists, **rest)


def _read(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError("plans in YAML need the package pyyaml: pip install 'vitrail[bench]'") from error
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read as a plan: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise InputError(f"{path} is no plan: it needs entries such as models, data, methods and protocols.")
    return content


def _list(content: Mapping[str, Any], name: str, path: str | Path) -> list[Any]:
    found = content.get(name, [])
    if name == "methods" and isinstance(found, str) and found in SEVERAL:
        return [found]
    if not isinstance(found, list):
        raise InputError(f"{path}: {name} is a list, but {found!r} was given.")
    return found


def _specs(content: Mapping[str, Any], name: str, path: str | Path) -> tuple[Any, ...]:
    """Return the entries of a list of the plan, each written as a text or as a mapping."""
    what, parse, make, names = LISTS[name]
    found: list[Any] = []
    for given in _list(content, name, path):
        found += parse(given) if isinstance(given, str) else [make(**_only(given, names, what))]
    return tuple(found)


def _only(given: Any, names: Sequence[str], what: str) -> dict[str, Any]:  # noqa: ANN401
    """A mapping with a name and no other entries than these, if any are listed, each of its type."""
    if not isinstance(given, dict) or "name" not in given or (names and not set(given) <= set(names)):
        wanted = ", ".join(names) if names else "name and the conventions to change"
        raise InputError(f"{given!r} is not {what}: it takes a name, or a mapping with {wanted}.")
    for name in names:
        if name in given and not (given[name] is None and name in {"arch", "limit", "subset"}):
            kind, described = ENTRIES[name]
            if not isinstance(given[name], kind) or isinstance(given[name], bool):
                raise InputError(f"{given!r} is not {what}: {name} is {described}, but {given[name]!r} was given.")
    return given


LISTS: dict[str, tuple[str, Callable[[str], Sequence[Any]], Callable[..., Any], tuple[str, ...]]] = {
    "models": ("a model", lambda text: [ModelSpec(text)], ModelSpec, ("name", "arch")),
    "data": ("a data set", lambda text: [parse_data(text)], DataSpec, ("name", "path", "options", "limit")),
    "methods": ("a method", lambda text: parse_trials([text]), Trial, ("name", "options", "subset")),
    "protocols": (
        "a protocol",
        lambda text: [find_protocol(text)],
        lambda name, **changes: find_protocol(str(name)).with_(**changes),
        (),
    ),
}
"""Entry of a plan -> what a message calls an item, what reads a text, what takes a mapping, and the entries of that."""
ENTRIES: dict[str, tuple[type, str]] = {
    "name": (str, "a word"),
    "arch": (str, "a word"),
    "path": (str, "a path"),
    "options": (dict, "a mapping of names to values"),
    "limit": (int, "a whole number"),
    "subset": (int, "a whole number"),
}
"""The type of each entry of a mapping in a plan, and how a message calls it."""
