"""Inside the model: the layers and heads of a method, and attention of every layer and head from one token."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import vitrail
from vitrail import targets
from vitrail.apps.web.explaining import Case, Explorer
from vitrail.apps.web.passes import running
from vitrail.apps.web.payload import packed
from vitrail.apps.web.workers import Job
from vitrail.attribution import Attribution
from vitrail.errors import InputError, OptionError
from vitrail.plots.tokens import real_tokens

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
