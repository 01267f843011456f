"""From what a user calls a class to its index."""

from collections.abc import Sequence
from typing import Any

from vitrail.errors import TargetError, suggest


def find_class(wanted: str, names: Sequence[str] | None, count: int) -> int:
    """The index of a class given by index or by any of its comma-separated names."""
    if wanted.strip().lstrip("+-").isdecimal():
        return _in_range(int(wanted), count)
    if names is None:
        raise TargetError(f"this model's classes have no names: give an index, 0 to {count - 1}, not {wanted!r}.")
    found = [index for index, label in enumerate(names) if _key(wanted) in _synonyms(label)]
    if len(found) == 1:
        return found[0]
    if found:
        listed = "; ".join(f"{index} ({names[index]})" for index in found)
        raise TargetError(f"{wanted!r} names {len(found)} classes: {listed}. Give the index.")
    near = suggest(_key(wanted), {synonym for label in names for synonym in _synonyms(label)})
    if not near.startswith("Did") and len(names) > 20:
        near = f"Its {len(names)} classes are called {_short(names[0])}, {_short(names[1])}, ...; an index works too."
    raise TargetError(f"the model has no class {wanted!r}. {near}")


def find_token(wanted: str, tokenizer: Any, count: int) -> int:  # noqa: ANN401
    """The id of a token given by id or as text; spaces count."""
    if wanted.strip().isdecimal():
        return _in_range(int(wanted), count)
    ids = tokenizer(wanted, add_special_tokens=False)["input_ids"]
    if len(ids) == 1:
        return int(ids[0])
    pieces = ", ".join(repr(tokenizer.decode([i])) for i in ids)
    raise TargetError(
        f"{wanted!r} is {len(ids)} tokens ({pieces}), but a target is one. A word inside a sentence often begins with "
        f"a space: {' ' + wanted.strip()!r}."
    )


def _in_range(index: int, count: int) -> int:
    if not 0 <= index < count:
        raise TargetError(f"target {index} is out of range: the model has {count} classes, 0 to {count - 1}.")
    return index


def _key(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").split())


def _synonyms(label: str) -> set[str]:
    return {_key(label), *(_key(part) for part in label.split(","))}


def _short(label: str) -> str:
    return label.split(",")[0]
