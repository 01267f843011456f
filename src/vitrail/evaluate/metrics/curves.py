"""What becomes of the prediction when pixels or patches are removed in the order of a map.

Positive and negative perturbation: Chefer, Gur and Wolf, arXiv:2012.09838; patches instead of pixels: Cui, Fan and
Chen, arXiv:2605.11392. Every level begins with the clean image; masks are built on the images' device, and several
levels go through the model together.
"""

from dataclasses import dataclass

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, look_up, to_array
from vitrail.evaluate.metrics.fills import Fill, filled
from vitrail.evaluate.metrics.ranks import ORDERS, UNITS
from vitrail.evaluate.metrics.watching import Hits, Probability, Score, read_inputs, watch

TENTHS = tuple(k / 10 for k in range(1, 10))


@dataclass(frozen=True, eq=False)
class Curve:
    """Whether the label is still predicted, and with which probability, at every level for every image."""

    levels: tuple[float, ...]
    hits: Hits
    probability: Probability


def perturbation_curve(  # noqa: PLR0913  (one option for each convention the papers differ in)
    score: Score,
    images: Numbers,
    maps: Numbers,
    labels: Numbers,
    *,
    order: str = "positive",
    levels: Numbers = TENTHS,
    fill: str | Fill = "black",
    units: str = "pixels",
    batch: int | None = None,
) -> Curve:
    """Remove the fractions `levels` of every image in the order of its map, and look at the label again.

    Args:
        score: images in 0..1 -> logits `[n, classes]`; it normalises, moves and casts as its model needs.
        images: `[b, c, h, w]` in 0..1, not normalised.
        maps: `[b, y, x]` of any size.
        labels: `[b]`, the class that should be predicted.
        order: `"positive"`, highest first, a good map's curve falls fast; `"negative"`, lowest first, it falls slowly.
        levels: fractions of 0..1; `int(n * level)` of the n pixels or patches are removed.
        fill: `black`, `grey`, `mean`, `blur`, `noise`, or a function of the images, such as `fills.noise(seed=3)`.
        units: `"pixels"` of the resized map, or the `"patches"` the map has a value for.
        batch: images that go through `score` at once; by default 64, or all images of a level if they are more.
    """
    sign, build = look_up(ORDERS, order, "order"), look_up(UNITS, units, "unit")
    pictures, given, classes = read_inputs(images, maps, labels)
    fractions = tuple(float(level) for level in to_array(levels).ravel())
    if not fractions or not all(0 <= level <= 1 for level in fractions):
        raise InputError(f"levels are fractions from 0 to 1, but they are {list(fractions)}.")
    masks, background = build(sign * given, (pictures.shape[2], pictures.shape[3]), fractions), filled(pictures, fill)
    return Curve(fractions, *watch(score, pictures, background, masks, classes, levels=len(fractions), batch=batch))
