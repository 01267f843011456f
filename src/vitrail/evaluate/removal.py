"""Remove parts of pictures and texts in the order of their scores, and watch the probability of a class.

The page, the report and the bench take their curves from here. All of them remove in the order of `Attribution.scores`,
not of `Attribution.shown`: what a picture leaves out so that the rest is easier to see belongs to what the method says.
The papers remove by the scores, files hold them, and a test written in Python by them gives the same curve.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.capture.recording.forward import predict
from vitrail.evaluate import metrics
from vitrail.evaluate.metrics.arrays import Numbers
from vitrail.evaluate.metrics.fills import Fill, filled
from vitrail.evaluate.metrics.perturbation import read_logits
from vitrail.evaluate.metrics.texts import TextCurve, TextScore, blank_id, kept_ids
from vitrail.models.loading import Loaded

if TYPE_CHECKING:
    from PIL.Image import Image

Score = Callable[[Tensor], Tensor]
Logits = Float[Tensor, "_ c"]


def seen_pixels(loaded: Loaded, picture: "Image") -> Float[Tensor, "1 3 h w"]:
    """Return a picture of the model's own size in 0..1, on its device and in its dtype."""
    weight = next(loaded.model.parameters())
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].to(weight.device).to(weight.dtype) / 255


@dataclass(frozen=True, eq=False)
class PictureCurves:
    """The prediction at each level.

    Args:
        probability: of each map's class.
        predicted: the most probable class.
    """

    probability: Float[np.ndarray, "n l"]
    predicted: Int[np.ndarray, "n l"]


def picture_curves(  # noqa: PLR0913  (one option for each convention the papers differ in)
    score: Score,
    images: Float[Tensor, "_ 3 h w"],
    maps: Float[Tensor, "n y x"],
    labels: Sequence[int],
    *,
    levels: Sequence[float],
    order: str = "positive",
    fill: str | Fill = "black",
    units: str = "pixels",
    batch: int = 64,
    ends: tuple[Logits, Logits | None] | None = None,
) -> PictureCurves:
    """Remove the fractions `levels` of pictures in 0..1, as `metrics.perturbation_curve` does.

    Args:
        images: one for each map, or one for all.
        batch: pictures that run together, at least one for each map.
        ends: the logits of the pictures as they are and, if level 1 is among the levels, of those without anything,
            where they are known already: they are the same for all maps.
    """
    predicted: list[Tensor] = []

    def noted(perturbed: Tensor) -> Tensor:
        logits = score(perturbed)
        predicted.append(logits.argmax(dim=1))
        return logits

    inner = levels if ends is None else [level for level in levels if 0 < level < 1]
    classes = torch.tensor(labels)
    whole = images.expand(len(maps), -1, -1, -1)
    most = max(batch, len(maps))  # so that a level is never split
    found = metrics.perturbation_curve(
        noted, whole, maps, classes, order=order, levels=inner, fill=fill, units=units, batch=most
    )
    points, tops = [*found.probability], [*torch.cat(predicted).view(len(inner), -1).cpu().numpy()]
    for place, level, logits in ((0, 0, ends[0]), (len(points) + 1, 1, ends[1])) if ends else ():
        if level in levels and logits is not None:
            points.insert(place, _probability(logits, classes))
            tops.insert(place, logits.argmax(dim=1).expand(len(maps)).cpu().numpy())
    return PictureCurves(np.stack(points, axis=1), np.stack(tops, axis=1))


@torch.no_grad()
def ends_of(score: Score, images: Float[Tensor, "_ 3 h w"], fill: str | Fill) -> tuple[Logits, Logits]:
    """Return the logits of pictures as they are, and of those without anything."""
    clean, emptied = score(torch.cat([images, filled(images, fill)])).chunk(2)
    return clean, emptied


def _probability(logits: Logits, labels: Int[Tensor, " n"]) -> Float[np.ndarray, " n"]:
    """Return the probability of each label, of its own row of the logits or of the only one."""
    rows = logits.expand(len(labels), -1)
    _, likely = read_logits(rows, labels, (int(labels.min()), int(labels.max())))
    return likely.double().exp().cpu().numpy()


def text_logits(loaded: Loaded, ids: Int[Tensor, "n t"], mask: Int[Tensor, "n t"]) -> Logits:
    """Return the logits of token ids; of a language model those of the next token."""
    device = next(loaded.model.parameters()).device
    return predict(loaded.model, {"input_ids": ids.to(device), "attention_mask": mask.to(device)}).logits


def text_curves(  # noqa: PLR0913  (one option for each convention the papers differ in)
    loaded: Loaded,
    ids: Sequence[Numbers],
    scores: Sequence[Numbers],
    labels: Sequence[int],
    *,
    how: str = "cut",
    mode: str = "paper",
    special: Collection[int] | None = None,
    score: TextScore | None = None,
    batch: int = 64,
) -> TextCurve:
    """Remove the highest-scored tokens of texts, as `metrics.text_curve` does, but never its special tokens.

    Args:
        special: ids that are never removed; by default the tokenizer's.
        score: ids and mask -> logits; by default the model's.
        batch: texts of one length that run together.
    """
    return metrics.text_curve(
        score or partial(text_logits, loaded),
        ids,
        scores,
        torch.tensor(labels),
        special=kept_ids(loaded.tokenizer) if special is None else special,
        how=how,
        mode=mode,
        pad=blank_id(loaded.tokenizer),
        batch=batch,
    )
