"""Metrics of pictures as the bench runs them: counts against masks and boxes, points of perturbation curves."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail import metrics
from vitrail.bench.pictures import Pictures
from vitrail.bench.protocols import Protocol
from vitrail.bench.shown import Shown, Values
from vitrail.errors import InputError


def segmentation(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
    """Counts against the mask; any object is foreground."""
    return metrics.segmentation_counts(shown.finest, _masks(batch)).rows()


def pointing(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
    """Whether the highest point lies on the object."""
    return [{"hit": value} for value in metrics.pointing_game(shown.finest, _masks(batch)).tolist()]


def boxes(batch: Pictures, shown: Shown, protocol: Protocol) -> Values:
    """The share of energy inside the boxes, and the overlap with the box around the map."""
    height, width = batch.images.shape[2:]
    listed = [_boxes(batch, number) for number in range(len(batch.examples))]
    energy = metrics.box_energy(shown.finest, listed, (height, width)).tolist()
    overlap = metrics.box_iou(shown.finest, listed, (height, width)).tolist()
    return [{"energy": e, "iou": i} for e, i in zip(energy, overlap, strict=True)]


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


def _boxes(batch: Pictures, number: int) -> list[list[float]]:
    """The boxes in the pixels of what the model sees."""
    example = batch.examples[number]
    if not example.boxes or batch.view != "squash":
        raise InputError(f"{example.key}: there are no boxes, or the picture was cropped.")
    (wide, high), (height, width) = example.image.size, batch.images.shape[2:]
    across, down = width / wide, height / high
    return [[b.x0 * across, b.y0 * down, b.x1 * across, b.y1 * down] for b in example.boxes]


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
