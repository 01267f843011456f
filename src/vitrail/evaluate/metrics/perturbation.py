"""Remove or restore pixels in the order of a map, and watch the prediction.

Positive and negative perturbation: Chefer, Gur and Wolf, arXiv:2012.09838; patches instead of pixels: Cui, Fan and
Chen, arXiv:2605.11392. Every level begins with the clean image; masks are built on the images' device, and several
levels go through the model together.

Insertion and deletion: Petsiuk et al., "RISE: Randomized Input Sampling for Explanation of Black-box Models", BMVC
2018, arXiv:1806.07421; without `baseline` and `step`, steps, blurred background and the missing first point are those
of the code of TIS (Englebert et al., ICCV Workshops 2023), whose numbers are `area(curve.probability, rule="mean")`.

ROAD: Rong et al., "A Consistent and Efficient Evaluation Strategy for Attribution Methods", ICML 2022,
arXiv:2202.00449. A removed pixel becomes the weighted mean of its neighbours (Eq. 6): weight 1/6 for the four direct
ones and 1/12 for the four diagonal ones. Removed neighbours are unknown too, so all removed pixels of an image solve
one linear system.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import (
    MOST_STEPS,
    Numbers,
    check_axes,
    check_no_nan,
    check_number,
    check_same,
    flags_of,
    look_up,
    maps_of,
    resize,
    to_array,
    to_tensor,
)
from vitrail.evaluate.metrics.fills import Fill, Images, filled

Maps = Float[Tensor, "b y x"]
Masks = Callable[[slice, slice], Bool[Tensor, "l r h w"]]  # some images, some levels -> True where pixels are removed
ORDERS = {"positive": 1, "negative": -1}  # the highest of the map goes first, or of the negated map


def pixel_masks(maps: Maps, size: tuple[int, int], levels: Sequence[float]) -> Masks:
    """Remove `int(h w level)` pixels of the resized map, highest first."""
    counts = [int(size[0] * size[1] * level) for level in levels]
    # The rim of a resized map has many equal scores. On the processor `topk` decides between them, as it did for the
    # published numbers; elsewhere reading order does, and one sort serves all levels.
    return (_by_selection if maps.device.type == "cpu" else by_rank)(resize(maps, size), counts)


def patch_masks(maps: Maps, size: tuple[int, int], levels: Sequence[float]) -> Masks:
    """Remove `int(y x level)` patches, the units of the map, highest first."""
    rows, columns = maps.shape[1:]
    if size[0] % rows or size[1] % columns:
        raise InputError(f"images of {size[0]} x {size[1]} do not divide into {rows} x {columns} patches.")
    small = by_rank(maps, [int(rows * columns * level) for level in levels])
    height, width = size[0] // rows, size[1] // columns
    return lambda images, some: small(images, some).repeat_interleave(height, -2).repeat_interleave(width, -1)


UNITS = {"pixels": pixel_masks, "patches": patch_masks}


def by_rank(maps: Maps, counts: Sequence[int]) -> Masks:
    """The `count` highest scores of each map at each level, equal ones in reading order; one sort for all levels."""
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)
    places = torch.arange(order.shape[1], device=order.device, dtype=torch.int32).expand_as(order)
    ranks = torch.empty_like(places.contiguous()).scatter_(1, order, places).view(maps.shape)
    limits = torch.tensor(counts, device=maps.device).view(-1, 1, 1, 1)
    return lambda images, some: ranks[images] < limits[some]


def _by_selection(maps: Maps, counts: Sequence[int]) -> Masks:
    """The `count` highest scores of each map at each level, selected for every level anew."""
    flat = maps.flatten(1)

    def highest(images: slice, count: int) -> Bool[Tensor, "r h w"]:
        scores = flat[images]
        chosen = scores.topk(count, dim=1, sorted=False).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, value=True).view(-1, *maps.shape[1:])

    return lambda images, some: torch.stack([highest(images, count) for count in counts[some]])


Score = Callable[[Tensor], Tensor]
Hits = Bool[np.ndarray, "l b"]
Probability = Float[np.ndarray, "l b"]
Labels = Int[Tensor, " b"]
AT_ONCE = 64
Baseline = Numbers | int | float | str
BASELINES = {"zero": 0.0}
PROBABILITIES = 1e-4
"""How far the sum of a row of probabilities may be from 1, also in half precision."""


def read_inputs(images: Numbers, maps: Numbers, labels: Numbers, *, unit: bool = True) -> tuple[Images, Maps, Labels]:
    """Images, maps and labels on the images' device, refused where they do not fit each other.

    Args:
        unit: whether the images must lie in 0..1, since a fill is chosen for that range.
    """
    pictures, classes = to_tensor(images), to_tensor(labels)
    check_axes(pictures.shape, "images", "b c h w")
    check_axes(classes.shape, "labels", "b")
    if not pictures.is_floating_point() or (unit and (pictures.amin() < -1e-4 or pictures.amax() > 1 + 1e-4)):
        raise InputError(
            f"images must be floating point in 0..1, not yet normalised (score does that), but these are "
            f"{pictures.dtype} from {pictures.amin().item():g} to {pictures.amax().item():g}."
        )
    given = maps_of(maps).to(pictures.device)
    check_same([len(pictures)] * 2, [len(given), len(classes)], "the number of images, and those of maps and labels")
    return pictures, given, classes.long().to(pictures.device)


@torch.no_grad()
def watch(
    score: Score, images: Images, others: Images, masks: Masks, labels: Labels, *, levels: int, batch: int | None
) -> tuple[Hits, Probability]:
    """Hits and probability of the labels at each level, with the masked pixels taken from `others`."""
    if batch is not None:
        check_number(batch, "batch", "images")
    most = batch or max(AT_ONCE, len(images))
    hits = torch.zeros(levels, len(images), dtype=torch.bool, device=images.device)
    wide = torch.float32 if images.device.type == "mps" else torch.float64
    log_probs = torch.zeros(levels, len(images), dtype=wide, device=images.device)
    bounds = int(labels.min()), int(labels.max())  # read once: in the loop it would wait for the batch in flight
    for rows, some in _portions(len(images), levels, most):
        taken = masks(rows, some)
        mixed = torch.where(taken[:, :, None], others[rows], images[rows])
        found, likely = read_logits(score(mixed.flatten(0, 1)), labels[rows].repeat(len(taken)), bounds)
        hits[some, rows] = found.view(len(taken), -1).to(hits)
        log_probs[some, rows] = likely.view(len(taken), -1).to(log_probs)
    check_no_nan(log_probs.T, "the logits score returned")
    return hits.cpu().numpy(), log_probs.cpu().double().exp().numpy()


def _portions(images: int, levels: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Pairs (images, levels) of at most `most` pictures each."""
    for start in range(0, images, most):
        rows = slice(start, min(start + most, images))
        step = max(1, most // (rows.stop - start))
        for first in range(0, levels, step):
            yield rows, slice(first, first + step)


def read_logits(
    logits: object, labels: Int[Tensor, " n"], bounds: tuple[int, int]
) -> tuple[Bool[Tensor, " n"], Float[Tensor, " n"]]:
    """Return a mask of the labels that are the prediction, and the labels' log-probabilities."""
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(labels):
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"score must return logits [{len(labels)}, classes] for {len(labels)} inputs, but it gave {got}."
        )
    if bounds[0] < 0 or bounds[1] >= logits.shape[1]:
        raise InputError(f"labels run from {bounds[0]} to {bounds[1]}, but there are {logits.shape[1]} classes.")
    labels = labels.to(logits.device)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits.argmax(dim=1) == labels, logits.log_softmax(dim=1).gather(1, labels[:, None])[:, 0]


