"""How `consensus.py` reads, explains and measures: with the functions of the bench, the same work done once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from vitrail import metrics
from vitrail.errors import InputError, MethodError
from vitrail.evaluate.bench import on_pictures
from vitrail.evaluate.bench.measure import Shown
from vitrail.evaluate.bench.opened import Opened, RunSettings
from vitrail.evaluate.bench.pictures import Pictures, read_pictures
from vitrail.evaluate.bench.plan import Trial
from vitrail.evaluate.bench.protocols import find_protocol
from vitrail.evaluate.bench.worker import explained
from vitrail.evaluate.data.examples import Dataset
from vitrail.methods.pixel_maps import moved

Maps = Iterable[tuple[Sequence[str], Tensor]]
"""Maps, each with the names of the variants it stands for."""
Measured = dict[str, dict[str, list]]
"""By variant and by what was measured, a value of each picture."""
Clock = Callable[[str], AbstractContextManager]
CHEFER = find_protocol("chefer")
ORDERS = {order: on_pictures.curve(order) for order in ("positive", "negative")}


@dataclass(frozen=True, eq=False)
class Loaded:
    """Some pictures, and their masks if they have any."""

    pictures: Pictures
    masks: Tensor | None

    def __len__(self) -> int:
        return len(self.pictures.examples)

    @staticmethod
    def joined(parts: Sequence["Loaded"]) -> "Loaded":
        """All of them in one batch."""
        examples = [example for part in parts for example in part.pictures.examples]
        images = torch.cat([part.pictures.images for part in parts])
        masks = [part.masks for part in parts if part.masks is not None]
        pictures = replace(parts[0].pictures, examples=examples, images=images, emptied={})
        return Loaded(pictures, torch.cat(masks) if masks else None)

    @property
    def keys(self) -> list[str]:
        """The pictures' keys."""
        return list(self.pictures.keys)

    @cached_property
    def predicted(self) -> tuple[int, ...]:
        """The class the model predicts of each."""
        return tuple(self.pictures.logits.argmax(dim=1).tolist())

    @property
    def labels(self) -> list[int]:
        """The data set's class of each; where it has none, the predicted one."""
        pairs = zip(self.pictures.labels, self.predicted, strict=True)
        return [own if label is None else label for label, own in pairs]


def load_pictures(opened: Opened, settings: RunSettings, part: Dataset, *, masks: bool) -> Loaded:
    """The pictures that can be read, with their masks where these are wanted and have a foreground."""
    pictures, _ = read_pictures(opened, settings, list(part), CHEFER)
    if not masks:
        return Loaded(pictures, None)
    found: dict[int, Tensor] = {}
    for number in range(len(pictures.examples)):
        try:
            found[number] = pictures.mask(number)
        except InputError as error:
            print(error)
    return Loaded(pictures.take(list(found)), torch.stack(list(found.values())).to(pictures.images.device))


def shifted(batch: Pictures, down: int, right: int) -> Pictures:
    """The pictures moved by whole pixels."""
    return replace(batch, images=moved(batch.images, down, right), emptied={})


def explain(
    batch: Pictures, classes: tuple[int, ...], ingredients: Mapping[str, tuple[str, dict]]
) -> dict[str, Tensor]:
    """The map of every ingredient, of patches or as fine as it is."""
    trials = {name: Trial(*spec) for name, spec in ingredients.items()}
    found = explained(batch, list(trials.values()), classes, "recommended")
    maps = {}
    for name, trial in trials.items():
        shown = found[trial]
        if isinstance(shown, str):
            raise MethodError(shown)
        maps[name] = shown.finest.float()
    return maps


def localise(loaded: Loaded, maps: Maps, clock: Clock) -> Measured:
    """Counts against the masks at the mean of each map, and average precision."""
    found: Measured = {}
    assert loaded.masks is not None
    for names, made in maps:
        with clock("localisation"):
            counts = metrics.segmentation_counts(made, loaded.masks)
        values = {"confusion": counts.confusion[:, 0].tolist(), "precision": counts.average_precision.tolist()}
        found |= {name: values for name in names}
    return found


def perturb(batch: Pictures, classes: tuple[int, ...], maps: Maps, clock: Clock) -> Measured:
    """The area under each picture's curve, for both orders."""
    found: Measured = {}
    for names, made in maps:
        shown = Shown(made.flatten(1), classes, made)
        with clock("perturbation"):
            values = {order: areas(curve(batch, shown, CHEFER)) for order, curve in ORDERS.items()}
        found |= {name: values for name in names}
    return found


def areas(rows: Sequence[Mapping]) -> list[float]:
    """The area under each curve of hits, as the bench's column takes it."""
    hits = np.array([row["hits"] for row in rows], dtype=np.float64)
    return metrics.areas(hits.T, rule=CHEFER.area, levels=CHEFER.levels).tolist()
