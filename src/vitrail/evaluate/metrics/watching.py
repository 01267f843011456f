"""Run `score` on images mixed pixel by pixel from two sources, and keep what becomes of the label."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, check_axes, check_no_nan, check_same, maps_of, to_tensor
from vitrail.evaluate.metrics.fills import Images
from vitrail.evaluate.metrics.ranks import Maps, Masks

Score = Callable[[Tensor], Tensor]
Hits = Bool[np.ndarray, "l b"]
Probability = Float[np.ndarray, "l b"]
Labels = Int[Tensor, " b"]
AT_ONCE = 64


def read_inputs(images: Numbers, maps: Numbers, labels: Numbers) -> tuple[Images, Maps, Labels]:
    """Images, maps and labels on the images' device, refused where they do not fit each other."""
    pictures, classes = to_tensor(images), to_tensor(labels)
    check_axes(pictures.shape, "images", "b c h w")
    check_axes(classes.shape, "labels", "b")
    if not pictures.is_floating_point() or pictures.amin() < -1e-4 or pictures.amax() > 1 + 1e-4:
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
    if batch is not None and batch < 1:
        raise InputError(f"batch is a number of images, at least 1, not {batch}.")
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
    """Whether each label is the prediction, and its log-probability."""
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
