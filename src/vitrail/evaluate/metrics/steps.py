"""Insertion and deletion: the probability of the label while pixels appear, or disappear, in the order of the map.

Petsiuk et al., "RISE: Randomized Input Sampling for Explanation of Black-box Models", BMVC 2018, arXiv:1806.07421;
steps, blurred background and the missing first point as in the code of TIS (Englebert et al., ICCV Workshops 2023).
The published numbers are means of the curve: `area(curve.probability, rule="mean")`.
"""

import math

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers
from vitrail.evaluate.metrics.curves import Curve
from vitrail.evaluate.metrics.fills import Fill, filled
from vitrail.evaluate.metrics.maps import resize
from vitrail.evaluate.metrics.ranks import Maps, Masks, by_rank
from vitrail.evaluate.metrics.watching import Score, read_inputs, watch


def deletion(
    score: Score,
    images: Numbers,
    maps: Numbers,
    labels: Numbers,
    *,
    steps: int = 224,
    fill: str | Fill = "blur",
    batch: int | None = None,
) -> Curve:
    """The clean image loses its highest-scored pixels first; a good map's curve falls fast.

    Args:
        score: images in 0..1 -> logits.
        images: `[b, c, h, w]` in 0..1.
        maps: `[b, y, x]` of any size.
        labels: `[b]`, the class whose probability is watched.
        steps: each takes `ceil(h w / steps)` pixels; the point before the first is not part of the curve.
        fill: what the pixels turn into.
        batch: images that go through `score` at once.
    """
    pictures, given, classes = read_inputs(images, maps, labels)
    levels, masks = _plan(given, (pictures.shape[2], pictures.shape[3]), steps)
    background = filled(pictures, fill)
    return Curve(levels, *watch(score, pictures, background, masks, classes, levels=steps, batch=batch))


def insertion(
    score: Score,
    images: Numbers,
    maps: Numbers,
    labels: Numbers,
    *,
    steps: int = 224,
    fill: str | Fill = "blur",
    batch: int | None = None,
) -> Curve:
    """The fill gains the image's highest-scored pixels first; a good map's curve rises fast. See `deletion`."""
    pictures, given, classes = read_inputs(images, maps, labels)
    levels, masks = _plan(given, (pictures.shape[2], pictures.shape[3]), steps)
    background = filled(pictures, fill)
    return Curve(levels, *watch(score, background, pictures, masks, classes, levels=steps, batch=batch))


def _plan(given: Maps, size: tuple[int, int], steps: int) -> tuple[tuple[float, ...], Masks]:
    if steps < 1:
        raise InputError(f"steps must be at least 1, not {steps}.")
    total = size[0] * size[1]
    counts = [min(math.ceil(total / steps) * step, total) for step in range(1, steps + 1)]
    return tuple(count / total for count in counts), by_rank(resize(given, size), counts)
