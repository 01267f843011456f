"""Metrics of pictures as the bench runs them: counts against masks and boxes, points of perturbation curves."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate import metrics
from vitrail.evaluate.bench.pictures import Pictures
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.bench.shown import Shown, Values

T = TypeVar("T")


def segmentation(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
    """Counts against the mask; any object is foreground."""
    return metrics.segmentation_counts(shown.finest, _masks(batch)).rows()


def pointing(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
    """Whether the highest point lies on the object."""
    return [{"hit": value} for value in metrics.pointing_game(shown.finest, _masks(batch)).tolist()]


def boxes(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
    """The share of energy inside the boxes, the overlap with the box around the map, and the pointing game on boxes."""
    height, width = batch.images.shape[2:]
    listed = [known(found) for found in batch.boxes]
    inside = metrics.box_masks(listed, (height, width)).astype(np.int64)
    found = {
        "energy": metrics.box_energy(shown.finest, listed, (height, width)),
        "iou": metrics.box_iou(shown.finest, listed, (height, width)),
        "hit": metrics.pointing_game(shown.finest, inside),
    }
    return [{name: float(numbers[i]) for name, numbers in found.items()} for i in range(len(listed))]


def voc(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
    """At every threshold and for every class that is there or shown: pixels in both, in the maps, in the mask."""
    values: Values = []
    for found, maps in zip(batch.objects, shown.others, strict=True):
        objects = known(found)
        merged = torch.cat([maps[c].finest for c in objects.classes.values()])
        counts = metrics.voc_counts(merged, list(objects.classes), objects.mask)
        there = np.flatnonzero(counts.any(axis=(0, 2)))
        values.append({"classes": there.tolist(), "counts": counts[:, there].tolist()})
    return values


def known(found: T | str) -> T:
    """What was found in a picture; refuses a reason why nothing was."""
    if isinstance(found, str):
        raise InputError(found)
    return found


def curve(order: str) -> Callable[[Pictures, Shown, Protocol], Values]:
    """Hits and probability at every level, pixels or patches removed in this order."""

    def measure(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
        inner = [level for level in protocol.levels if 0 < level < 1]
        predicted: list[Tensor] = []

        def score(images: Tensor) -> Tensor:
            logits = batch.score(images)
            predicted.append(logits.argmax(dim=1))
            return logits

        found = metrics.perturbation_curve(
            score,
            batch.images,
            shown.places if protocol.units == "patches" else shown.finest,
            torch.tensor(shown.classes),
            order=order,
            levels=inner,
            fill=batch.fill(protocol.fill),
            units=protocol.units,
            batch=max(batch.settings.forward_batch, len(batch.images)),  # so that a level is never split
        )
        # The first and the last point are the same for all maps: they are computed once for all methods.
        ends = [batch.logits, *([batch.without_everything(protocol.fill)] if protocol.levels[-1] == 1 else [])]
        points = [_point(logits, shown.classes) for logits in ends]
        tops = [logits.argmax(dim=1) for logits in ends]
        classes = [tops[0], *torch.cat(predicted).view(len(inner), -1), *tops[1:]]
        hits = torch.stack([seen == _judged(batch, protocol) for seen in classes], dim=1)
        probability = np.stack([points[0], *found.probability, *points[1:]], axis=1)
        pairs = zip(hits.tolist(), probability.tolist(), strict=True)
        return [{"hits": list(map(int, hit)), "probability": likely} for hit, likely in pairs]

    return measure


def steps(run: Callable[..., metrics.Curve]) -> Callable[[Pictures, Shown, Protocol], Values]:
    """Insertion or deletion, over a blurred picture; the mean of the curve."""

    def measure(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
        most = max(batch.settings.forward_batch, len(batch.images))
        found = run(batch.score, batch.images, shown.finest, torch.tensor(shown.classes), batch=most)
        return [{"mean": value} for value in found.probability.mean(axis=0).tolist()]

    return measure


def _masks(batch: Pictures) -> Tensor:
    return torch.stack([batch.mask(number) for number in range(len(batch.examples))])


def _judged(batch: Pictures, protocol: Protocol) -> Tensor:
    """The class that counts as a hit."""
    predicted = batch.logits.argmax(dim=1)
    if protocol.judged == "predicted":
        return predicted
    classes = batch.logits.shape[1]
    for key, label in zip(batch.keys, batch.labels, strict=True):
        if label is not None and not 0 <= label < classes:
            raise InputError(f"{key}: the label {label} is none of the model's {classes} classes.")
    known = [own if label is None else label for own, label in zip(predicted.tolist(), batch.labels, strict=True)]
    return torch.tensor(known, device=predicted.device)


def _point(logits: Tensor, classes: Sequence[int]) -> Float[np.ndarray, " b"]:
    chosen = torch.tensor(classes, device=logits.device)[:, None]
    return logits.log_softmax(dim=1).gather(1, chosen)[:, 0].double().exp().cpu().numpy()
