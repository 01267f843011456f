"""Models: families and their parts, inputs and grids, loading by name, embedded models.

Here are the names of what comes inside the package: models, pictures, sentences and a question.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOISY = ("transformers", "huggingface_hub", "timm", "httpx", "torch.utils._pytree")


@contextmanager
def silent() -> Iterator[None]:
    """Keep the libraries' own log lines and progress bars off the screen; transformers must be imported by then."""
    bars = sys.modules.get("transformers.utils.logging")  # of the weights; where it is not imported there are none
    hidden = bars if bars is not None and bars.is_progress_bar_enabled() else None
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    try:
        if hidden is not None:
            hidden.disable_progress_bar()
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if hidden is not None:
            hidden.enable_progress_bar()


MODELS = {"photo": "image", "sentiment": "sequence", "lookup": "causal"}
"""Name -> task of the embedded models."""
CLASSES = {
    "photo": (
        "tench", "English springer", "cassette player", "chain saw", "church", "French horn", "garbage truck",
        "gas pump", "golf ball", "parachute",
    ),
    "sentiment": ("negative", "positive"),
}  # fmt: skip
"""The classes of the embedded models that have names, for completion; a test compares them with the models."""
PICTURES = {
    "golf_ball": "Golf ball: rendered by us, Apache-2.0.",
    "temple": "Temple: Daniel Büchele, CC BY 2.0, cut to a square.",
}
"""Name -> where the picture comes from."""
SENTENCES = (
    "nothing here is original, yet i loved every minute",
    "the plot is not bad, but the endless dialogue is unbearably dull",
    "despite a clumsy start, this turns out to be a small miracle",
    "a warm and funny film with two wonderful leads",
    "two hours of noise without a single idea",
    "the camera finds beauty in the plainest of rooms",
    "so predictable that you could leave after ten minutes",
    "quiet, patient and in the end deeply moving",
    "the jokes fall flat and the songs are worse",
    "it is hard to imagine a better cast for this story",
    "a lazy sequel that insults its audience",
    "sharp writing makes even the smallest scene a pleasure",
    "neither scary nor funny, just loud and tedious",
    "an honest portrait of friendship, told with great charm",
    "the acting is wooden and the ending makes no sense",
    "you will leave the cinema smiling",
)
DEMO_SENTENCES = SENTENCES[:3]
QUESTION = "Anna: ring. Boris: key. Clara: lamp. David: map. Clara:"
"""What the lookup model is asked: whoever has what, in its small language."""


def picture_path(name: str) -> Path:
    """Return the path of a picture."""
    return Path(__file__).parents[1] / "apps" / "demo" / "pictures" / f"{name}.jpg"
