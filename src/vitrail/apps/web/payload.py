"""Results as JSON: raw scores, so that the page draws, colours and smooths them without the server.

Also what is inside the model (the layers and heads of a method, attention of every layer and head from one token), and
the page's texts: methods in plain words, what a model knows, warnings about inputs unlike its training data.
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
from vitrail.apps.web.explaining import Case, Explorer, data_url, is_quick, offered
from vitrail.apps.web.model_cache import running
from vitrail.apps.web.workers import Job
from vitrail.attribution import Attribution
from vitrail.errors import InputError, OptionError
from vitrail.methods import METHODS
from vitrail.models.loading import EMBEDDED, Loaded
from vitrail.models.texts import CONTINUES, word_groups
from vitrail.plots.tokens import pieces, real_tokens

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
    entry, made, scores = METHODS.get(found.method), found.provenance, found.shown[index]
    return {
        "method": found.method,
        "label": found.label,
        "preset": found.preset,
        "signed": found.signed,
        "class_specific": entry.class_specific if entry is not None else True,
        "grid": found.grid,
        "scores": packed(scores if found.kind == "image" else scores[real_tokens(found, index)]),
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
    readable = pieces(found, index)
    return {
        "text": [piece.text for piece in readable],
        "glued": [piece.glued or piece.raw.startswith(CONTINUES) for piece in readable],
        "read_here": [piece.left_out for piece in readable],
        "words": word_groups([piece.raw for piece in readable]),
        "names": [piece.text for piece in pieces(found, index, merge=True)],
    }


def class_json(case: Case, index: int, *, probs: Tensor | None = None) -> dict[str, Any]:
    """A class, its name and its probability."""
    probability = float((case.probs if probs is None else probs)[index])
    return {"index": index, "name": case.name(index), "probability": probability}


def case_json(case: Case, target: int) -> dict[str, Any]:
    """Return the model's prediction for the input, and the picture as the model saw it."""
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
    last = layers[-1]
    shape = list(last.probs.shape)
    if len(layers) * 4 * last.probs.numel() > MOST:
        raise OptionError(f"the attention maps of {len(layers)} layers of shape {shape} are too large for the page.")
    probs = torch.stack([layer.probs[0].detach().float().cpu() for layer in layers])
    return explorer.results.put(key, Attention(probs, last.readout[0].detach().float().cpu(), last.prefix))


def attention_json(found: Attention, token: int | None, like: Attribution) -> dict[str, Any]:
    """One row of every layer and head: from a patch or token, or from where the answer is read."""
    count, picture = found.probs.shape[-1], like.kind == "image"
    tokens = real_tokens(like, 0)
    if token is None:
        rows = torch.einsum("q,lhqk->lhk", found.readout, found.probs)
    else:
        place = token + found.prefix if picture else tokens[min(token, len(tokens) - 1)]
        if place >= count:
            raise InputError(f"token {token} does not exist: there are {count - found.prefix}, from 0 on.")
        rows = found.probs[:, :, place]
    shown = slice(found.prefix, found.prefix + like.scores.shape[1]) if picture else tokens
    return {"token": token, "rows": packed(rows[..., shown])}


def parts_json(found: Attribution, *, index: int = 0) -> dict[str, Any]:
    """A method's own map for each layer and each head, where it has them."""
    shown = slice(None) if found.kind == "image" else real_tokens(found, index)
    names = found.provenance.get("parts")
    return {
        "layers": None if found.layers is None else packed(found.layers[index][:, shown]),
        "heads": None if found.heads is None else packed(found.heads[index][:, shown]),
        "layer_names": list(names) if names and found.layers is not None else None,
    }


PLAIN = {
    "consensus": "several methods combined",
    "raw_attention": "where the last layer attends",
    "rollout": "attention through all layers, the same for every class",
    "grad_cam": "the last layer's attention that raises this answer",
    "gae": "attention that raises this answer, through all layers",
    "complete_gradient": "what speaks for this answer, and what against it",
    "absolute_gradient": "attention that matters in either direction",
    "tokentm": "attention, weighted by how much each layer changes a token",
    "gradtoken": "each token's own relevance, propagated through attention",
    "attcat": "for and against, weighted by attention",
    "cat": "for and against, token by token",
    "grads": "gradient of the last layer's tokens",
    "att_grads": "attention that raises this answer, averaged over layers",
    "input_x_gradient": "input times gradient",
    "grad_eclip_heads": "what the last layer reads, head by head",
    "feature_grad_cam": "the last features that raise this answer",
    "agcam": "attention that raises this answer, summed over blocks",
    "le_grad": "what each block alone would say of the answer",
    "attn_lrp": "relevance propagated back through every layer",
    "libra_grad": "a corrected gradient, summed over layers and biases",
    "gim": "input times a gradient that sees through attention",
}
"""Methods in a few words; others in those of their summary."""
WHEN = {
    "consensus": "The default: it measured best on average. Use another where you need a published method.",
    "rollout": "To see where information can flow. It does not depend on the class.",
    "raw_attention": "To see the last attention. It does not depend on the class and is no explanation by itself.",
    "complete_gradient": "To see evidence against the answer too.",
    "attcat": "On text, to see evidence for and against.",
    "integrated_gradients": "When scores have to add up to the change of the output.",
    "attn_lrp": "When relevance has to be propagated by rules. One backward pass.",
}
DEFAULT_METHODS = {"image": ("consensus", "gae", "complete_gradient"), "text": ("attcat", "consensus", "gae")}


