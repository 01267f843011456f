"""Plans as users write them: `NAME=PATH` on a command line, or a YAML file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from vitrail.bench.builtin import OWN, find_entry, guess
from vitrail.bench.plan import DataSpec, ModelSpec, Plan, Trial
from vitrail.bench.protocols import Protocol, find_protocol
from vitrail.data import DATASETS
from vitrail.errors import InputError, MissingExtraError, OptionError, suggest
from vitrail.methods import METHODS

SHAPE = re.compile(r"(\w+)(?:\(([^)]*)\))?(?:=(.*))?", re.DOTALL)
SWITCHES = {"true": True, "false": False}
EVERY, USUAL = "all", "usual"


def parse_data(text: str) -> DataSpec:
    """`NAME=PATH`, `NAME(option=value)=PATH`, or the path of a folder of pictures or a `.txt` file of one's own."""
    match = SHAPE.fullmatch(text.strip())
    if match is None or match[1] not in {**DATASETS, **OWN}:
        if match is not None and match[3] is not None and not Path(text).exists():
            find_entry(match[1])  # says which names there are
        return DataSpec(guess(text), text)
    options: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in (match[2] or "").split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise OptionError(f"{part!r} in {text!r} is not an option: write option=value, separated by commas.")
        options[name] = int(value) if value.isdigit() else SWITCHES.get(value.lower(), value)
    return DataSpec(match[1], match[3] or "", options)


def parse_trials(
    texts: Sequence[str], preset: str, subset: int | None = None, *, data: Sequence[DataSpec] = ()
) -> tuple[Trial, ...]:
    """Methods by name and options; `usual` for all that need one pass only, `all` for every one.

    Args:
        subset: how many examples methods that run the model again are measured on.
        data: what `usual` and `all` have to explain; anything if none is named.
    """
    from vitrail.cli.specs import parse_spec

    found: list[tuple[str, Mapping[str, Any]]] = []
    for text in texts:
        found += [(name, {}) for name in _several(text, preset, data)] if text in (EVERY, USUAL) else [parse_spec(text)]
    return tuple(Trial(name, options, subset if METHODS[name].kind == "rerun" else None) for name, options in found)


def _several(which: str, preset: str, data: Sequence[DataSpec]) -> list[str]:
    kinds = {"image" if find_entry(spec.name).kind == "image" else "text" for spec in data} or {"image", "text"}
    return [
        name
        for name, entry in METHODS.items()
        if entry.models is None
        and kinds & set(entry.inputs)
        and preset in {"recommended", *entry.presets}
        and (which == EVERY or entry.kind == "recording")
    ]


def read_plan(path: str | Path) -> Plan:
    """The plan in a YAML file: models, data, methods, protocols, and any other field of `Plan`."""
    content = _read(Path(path))
    known = {field.name for field in fields(Plan)} - {"trials"} | {"methods"}
    for name in content:
        if name not in known:
            raise OptionError(f"{path}: a plan has no entry {name!r}. {suggest(name, known)}")
    preset = str(content.get("preset", "recommended"))
    rest = {name: x for name, x in content.items() if name not in {"models", "data", "methods", "protocols", "metrics"}}
    metrics = content.get("metrics")
    return Plan(
        models=tuple(_model(x) for x in _list(content, "models", path)),
        data=tuple(_data(x) for x in _list(content, "data", path)),
        trials=tuple(t for x in _list(content, "methods", path) for t in _trial(x, preset)),
        protocols=tuple(_protocol(x) for x in _list(content, "protocols", path)),
        metrics=None if metrics is None else tuple(metrics),
        **rest,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError("plans in YAML need the package pyyaml: pip install 'vitrail[bench]'") from error
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read as a plan: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is no plan: it needs entries such as models, data, methods and protocols.")
    return content


def _list(content: Mapping[str, Any], name: str, path: str | Path) -> list[Any]:
    found = content.get(name, [])
    if not isinstance(found, list):
        raise InputError(f"{path}: {name} is a list, but {found!r} was given.")
    return found


def _model(given: Any) -> ModelSpec:  # noqa: ANN401
    return ModelSpec(given) if isinstance(given, str) else ModelSpec(**_only(given, ("name", "arch"), "a model"))


def _data(given: Any) -> DataSpec:  # noqa: ANN401
    if isinstance(given, str):
        return parse_data(given)
    return DataSpec(**_only(given, ("name", "path", "options", "limit"), "a data set"))


def _trial(given: Any, preset: str) -> tuple[Trial, ...]:  # noqa: ANN401
    if isinstance(given, str):
        return parse_trials([given], preset)
    return (Trial(**_only(given, ("name", "options", "subset"), "a method")),)


def _protocol(given: Any) -> Protocol:  # noqa: ANN401
    if isinstance(given, str):
        return find_protocol(given)
    changes = {name: x for name, x in _only(given, None, "a protocol").items() if name != "name"}
    return find_protocol(str(given.get("name"))).with_(**changes)


def _only(given: Any, names: Sequence[str] | None, what: str) -> dict[str, Any]:  # noqa: ANN401
    if not isinstance(given, dict) or "name" not in given or (names and not set(given) <= set(names)):
        wanted = ", ".join(names) if names else "name and the conventions to change"
        raise InputError(f"{given!r} is not {what}: it takes a name, or a mapping with {wanted}.")
    return given
