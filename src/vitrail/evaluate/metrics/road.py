"""ROAD: remove pixels so that the model cannot see where something was removed, and watch the prediction.

Rong et al., "A Consistent and Efficient Evaluation Strategy for Attribution Methods", ICML 2022, arXiv:2202.00449.
A removed pixel becomes the weighted mean of its neighbours (Eq. 6): weight 1/6 for the four direct ones and 1/12 for
the four diagonal ones. Removed neighbours are unknown too, so all removed pixels of an image solve one linear system.
"""

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import (
    Numbers,
    check_axes,
    check_same,
    flags_of,
    look_up,
    resize,
    to_array,
    to_tensor,
)
from vitrail.evaluate.metrics.perturbation import (
    ORDERS,
    TENTHS,
    Curve,
    Score,
    by_rank,
    logits_of,
    read_inputs,
    read_logits,
)

NEIGHBOURS = tuple(
    (down, across, 1 / 6 if 0 in (down, across) else 1 / 12)
    for down in (-1, 0, 1)
    for across in (-1, 0, 1)
    if (down, across) != (0, 0)
)
"""Offset and weight of each neighbour."""
NOISE = 0.01


def road_impute(images: Numbers, removed: Numbers, noise: Numbers | None = None) -> Float[Tensor, "*b c h w"]:
    """The images with their removed pixels imputed from the others.

    Args:
        images: `[b, c, h, w]`, or one image `[c, h, w]`.
        removed: `[b, h, w]` or `[h, w]`, True where a pixel is removed.
        noise: is added to the imputed pixels, so that they do not give themselves away by being smooth: `[b, c, h, w]`,
            or for a single image `[c, n]` with one entry for each removed pixel in reading order.
    """
    pictures, flags = to_tensor(images), to_array(removed)
    alone = pictures.ndim == 3
    pictures = pictures[None] if alone else pictures
    check_axes(pictures.shape, "images", "b c h w")
    flags = flags_of(flags[None] if flags.ndim == 2 else flags, "removed", "b h w")
    check_same((len(pictures), *pictures.shape[2:]), flags.shape, "the shapes [b, h, w] of images and of removed")
    values = pictures.detach().cpu().double().numpy().copy()
    for image, holes in zip(values, flags, strict=True):
        image[:, holes] = _solved(image, holes)
    if noise is not None:
        values += _spread(to_array(noise).astype(np.float64), flags, values.shape)
    found = torch.from_numpy(values).to(pictures.device, pictures.dtype if pictures.is_floating_point() else None)
    return found[0] if alone else found


def _solved(image: Float[np.ndarray, "c h w"], holes: Bool[np.ndarray, "h w"]) -> Float[np.ndarray, "c n"]:
    """Eq. 6 for all removed pixels: (sum of w) x_p = sum of w x_neighbour, over the neighbours inside the image."""
    if not holes.any():
        return image[:, holes]
    if holes.all():
        raise InputError("every pixel of an image is removed, so there is none to impute from: remove fewer.")
    numbers = np.cumsum(holes).reshape(holes.shape) - 1
    places, total = np.argwhere(holes), np.zeros(int(holes.sum()))
    known = np.zeros((len(places), len(image)))
    entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for down, across, weight in NEIGHBOURS:
        beside = places + np.array([down, across])
        inside = ((beside >= 0) & (beside < holes.shape)).all(axis=1)
        rows, (y, x) = np.flatnonzero(inside), beside[inside].T
        total[rows] += weight
        unknown = holes[y, x]
        entries.append((rows[unknown], numbers[y[unknown], x[unknown]], np.full(int(unknown.sum()), -weight)))
        known[rows[~unknown]] += weight * image[:, y[~unknown], x[~unknown]].T
    entries.append((np.arange(len(places)), np.arange(len(places)), total))
    rows, columns, weights = (np.concatenate(part) for part in zip(*entries, strict=True))
    system = scipy.sparse.coo_array((weights, (rows, columns)), shape=(len(places),) * 2).tocsc()
    return scipy.sparse.linalg.splu(system).solve(known).T


def _spread(noise: np.ndarray, holes: Bool[np.ndarray, "b h w"], shape: tuple[int, ...]) -> np.ndarray:
    """Noise at the removed pixels and zero elsewhere."""
    if noise.shape == shape:
        return np.where(holes[:, None], noise, 0.0)
    wanted = (shape[1], int(holes[0].sum()))
    if len(holes) != 1 or noise.shape[-2:] != wanted or noise.size != np.prod(wanted):
        raise InputError(f"noise is {list(shape)} like the images, or {list(wanted)} for one, not {list(noise.shape)}.")
    spread = np.zeros(shape)
    spread[0][:, holes[0]] = noise.reshape(wanted)
    return spread


@torch.no_grad()
def road(
    score: Score,
    images: Numbers,
    maps: Numbers,
    labels: Numbers,
    *,
    order: str = "positive",
    levels: Numbers = TENTHS,
    noise: int | float = NOISE,
    seed: int = 0,
) -> Curve:
    """Impute the fractions `levels` of every image in the order of its map, and watch the label.

    Args:
        score: images -> logits `[n, classes]`, or probabilities.
        images: `[b, c, h, w]`, in any range.
        maps: `[b, y, x]` of any size.
        labels: `[b]`, the class that should be predicted.
        order: `"positive"`, most relevant first (MoRF), or `"negative"`, least relevant first (LeRF).
        levels: fractions below 1; `int(h w level)` pixels are removed.
        noise: the standard deviation of the noise on imputed pixels, 0 for none.
        seed: of the noise.
    """
    sign = look_up(ORDERS, order, "order")
    pictures, given, classes = read_inputs(images, maps, labels, unit=False)
    size = (pictures.shape[2], pictures.shape[3])
    fractions = tuple(float(level) for level in to_array(levels).ravel())
    if not fractions or not all(0 <= level < 1 for level in fractions):
        raise InputError(f"levels of ROAD are fractions from 0 to below 1, but they are {list(fractions)}.")
    masks = by_rank(sign * resize(given, size), [int(size[0] * size[1] * level) for level in fractions])
    generator, bounds = torch.Generator().manual_seed(seed), (int(classes.min()), int(classes.max()))
    hits, probability = [], []
    for number in range(len(fractions)):
        holes = masks(slice(None), slice(number, number + 1))[0]
        grain = torch.randn(pictures.shape, generator=generator) * noise if noise else None
        found, likely = read_logits(logits_of(score)(road_impute(pictures, holes, grain)), classes, bounds)
        hits.append(found.cpu().numpy())
        probability.append(likely.double().exp().cpu().numpy())
    return Curve(fractions, np.stack(hits), np.stack(probability))
