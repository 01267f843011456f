"""What the page says in plain words."""

from vitrail.apps.web.explaining import is_quick
from vitrail.methods import METHODS

PLAIN = {
    "consensus": "several methods put together",
    "raw_attention": "where the last layer attends",
    "rollout": "attention followed through all layers, whatever the answer",
    "grad_cam": "the last layer's attention that helped this answer",
    "gae": "attention that helped this answer, through all layers",
    "complete_gradient": "what speaks for this answer, and what against it",
    "absolute_gradient": "attention that mattered either way",
    "tokentm": "attention, weighed by how much each part was changed",
    "gradtoken": "each part's own relevance, carried through attention",
    "attcat": "what speaks for and against, weighed by attention",
    "cat": "what speaks for and against, part by part",
    "grads": "what the last layer would like to see more or less of",
    "att_grads": "attention that helped, averaged over layers",
    "input_x_gradient": "how the input itself pushes the answer",
    "grad_eclip_heads": "what the last layer took over, head by head",
    "feature_grad_cam": "the last features that helped this answer",
    "agcam": "attention that helped, added over blocks",
    "le_grad": "what each block would tell the answer",
    "attn_lrp": "the answer handed back through every layer",
}
"""Methods in a few words; others in those of their summary."""
LOOKED = {
    "image": "The maps show which parts of the picture led to this answer.",
    "text": "The shades show which words led to this answer.",
}


def plain(method: str) -> str:
    """What a method shows."""
    return PLAIN.get(method) or METHODS[method].summary


def choice(method: str) -> tuple[str, str]:
    """A method as it is offered, and its name."""
    return (method if is_quick(method) else f"{method} (takes longer)"), method


def percent(share: float) -> str:
    """A probability as one reads it."""
    return (
        "over 99\u00a0%"
        if 0.995 <= share < 1
        else "under 1\u00a0%"
        if 0 < share < 0.005
        else f"{share:.0%}".replace("%", "\u00a0%")
    )
