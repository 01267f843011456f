"""Results as JSON: raw scores, so that the page draws, colours and smooths them without the server."""

from base64 import b64encode
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.apps.web.explaining import Case
from vitrail.apps.web.reading import data_url
from vitrail.attribution import Attribution
from vitrail.methods import METHODS
from vitrail.plots.tokens import pieces, real_tokens, token_names, word_groups

TOP = 6
"""Classes that are listed before one searches."""
INTEGERS = 32767


def packed(values: "Tensor | np.ndarray") -> dict[str, Any]:
    """Numbers as 16-bit integers in base64 with one factor: the largest error is 1/65534 of the largest magnitude."""
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)
    largest = float(np.abs(array).max()) if array.size else 0.0
    whole = np.round(array / largest * INTEGERS) if largest else np.zeros_like(array)
    return {
        "shape": list(array.shape),
        "scale": largest / INTEGERS,
        "int16": b64encode(whole.astype("<i2").tobytes()).decode(),
    }


def map_json(found: Attribution, *, index: int = 0) -> dict[str, Any]:
    """One map: its scores as pictures show them, and how it was made."""
    entry = METHODS.get(found.method)
    made = found.provenance
    return {
        "method": found.method,
        "label": found.label,
        "preset": found.preset,
        "signed": found.signed,
        "class_specific": entry.class_specific if entry is not None else True,
        "grid": found.grid,
        "scores": packed(
            found.shown[index] if found.kind == "image" else found.shown[index][real_tokens(found, index)]
        ),
        "pixels": None if found.pixels is None else packed(found.pixels[index]),
        "seconds": made.get("seconds"),
        "parts": list(made.get("parts") or ()),
        "disagreement": _first(made.get("disagreement"), index),
        "assumed": [str(one) for one in made.get("assumed") or ()],
    }


def _first(values: object, index: int) -> float | None:
    """The entry of one sample, where there is one for each."""
    if values is None:
        return None
    row = values.tolist() if isinstance(values, Tensor) else values
    return float(row[index]) if isinstance(row, (list, tuple)) else float(str(row))


def token_json(found: Attribution, *, index: int = 0) -> dict[str, Any] | None:
    """The tokens of a text as they are read, and which of them make up a word."""
    if found.kind != "text":
        return None
    shown = real_tokens(found, index)
    raw = [token_names(found, index)[i] for i in shown]
    readable = pieces(found, index)
    return {
        "text": [piece.text for piece in readable],
        "glued": [piece.glued or piece.raw.startswith("##") for piece in readable],
        "read_here": [piece.left_out for piece in readable],
        "words": word_groups(raw),
        "names": [piece.text for piece in pieces(found, index, merge=True)],
    }


def class_json(case: Case, index: int, *, probs: Tensor | None = None) -> dict[str, Any]:
    """A class, its name and its probability."""
    return {
        "index": index,
        "name": case.name(index),
        "probability": float((case.probs if probs is None else probs)[index]),
    }


def case_json(case: Case, target: int) -> dict[str, Any]:
    """What the model says of the input, and the picture as it saw it."""
    best = case.probs.topk(min(TOP, len(case.probs))).indices.tolist()
    picture = case.sample.picture
    return {
        "kind": case.kind,
        "task": case.opened.loaded.task,
        "model": case.key[1],
        "target": class_json(case, target),
        "classes": [class_json(case, index) for index in best],
        "count": len(case.probs),
        "picture": None if picture is None else data_url(picture),
        "size": None if picture is None else [picture.height, picture.width],
    }
