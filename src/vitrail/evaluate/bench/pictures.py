"""Batches of pictures in 0..1 on the model's device, with masks and boxes in the pixels that the model sees.

PASCAL VOC's twenty classes are found among the classes of a model by ImageNet's numbers or by name. ImageNet has no
class "person" or "potted plant": three of its classes show people, flowerpots show plants. As in VOC, cars exclude
lorries and emergency vehicles, and cats and dogs exclude their wild relatives.
A protocol may show each picture beside a guide of another class (Cui et al., arXiv:2605.11392, Sec. 4.6).
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.capture.recording.forward import predict
from vitrail.errors import InputError
from vitrail.evaluate import data
from vitrail.evaluate.bench.opened import Broken, Opened, RunSettings
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.data.examples import IGNORE, ImageExample
from vitrail.evaluate.data.labelled import IMAGENETTE_SYNSETS
from vitrail.evaluate.data.segmented import SPELT_IN_VOC, VOC
from vitrail.evaluate.metrics import fills
from vitrail.evaluate.removal import seen_pixels
from vitrail.evaluate.stitch import open_shipped, plan_canvas, stitch
from vitrail.models import PICTURES

# By VOC's class: numbers among ImageNet's 1,000 classes, (first, last) for neighbours.
IMAGENET: Mapping[str, tuple[int | tuple[int, int], ...]] = {
    "aeroplane": (404, 895),  # airliner, warplane
    "bicycle": (444, 671),  # tandem, mountain bike
    "bird": ((7, 24), (80, 100), (127, 146)),
    "boat": (403, 472, 484, 510, 554, 576, 625, 628, 724, 780, 814, 871, 914),  # from aircraft carrier to yawl
    "bottle": (440, 720, 737, 898, 907),  # of beer, pills, soda, water, wine
    "bus": (654, 779, 874),  # minibus, school bus, trolleybus
    "car": (436, 468, 511, 609, 627, 656, 661, 751, 817),  # from estate car to sports car
    "cat": ((281, 285),),
    "chair": (423, 559, 765, 857),  # of a barber, folding, rocking, throne
    "cow": (345,),  # ox
    "diningtable": (532,),
    "dog": ((151, 268),),
    "horse": (339,),  # sorrel
    "motorbike": (665, 670),  # moped, scooter
    "person": ((981, 983),),  # baseball player, groom, diver
    "pottedplant": (738,),  # flowerpot
    "sheep": (348, 349),  # ram, bighorn
    "sofa": (831,),  # studio couch
    "train": (466, 547, 565, 705, 820, 829),  # bullet train, locomotives, carriages, tram
    "tvmonitor": (664, 782, 851),  # monitor, screen, television
}
COUNT = 1000
KNOWN = {0: "tench", 404: "airliner", 817: "sports car"}
"""Classes that tell ImageNet's numbering from another of 1,000 classes."""
VOC_NUMBERS = {
    number: VOC.index(name)
    for name, parts in IMAGENET.items()
    for part in parts
    for number in (range(part[0], part[1] + 1) if isinstance(part, tuple) else [part])
}
"""ImageNet's number -> VOC's."""
NAMED = {
    **{name: number for number, name in enumerate(VOC) if number},
    **{other: VOC.index(name) for other, name in SPELT_IN_VOC.items()},
    **{name.casefold(): VOC_NUMBERS[number] for name, number in IMAGENETTE_SYNSETS.values() if number in VOC_NUMBERS},
}
"""A class called like one of VOC, of COCO or of Imagenette -> VOC's number."""


@lru_cache(maxsize=8)
def voc_classes(names: tuple[str, ...] | None, count: int) -> dict[int, tuple[int, ...]]:
    """VOC's number -> the model's classes that are this class; by ImageNet's numbers, else by name."""
    if count == COUNT and (names is None or all(name in _words(names[i]) for i, name in KNOWN.items())):
        pairs = list(VOC_NUMBERS.items())
    else:
        pairs = [(i, NAMED[word]) for i, label in enumerate(names or ()) for word in _words(label) if word in NAMED]
    return {wanted: tuple(sorted({i for i, number in pairs if number == wanted})) for _, wanted in pairs}


def _words(label: str) -> set[str]:
    return {" ".join(part.casefold().replace("_", " ").split()) for part in label.split(",")}


NOT_SQUASHED = "masks and boxes fit pictures that are squashed, not cropped or stitched."
Size = tuple[int, int]
Boxes = list[list[float]]


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects of one picture.

    Args:
        mask: VOC's class of every pixel; classes that the model does not know are ignored.
        classes: for every class of the mask, the class of the model that is explained for it.
    """

    mask: Tensor
    classes: Mapping[int, int]


def find_objects(example: ImageExample, size: Size, logits: Tensor, known: Mapping[int, Sequence[int]]) -> Objects:
    """The objects whose class the model knows; each is explained by the likeliest of the model's classes for it."""
    mask = example.mask
    assert mask is not None
    mask = data.resize_mask(mask, size)
    there = [int(value) for value in mask.unique() if value > 0]
    if not there:
        raise InputError("the mask shows none of PASCAL VOC's classes.")
    classes = {value: max(known[value], key=lambda c: float(logits[c])) for value in there if value in known}
    if not classes:
        raise InputError("the mask shows only classes that the model does not know.")
    for value in set(there) - set(classes):
        mask = mask.masked_fill(mask == value, IGNORE)
    return Objects(mask, classes)


