"""Texts with a class each, from rows: what SST-2, QQP, MNLI, the polarity sets and IMDB have in common."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from vitrail.errors import InputError
from vitrail.evaluate.data.dataset import Dataset
from vitrail.evaluate.data.examples import TextExample
from vitrail.evaluate.data.rows import Rows

UNPUBLISHED = "-1"  # how the Hugging Face hub marks labels that are kept secret


def _as_it_is(text: str) -> str:
    return text


@dataclass(frozen=True)
class Layout:
    """Which columns hold what, under the names they go by, and how labels are written.

    Args:
        codes: from what the label column says to the class number, or None where there is no agreed label.
        classes: names of the classes.
        polish: undoes what the file format did to a text.
    """

    text: tuple[str, ...]
    label: tuple[str, ...]
    codes: Mapping[str, int | None]
    classes: tuple[str, ...]
    second: tuple[str, ...] = ()
    polish: Callable[[str], str] = _as_it_is


def labelled_texts(name: str, rows: Rows, layout: Layout) -> Dataset[TextExample]:
    """The rows as examples; only a test file may lack the label column, as GLUE's do."""
    text = rows.column(layout.text)
    second = rows.column(layout.second) if layout.second else None
    secret = rows.name.startswith("test") and not set(layout.label) & set(rows.columns)
    label = None if secret else rows.column(layout.label)
    return Dataset(
        name,
        rows.source,
        range(rows.size),
        rows.key,
        partial(_example, rows, layout, text, second, label),
        dict(enumerate(layout.classes)),
    )


def _example(rows: Rows, layout: Layout, text: str, second: str | None, label: str | None, number: int) -> TextExample:
    key = rows.key(number)
    row = rows.read(number, key)
    return TextExample(
        key,
        layout.polish(_text(rows, row, text, key)),
        None if second is None else layout.polish(_text(rows, row, second, key)),
        None if label is None else class_number(row[label], layout.codes, f"{key}: {rows.source}"),
    )


def _text(rows: Rows, row: Mapping[str, Any], column: str, key: str) -> str:
    value = row[column]
    if not isinstance(value, str):
        raise InputError(f"{key}: {rows.source} has {value!r} in column {column}, not a text.")
    return value


def class_number(written: object, codes: Mapping[str, int | None], where: str) -> int | None:
    """The class of a label as it is written."""
    label = str(written).strip()
    if label == UNPUBLISHED:
        return None
    if label not in codes:
        raise InputError(f"{where} has the label {label!r}, which is none of {', '.join(codes)}.")
    return codes[label]
