"""Pictures as a model takes them, in 0..1 on its device, so that they can be perturbed there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate import data
from vitrail.evaluate.bench.objects import Boxes, Objects, find_boxes, find_objects
from vitrail.evaluate.bench.opened import Opened
from vitrail.evaluate.bench.settings import Broken, Settings
from vitrail.evaluate.bench.voc_classes import voc_classes
from vitrail.evaluate.data.examples import ImageExample
from vitrail.evaluate.metrics import fills


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures of one size, in 0..1.

    Args:
        view: `squash` or `crop`; masks fit only the first.
    """

    opened: Opened
    settings: Settings
    examples: Sequence[ImageExample]
    images: Tensor
    view: str = "squash"
    emptied: dict[str, Tensor] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """The examples' keys."""
        return tuple(example.key for example in self.examples)

    @property
    def labels(self) -> list[int | None]:
        """The data set's class of each."""
        return [example.label for example in self.examples]

    @property
    def inputs(self) -> Tensor:
        """What is explained."""
        return self.opened.normalise(self.images)

    @torch.no_grad()
    def score(self, images: Tensor) -> Tensor:
        """The logits of pictures in 0..1."""
        with self.settings.precision():
            return self.opened.logits(images)

    @cached_property
    def logits(self) -> Tensor:
        """What the model says of the clean pictures."""
        return self.score(self.images).float()

    def fill(self, name: str) -> str | fills.Fill:
        """What pixels are replaced by."""
        return fills.noise(seed=self.settings.seed) if name == "noise" else name

    def without_everything(self, fill: str) -> Tensor:
        """The logits when all pixels are removed, the same for every map."""
        if fill not in self.emptied:
            self.emptied[fill] = self.score(fills.filled(self.images, self.fill(fill))).float()
        return self.emptied[fill]

    def mask(self, number: int) -> Tensor:
        """The mask of an example at the size the model sees: 1 any object, 0 background, -1 ignored."""
        example = self.examples[number]
        if self.view != "squash":
            raise InputError(f"{example.key}: masks and boxes fit pictures that are squashed, not cropped or stitched.")
        mask = example.mask
        assert mask is not None
        height, width = self.images.shape[2:]
        mask = data.resize_mask(mask.clamp(max=1), (height, width))
        if not bool((mask == 1).any()):
            raise InputError(f"{example.key}: the mask has no foreground.")
        return mask

    @cached_property
    def objects(self) -> list[Objects | str]:
        """What can be seen in each picture, or why that cannot be said; the same for every method."""
        loaded, logits = self.opened.loaded, self.logits.cpu()
        known = voc_classes(loaded.class_names, loaded.classes)
        return [self._tried(find_objects, number, logits[number], known) for number in range(len(self.examples))]

    @cached_property
    def boxes(self) -> list[Boxes | str]:
        """The boxes of each picture, or why it has none."""
        return [self._tried(find_boxes, number) for number in range(len(self.examples))]

    def _tried(self, find: Callable[..., Any], number: int, *more: Any) -> Any:  # noqa: ANN401
        height, width = self.images.shape[2:]
        if self.view != "squash":
            return "masks and boxes fit pictures that are squashed, not cropped or stitched."
        try:
            return find(self.examples[number], (height, width), *more)
        except InputError as error:
            return str(error)

    def take(self, rows: Sequence[int]) -> "Pictures":
        """Some of the pictures."""
        return Pictures(
            self.opened, self.settings, [self.examples[i] for i in rows], self.images[list(rows)], self.view
        )


def read_pictures(opened: Opened, settings: Settings, examples: Sequence[Any], view: str) -> tuple[Pictures, Broken]:
    """The pictures that can be opened, and why the others cannot."""
    good, pixels, broken = [], [], {}
    for example in examples:
        try:
            picture = opened.loaded.image(example.image, squash=view == "squash").picture
        except InputError as error:
            broken[example.key] = str(error)
            continue
        good.append(example)
        pixels.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
    size = (0, 3, *(opened.loaded.image_size or (1, 1)))
    stacked = torch.stack(pixels) if pixels else torch.zeros(size)
    weight = next(opened.loaded.model.parameters())
    images = stacked.to(opened.device).to(weight.dtype) / 255
    return Pictures(opened, settings, good, images, view), broken
