"""Whether the fields of an attribution fit each other, asked before one is written and after one was read."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Fields = Any
"""An attribution, or any object with its fields: what was read from a file is checked before it becomes one."""
KINDS = ("image", "text")


def check(fields: Fields) -> None:
    """Raise ValueError with the first contradiction between the fields of an attribution."""
    _check_words(fields)
    _check_scores(fields.scores)
    for name, axes in SHAPES.items():
        _check_shape(fields, name, axes)
    _check_grid(fields)
    _check_tokens(fields)
    _check_readout(fields)
    _check_target(fields)


def _check_words(fields: Fields) -> None:
    for name in ("method", "preset"):
        value = getattr(fields, name)
        if not isinstance(value, str) or not value:
            raise ValueError(f"its {name} is {value!r}, not a name")
    if fields.kind not in KINDS:
        raise ValueError(f"its kind is {fields.kind!r}, which is none of {', '.join(KINDS)}")
    if not isinstance(fields.signed, bool):
        raise ValueError(f"signed is {fields.signed!r}, neither true nor false")
    for name in ("options", "provenance"):
        if not isinstance(getattr(fields, name), Mapping):
            raise ValueError(f"its {name} are no table of names and values")


def _check_scores(scores: Any) -> None:  # noqa: ANN401
    if not isinstance(scores, Tensor) or scores.ndim != 2 or not scores.is_floating_point():
        raise ValueError("its scores are no real numbers [samples, patches or tokens]")
    if 0 in scores.shape:
        raise ValueError(f"its scores have shape {list(scores.shape)}: there are none")


REAL: Callable[[Tensor], bool] = Tensor.is_floating_point
SHAPES: dict[str, tuple[str, Callable[[Tensor], bool], str]] = {
    "scores": ("bn", REAL, "real numbers"),
    "valid": ("bn", lambda x: x.dtype is torch.bool, "true or false"),
    "own": ("bn", REAL, "real numbers"),
    "readout": ("b", lambda x: not x.is_floating_point() and x.dtype is not torch.bool, "whole numbers"),
    "pixels": ("bhw", REAL, "real numbers"),
    "layers": ("bln", REAL, "real numbers"),
    "heads": ("bln", REAL, "real numbers"),
}
"""By field: its axes, what its values have to be, and how that is called. `b` and `n` are those of the scores."""


def _check_shape(fields: Fields, name: str, wanted: tuple[str, Callable[[Tensor], bool], str]) -> None:
    x = getattr(fields, name)
    axes, fits, meaning = wanted
    if x is None:
        return
    if not isinstance(x, Tensor) or not fits(x):
        raise ValueError(f"its {name} are not {meaning}")
    known = dict(zip("bn", fields.scores.shape, strict=True))
    if x.ndim != len(axes) or any(known.get(a, n) != n or n == 0 for a, n in zip(axes, x.shape, strict=True)):
        said = ", ".join(str(known.get(axis, "any")) for axis in axes)
        raise ValueError(f"its {name} have shape {list(x.shape)}, but its scores ask for [{said}]")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise ValueError(f"its {name} hold {int((~torch.isfinite(x)).sum())} NaN or infinite values of {x.numel()}")


def _check_grid(fields: Fields) -> None:
    for name in ("grid", "size"):
        pair = getattr(fields, name)
        if pair is None:
            continue
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(_is_whole(x) and x > 0 for x in pair):
            raise ValueError(f"its {name} is {pair!r}, not two whole numbers above zero")
    grid, count = fields.grid, fields.scores.shape[1]
    if grid is not None and grid[0] * grid[1] != count:
        raise ValueError(f"it has {count} scores for a grid of {grid[0]} x {grid[1]}")
    if fields.pixels is not None and fields.size not in (None, tuple(fields.pixels.shape[1:])):
        raise ValueError(f"its pixels are {list(fields.pixels.shape[1:])}, its image {list(fields.size or ())}")


def _check_tokens(fields: Fields) -> None:
    tokens, (batch, count) = fields.tokens, fields.scores.shape
    if tokens is None:
        return
    if not isinstance(tokens, tuple) or len(tokens) != batch or not all(isinstance(row, tuple) for row in tokens):
        raise ValueError(f"its tokens are not those of {batch} samples")
    for row in tokens:
        if len(row) != count or not all(isinstance(token, str) for token in row):
            raise ValueError(f"it has {len(row)} tokens for {count} scores, or some that are no text")


def _check_readout(fields: Fields) -> None:
    if fields.readout is None:
        return
    low, high, count = int(fields.readout.min()), int(fields.readout.max()), fields.scores.shape[1]
    if fields.kind == "text" and not -1 <= low <= high < count:
        raise ValueError(f"it is read at token {low if low < -1 else high}, but has {count} tokens")


def _check_target(fields: Fields) -> None:
    target, batch = fields.target, fields.scores.shape[0]
    if not isinstance(target.name, str) or not isinstance(target.absolute, bool):
        raise ValueError(f"its target is {target.name!r}, which is no name")
    if target.position is not None and not _is_whole(target.position):
        raise ValueError(f"its target has the position {target.position!r}, not a whole number")
    for classes in (target.first, target.second):
        each = classes if isinstance(classes, tuple) else (classes,) * batch
        if len(each) != batch or not all(c is None or _is_whole(c) for c in each):
            raise ValueError(f"its target names {classes!r}, not one class for each of {batch} samples")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