TENTHS = tuple(k / 10 for k in range(1, 10))


@dataclass(frozen=True, eq=False)
class Curve:
    """The hits and the probability of the label at every level for every image; a hit: it is still predicted."""

    levels: tuple[float, ...]
    hits: Hits
    probability: Probability

    @property
    def curve(self) -> Float[np.ndarray, "b l"]:
        """The probability with the images first."""
        return self.probability.T

    @property
    def auc(self) -> Float[np.ndarray, " b"]:
        """The area under each image's curve by trapezoids, its points at equal distances from 0 to 1."""
        return scipy.integrate.trapezoid(self.probability, dx=1 / max(1, len(self.levels) - 1), axis=0)


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


def deletion(  # noqa: PLR0913  (one option for each convention the papers differ in)
    score: Score,
    images: Numbers,
    maps: Numbers,
    labels: Numbers,
    *,
    steps: int = 224,
    fill: str | Fill = "blur",
    baseline: Baseline | None = None,
    step: int | None = None,
    batch: int | None = None,
) -> Curve:
    """The clean image loses its highest-scored pixels first; a good map's curve falls fast.

    Without `baseline` and `step` the curve follows TIS: `steps` points after the first step, pixels turn into `fill`.
    With one of them it follows RISE: both ends belong to the curve, and its area is `.auc`.

    Args:
        score: images -> logits `[n, classes]`, or probabilities, which are taken as they are.
        images: `[b, c, h, w]`, in 0..1 where a `fill` is used.
        maps: `[b, y, x]` of any size.
        labels: `[b]`, the class whose probability is watched.
        steps: each takes `ceil(h w / steps)` pixels; the point before the first is not part of the curve.
        fill: what the pixels turn into.
        baseline: what the pixels turn into, in place of `fill`: `"zero"`, a number, `[c, h, w]` or `[b, c, h, w]`.
        step: pixels of a step, in place of `steps`; by default one 224th of them.
        batch: images that go through `score` at once.
    """
    return _stepwise(
        score, images, maps, labels, steps=steps, fill=fill, baseline=baseline, step=step, batch=batch, inserted=False
    )


