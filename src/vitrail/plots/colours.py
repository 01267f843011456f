"""From scores to colours."""

from jaxtyping import Float
from torch import Tensor

WHITE = "#ffffff"
GREEN, RED = "#00703c", "#b8112a"
"""The largest impact for and against the target on text, as AttCAT's Fig. 5 colours it."""
SIGNED_MAP, UNSIGNED_MAP = "RdBu_r", "inferno"
DARK = 0.45
Values = Float[Tensor, " *shape"]


def symmetric(values: Values) -> Values:
    """S / max|S| (Cui et al., Sec. 4.2): zero stays zero, and so do maps of zeros."""
    largest = values.abs().max()
    return values / largest if largest > 0 else values


def stretched(values: Values) -> Values:
    """The values moved and scaled to fill the range from 0 to 1; zeros where all are the same."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else values * 0


def shade(score: float) -> str:
    """The colour of a token with a score from -1 to 1: white to dark green, or white to dark red."""
    end, amount = (GREEN if score > 0 else RED), min(abs(score), 1.0)
    return "#" + "".join(f"{round(255 + (part - 255) * amount):02x}" for part in _rgb(end))


def ink(background: str) -> str:
    """Black or white, whichever is read more easily on this colour."""
    red, green, blue = _rgb(background)
    return WHITE if (0.299 * red + 0.587 * green + 0.114 * blue) / 255 < DARK else "#1c1c1c"


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue
