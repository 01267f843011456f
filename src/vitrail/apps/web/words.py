"""The page's texts: methods in plain words, what a model knows, warnings about inputs unlike its training data."""

from dataclasses import dataclass
from typing import Any

from vitrail.apps.web.explaining import Case, is_quick, offered
from vitrail.methods import METHODS
from vitrail.models.loading import EMBEDDED, Loaded

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
    """What is known of an embedded model, from its card.

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
    """What a model is and what it knows."""
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
    if loaded.tokenizer is not None:
        said += _text_cautions(case, known)
    return said


def _text_cautions(case: Case, known: Knowledge | None) -> list[str]:
    ids = case.sample.inputs["input_ids"][0].tolist()  # pyright: ignore[reportCallIssue, reportArgumentType]
    unknown = case.opened.loaded.tokenizer.unk_token_id
    share = ids.count(unknown) / len(ids) if unknown is not None else 0.0
    said = []
    if share > UNKNOWN_SHARE:
        said.append(f"{share:.0%} of the tokens are unknown to the model's vocabulary, so it cannot read them.")
    if known is not None and known.longest is not None and len(ids) > known.longest:
        said.append(f"The text has {len(ids)} tokens; the model was trained on texts of at most {known.longest}.")
    return said