def find_boxes(example: ImageExample, size: Size) -> Boxes:
    """Left, top, right, bottom of the boxes, cut where they leave the picture."""
    (wide, high), (height, width) = example.image.size, size
    cut = (
        (max(b.x0, 0) / wide, max(b.y0, 0) / high, min(b.x1, wide) / wide, min(b.y1, high) / high)
        for b in example.boxes
    )
    boxes = [[x0 * width, y0 * height, x1 * width, y1 * height] for x0, y0, x1, y1 in cut if x0 < x1 and y0 < y1]
    if not boxes:
        raise InputError("there are no boxes in this picture.")
    return boxes


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures of one size, in 0..1.

    Args:
        view: `squash` or `crop`; masks fit only the first.
    """

    opened: Opened
    settings: RunSettings
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
        """The explained pictures, normalised for the model."""
        return self.opened.loaded.normalise(self.images)

    @torch.no_grad()
    def score(self, images: Tensor) -> Tensor:
        """The logits of pictures in 0..1."""
        with self.settings.precision():
            return self.opened.loaded.logits(images)

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the model's patches."""
        found = predict(self.opened.loaded.model, self.inputs[:1]).grid
        if found is None:
            raise InputError(f"the patches of {self.opened.loaded.name} are in no rows and columns.")
        return found

    @cached_property
    def logits(self) -> Tensor:
        """The logits of the clean pictures."""
        return self.score(self.images).float()

    def fill(self, name: str) -> str | fills.Fill:
        """Return the fill that replaces pixels."""
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
            raise InputError(f"{example.key}: {NOT_SQUASHED}")
        mask = example.mask
        assert mask is not None
        height, width = self.images.shape[2:]
        mask = data.resize_mask(mask.clamp(max=1), (height, width))
        if not bool((mask == 1).any()):
            raise InputError(f"{example.key}: the mask has no foreground.")
        return mask

    @cached_property
    def objects(self) -> list[Objects | str]:
        """The objects seen in each picture, or why they are not known; the same for every method."""
        loaded, logits = self.opened.loaded, self.logits.cpu()
        known = voc_classes(loaded.class_names, loaded.classes)
        return [
            self._tried(find_objects, example, row, known) for example, row in zip(self.examples, logits, strict=True)
        ]

    @cached_property
    def boxes(self) -> list[Boxes | str]:
        """The boxes of each picture, or why it has none."""
        return [self._tried(find_boxes, example) for example in self.examples]

    def _tried(self, find: Callable[..., Any], example: ImageExample, *more: Any) -> Any:  # noqa: ANN401
        height, width = self.images.shape[2:]
        if self.view != "squash":
            return NOT_SQUASHED
        try:
            return find(example, (height, width), *more)
        except InputError as error:
            return str(error)

    def take(self, rows: Sequence[int]) -> "Pictures":
        """Some of the pictures."""
        return replace(self, examples=[self.examples[i] for i in rows], images=self.images[list(rows)], emptied={})


def read_pictures(
    opened: Opened, settings: RunSettings, examples: Sequence[Any], protocol: Protocol
) -> tuple[Pictures, Broken]:
    """The pictures that can be opened, and why the others cannot."""
    good, pixels, broken = [], [], {}
    for example in examples:
        try:
            picture = opened.loaded.image(example.image, squash=protocol.view == "squash").picture
        except InputError as error:
            broken[example.key] = str(error)
            continue
        good.append(example)
        assert picture is not None
        pixels.append(seen_pixels(opened.loaded, picture))
    images = torch.cat(pixels) if pixels else torch.zeros(0, 3, *(opened.loaded.image_size or (1, 1)))
    return Pictures(opened, settings, good, images, protocol.view), broken


def guide_identity(guide: str) -> str:
    """The identity of a guide: the name of one in the package, or the name and content of a file."""
    if guide in PICTURES:
        return guide
    try:
        digest = hashlib.sha256(Path(guide).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            f"there is no guide {guide}: give one of {', '.join(PICTURES)} or the path of a picture ({error.strerror})."
        ) from error
    return f"{Path(guide).name} {digest[:12]}"


def beside_guide(batch: Pictures, guide: str) -> tuple[Pictures, Broken]:
    """The pictures in the left half and the guide in the right, both squashed; no mask or box fits them any more.

    Pictures of the guide's own class cannot be measured beside it; the second result says so by their keys.
    """
    if not batch.keys:
        return replace(batch, view="stitched"), {}
    grid = predict(batch.opened.loaded.model, batch.inputs[:1]).grid
    assert grid is not None
    canvas = plan_canvas("beside", "left", "resize", ((batch.images.shape[2], batch.images.shape[3]), grid))
    other, own = _read_guide(batch.opened, guide, guide_identity(guide))
    name = batch.opened.loaded.class_name(own)
    same = [key for key, label in zip(batch.keys, batch.labels, strict=True) if label == own]
    images = stitch(batch.images, [other.to(batch.images)], canvas)
    stitched = replace(batch, images=images, view="stitched", emptied={})
    return stitched, {key: f"{key}: it is of the guide's class, {name}." for key in same}


@lru_cache(maxsize=1)  # it holds the model: no more than the one at work
def _read_guide(opened: Opened, guide: str, identity: str) -> tuple[Tensor, int]:
    """The guide in 0..1 as the model sees it squashed, and the class the model sees in it.

    Kept for the next batch as long as the guide's content is the same.
    """
    from vitrail.models.loading.images import open_image

    picture = open_shipped(guide) if guide in PICTURES else open_image(Path(guide))
    seen = np.array(opened.loaded.image(picture, squash=True).picture)
    pixels = torch.from_numpy(seen).permute(2, 0, 1)[None].to(opened.device) / 255
    pixels = pixels.to(next(opened.loaded.model.parameters()).dtype)
    with torch.no_grad():
        return pixels, int(opened.loaded.logits(pixels).argmax())