def method_cards(kind: str) -> list[dict[str, Any]]:
    """Every method offered for this kind of input, with what one needs to choose."""
    return [
        {
            "name": name,
            "plain": PLAIN.get(name) or METHODS[name].summary,
            "paper": METHODS[name].paper,
            "signed": METHODS[name].is_signed(METHODS[name].resolve("recommended", {}, kind)),
            "class_specific": METHODS[name].class_specific,
            "cost": METHODS[name].cost,
            "quick": is_quick(name),
            "when": WHEN.get(name, ""),
            "presets": sorted({"recommended", *METHODS[name].presets} & {"recommended", "paper", "official"}),
        }
        for name in offered(kind)
    ]


@dataclass(frozen=True)
class Knowledge:
    """The facts known of an embedded model, from its card.

    Args:
        what: what it is and what it was trained on.
        sure: a probability that is usual for inputs like those it was trained on, and the sentence for one below.
        longest: tokens of the longest training texts.
    """

    what: str
    sure: tuple[float, str] | None = None
    longest: int | None = None


KNOWN = {
    "photo": Knowledge(
        "A small demonstration model: a Vision Transformer of 5 million weights, trained on Imagenette. It knows ten "
        "classes and answers every picture with one of them.",
        (
            0.8,
            "The model is unusually unsure. 83 % of the photographs of its own ten classes get a probability above "
            "80 %; of photographs of other things only a quarter do. This picture may show something it does not know.",
        ),
    ),
    "sentiment": Knowledge(
        "A small demonstration model: a BERT of 23 million weights, trained on English sentences about films. It knows "
        "two classes, negative and positive; there is no neutral one.",
        longest=128,
    ),
    "lookup": Knowledge(
        "A tiny demonstration language model of 63 thousand weights. It says what a person has, if the text says so. "
        "It knows 20 names and 20 things; try: Anna: ring. Boris: key. Clara: lamp. Boris:",
        longest=56,
    ),
}
CAUTION = 0.5
UNKNOWN_SHARE = 0.2


def model_card(loaded: Loaded) -> dict[str, Any]:
    """Return the facts about a model that the page shows: what it is and what it knows."""
    known = KNOWN.get(loaded.name) if loaded.name in EMBEDDED else None
    causal = loaded.task == "causal"
    plain = f"{type(loaded.model).__name__}. It knows {loaded.classes} {'tokens' if causal else 'classes'}."
    names = [] if causal or not loaded.class_names else [loaded.class_name(i) for i in range(min(loaded.classes, 12))]
    return {"name": loaded.name, "what": known.what if known else plain, "knows": names, "count": loaded.classes}


def cautions(case: Case) -> list[str]:
    """Sentences on why this input looks unlike what the model was trained on; none where nothing is seen."""
    loaded, said = case.opened.loaded, []
    known = KNOWN.get(loaded.name) if loaded.name in EMBEDDED else None
    top = float(case.probs.max())
    if known is not None and known.sure is not None and top < known.sure[0]:
        said.append(known.sure[1])
    elif known is None and loaded.task != "causal" and top < CAUTION:
        said.append(f"The model is unsure: its most probable class has {top:.0%}. What it was trained on is not known.")
    if loaded.tokenizer is None:
        return said
    ids = case.sample.inputs["input_ids"][0].tolist()  # pyright: ignore[reportCallIssue, reportArgumentType]
    share = ids.count(loaded.tokenizer.unk_token_id) / len(ids)
    if share > UNKNOWN_SHARE:
        said.append(f"{share:.0%} of the tokens are unknown to the model's vocabulary, so it cannot read them.")
    if known is not None and known.longest is not None and len(ids) > known.longest:
        said.append(f"The text has {len(ids)} tokens; the model was trained on texts of at most {known.longest}.")
    return said
