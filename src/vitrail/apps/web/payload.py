"""Results as JSON: raw scores, so that the page draws, colours and smooths them without the server.

Also what is inside the model: the layers and heads of a method, and attention of every layer and head from one token.
"""

from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import vitrail
from vitrail import targets
from vitrail.apps.web.explaining import Case, Explorer
from vitrail.apps.web.model_cache import running
from vitrail.apps.web.reading import data_url
from vitrail.apps.web.workers import Job
from vitrail.attribution import Attribution
from vitrail.errors import InputError, OptionError
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


MOST = 2**25
"""Bytes of the attention maps that are kept of one input."""


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention of every layer and head, from every token to every token, and which tokens the answer is read from."""

    probs: Float[Tensor, "l h t t"]
    readout: Float[Tensor, " t"]
    prefix: int


def attention_of(explorer: Explorer, case: Case, target: int, job: Job) -> Attention:
    """All attention maps, recorded once for an input."""
    key = ("attention", case.key)
    if (found := explorer.results.get(key)) is not None:
        return found
    with running(case.opened.twin, job, "recording attention"):
        model = case.opened.twin.loaded.model
        made = vitrail.record(model, case.sample.inputs, targets.logit(target), keep=frozenset())
    layers = [layer for layer in made.layers if not layer.pooling]
    shapes = {tuple(layer.probs.shape) for layer in layers}
    if len(shapes) != 1:
        raise OptionError("the layers of this model have unequal shapes, so they do not fit one grid.")
    shape = shapes.pop()
    if len(layers) * 4 * torch.Size(shape).numel() > MOST:
        raise OptionError(
            f"the attention maps of {len(layers)} layers of shape {list(shape)} are too large for the page."
        )
    probs = torch.stack([layer.probs[0].detach().float().cpu() for layer in layers])
    last = layers[-1]
    return explorer.results.put(key, Attention(probs, last.readout[0].detach().float().cpu(), last.prefix))


def attention_json(found: Attention, token: int | None, like: Attribution) -> dict[str, Any]:
    """One row of every layer and head: from a patch or token, or from where the answer is read."""
    count = found.probs.shape[-1]
    picture = like.kind == "image"
    if token is None:
        rows = torch.einsum("q,lhqk->lhk", found.readout, found.probs)
    else:
        place = token + found.prefix if picture else real_tokens(like, 0)[min(token, len(real_tokens(like, 0)) - 1)]
        if place >= count:
            raise InputError(f"token {token} does not exist: there are {count - found.prefix}, from 0 on.")
        rows = found.probs[:, :, place]
    kept = rows[..., found.prefix : found.prefix + like.scores.shape[1]] if picture else rows[..., real_tokens(like, 0)]
    return {"token": token, "rows": packed(kept)}


def parts_json(found: Attribution, *, index: int = 0) -> dict[str, Any]:
    """A method's own map for each layer and each head, where it has them."""
    shown = slice(None) if found.kind == "image" else real_tokens(found, index)
    names = found.provenance.get("parts")
    return {
        "layers": None if found.layers is None else packed(found.layers[index][:, shown]),
        "heads": None if found.heads is None else packed(found.heads[index][:, shown]),
        "layer_names": list(names) if names and found.layers is not None else None,
    }
