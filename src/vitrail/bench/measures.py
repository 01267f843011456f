"""Metrics as the bench runs them: a batch and the maps of one method in, plain numbers for each example out.

What is stored is what every later table needs of an example, not the metric itself: counts, or a point of a curve for
every level. `columns.py` makes numbers of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail import metrics
from vitrail.bench.batches import Pictures, Texts
from vitrail.bench.protocols import Protocol
from vitrail.errors import InputError, OptionError, suggest
from vitrail.metrics.rationales import top

Values = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Shown:
    """What one method made of a batch.

    Args:
        scores: one per patch or token.
        maps: for pictures, the patches in their places.
        pixels: for methods that work on pixels.
        classes: the explained class of each example; empty for questions.
        other: the scores for another class, where a metric compares the two.
    """

    scores: Float[Tensor, "b n"]
    classes: tuple[int, ...]
    maps: Float[Tensor, "b y x"] | None = None
    pixels: Float[Tensor, "b h w"] | None = None
    other: Float[Tensor, "b n"] | None = None

    @property
    def finest(self) -> Float[Tensor, "b y x"]:
        """The map as fine as the method gives it."""
        found = self.maps if self.pixels is None else self.pixels
        assert found is not None
        return found

    @property
    def places(self) -> Float[Tensor, "b y x"]:
        """One value per patch."""
        assert self.maps is not None
        return self.maps

    def take(self, rows: Sequence[int]) -> "Shown":
        """Some of the examples."""

        def some(x: Tensor | None) -> Any:  # noqa: ANN401
            return None if x is None else x[list(rows)]

        classes = tuple(self.classes[i] for i in rows) if self.classes else ()
        return Shown(some(self.scores), classes, some(self.maps), some(self.pixels), some(self.other))


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


def text_curve(how: str, mode: str | None = None) -> Callable[[Texts, Shown, Protocol], Values]:
    """The clean probability and that of every level, tokens deleted, replaced or kept alone."""

    def measure(batch: Texts, shown: Shown, protocol: Protocol) -> Values:
        levels = mode or protocol.text_mode
        pairs = any(getattr(example, "second", None) is not None for example in batch.examples)
        found = metrics.text_curve(
            batch.score,
            batch.ids,
            _rows(batch, shown.scores),
            torch.tensor(shown.classes),
            special=() if pairs and levels == "attcat" else batch.special,
            how=how,
            mode=levels,
            pad=batch.pad,
            batch=batch.settings.forward_batch,
        )
        return [{"p": p, "p_k": list(k)} for p, k in zip(found.p.tolist(), found.p_k.tolist(), strict=True)]

    return measure


def kendall(batch: Texts, shown: Shown, protocol: Protocol) -> Values:
    """Tau between the scores for the explained class and for another one."""
    assert shown.other is not None
    pairs = zip(_rows(batch, shown.scores), _rows(batch, shown.other), strict=True)
    found = [metrics.kendall(a[None], b[None], mode=protocol.kendall)[0] for a, b in pairs]
    if np.isnan(found).any():
        raise InputError("all scores of this text are equal, so they rank nothing.")
    return [{"tau": float(tau)} for tau in found]


def token_f1(batch: Texts, shown: Shown, protocol: Protocol) -> Values:
    """For every k, how many of the k highest words are gold."""
    return [_token_f1(batch, shown.scores[i], protocol.ks, i) for i in range(len(batch.examples))]


def _token_f1(batch: Texts, scores: Tensor, ks: Sequence[int], number: int) -> dict[str, Any]:
    example, offsets = batch.examples[number], batch.encoding["offset_mapping"][number]
    gold = example.rationale_mask.numpy()  # pyright: ignore[reportAttributeAccessIssue]
    if not gold.any():
        raise InputError(f"{example.key}: the text has no rationale.")
    words = metrics.word_scores(scores.clamp(min=0), offsets, example.text)  # pyright: ignore[reportAttributeAccessIssue]
    chosen = [top(words[None], k)[0] for k in ks]
    return {
        "hits": [int((gold & some).sum()) for some in chosen],
        "chosen": [int(some.sum()) for some in chosen],
        "gold": int(gold.sum()),
    }


def precision_at_k(batch: Texts, shown: Shown, protocol: Protocol) -> Values:
    """How many tokens of the answer are among the k highest."""
    real = batch.encoding["attention_mask"].bool()
    spans = np.array([span for span in batch.spans if span is not None])
    found = metrics.precision_at_k(shown.scores.masked_fill(~real, -torch.inf), spans, k=protocol.k)
    return [{"count": int(n), "answer": int(last - first + 1)} for n, (first, last) in zip(found, spans, strict=True)]


@dataclass(frozen=True)
class Measure:
    """A line of the table.

    Args:
        kind: the data it measures on.
        gives: what the data set must know of an example.
        classes: whether it compares the maps of two classes.
    """

    name: str
    run: Callable[..., Values]
    kind: str
    gives: frozenset[str] = frozenset()
    classes: bool = False


MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("segmentation", segmentation, "image", frozenset({"mask"})),
        Measure("pointing", pointing, "image", frozenset({"mask"})),
        Measure("boxes", boxes, "image", frozenset({"boxes"})),
        Measure("positive", curve("positive"), "image"),
        Measure("negative", curve("negative"), "image"),
        Measure("insertion", steps(metrics.insertion), "image"),
        Measure("deletion", steps(metrics.deletion), "image"),
        Measure("text_deletion", text_curve("delete"), "text"),
        Measure("text_padding", text_curve("pad"), "text"),
        Measure("comprehensiveness", text_curve("delete", "eraser"), "text"),
        Measure("sufficiency", text_curve("keep", "eraser"), "text"),
        Measure("kendall", kendall, "text", classes=True),
        Measure("token_f1", token_f1, "text", frozenset({"rationale"})),
        Measure("precision_at_k", precision_at_k, "question", frozenset({"answers"})),
    )
}


def find_measure(name: str) -> Measure:
    """The metric of this name."""
    if name not in MEASURES:
        raise OptionError(f"there is no metric {name!r}. {suggest(name, MEASURES)}")
    return MEASURES[name]


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
    known = [own if label is None else label for own, label in zip(predicted.tolist(), batch.labels, strict=True)]
    return torch.tensor(known, device=predicted.device)


def _point(logits: Tensor, classes: Sequence[int]) -> Float[np.ndarray, " b"]:
    chosen = torch.tensor(classes, device=logits.device)[:, None]
    return logits.log_softmax(dim=1).gather(1, chosen)[:, 0].double().exp().cpu().numpy()


def _rows(batch: Texts, scores: Tensor) -> list[np.ndarray]:
    """The scores of the real tokens of each text."""
    real = batch.encoding["attention_mask"].bool().cpu()
    return [row[keep].numpy() for row, keep in zip(scores.cpu(), real, strict=True)]