def insertion(  # noqa: PLR0913  (see deletion)
    score: Score,
    images: Numbers,
    maps: Numbers,
    labels: Numbers,
    *,
    steps: int = 224,
    fill: str | Fill = "blur",
    baseline: Baseline | None = None,
    step: int | None = None,
    batch: int | None = None,
) -> Curve:
    """The fill gains the image's highest-scored pixels first; a good map's curve rises fast. See `deletion`."""
    return _stepwise(
        score, images, maps, labels, steps=steps, fill=fill, baseline=baseline, step=step, batch=batch, inserted=True
    )


def _stepwise(  # noqa: PLR0913  (see deletion)
    score: Score,
    images: Numbers,
    maps: Numbers,
    labels: Numbers,
    *,
    steps: int,
    fill: str | Fill,
    baseline: Baseline | None,
    step: int | None,
    batch: int | None,
    inserted: bool,
) -> Curve:
    """The curve from the clean image to the fill or the baseline, or back, by the steps of TIS or of RISE."""
    rise = baseline is not None or step is not None
    pictures, given, classes = read_inputs(images, maps, labels, unit=not rise)
    height, width = pictures.shape[2:]
    total = height * width
    if rise:
        size = math.ceil(total / 224) if step is None else step
        check_number(size, "step", "pixels")
        counts = [*range(0, total, size), total]
        others = _baseline_of(0.0 if baseline is None else baseline, pictures)
    else:
        check_number(steps, "steps", "levels", most=MOST_STEPS)
        counts = [min(math.ceil(total / steps) * number, total) for number in range(1, steps + 1)]
        others = filled(pictures, fill)
    first, second = (others, pictures) if inserted else (pictures, others)
    masks = by_rank(resize(given, (height, width)), counts)
    found = watch(logits_of(score), first, second, masks, classes, levels=len(counts), batch=batch)
    return Curve(tuple(count / total for count in counts), *found)


def _baseline_of(baseline: Baseline, pictures: Images) -> Images:
    baseline = look_up(BASELINES, baseline, "baseline") if isinstance(baseline, str) else baseline
    values = torch.as_tensor(baseline) if isinstance(baseline, int | float) else to_tensor(baseline)
    try:
        return values.to(pictures).expand_as(pictures)
    except RuntimeError as error:
        raise InputError(
            f"a baseline is a number, an image [c, h, w] or one for each image, but its shape is {list(values.shape)} "
            f"for images {list(pictures.shape)}."
        ) from error


def logits_of(score: Score) -> Score:
    """The function with logits as its result: rows that are probabilities already become their logarithms."""

    def scored(images: Tensor) -> Tensor:
        found = score(images)
        if not isinstance(found, Tensor) or found.ndim != 2 or found.shape[1] < 2 or bool((found < 0).any()):
            return found
        sums = found.double().sum(dim=1)
        return found.log() if bool((sums - 1).abs().max() < PROBABILITIES) else found

    return scored


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
