"""Pictures of another class: those that come with the package, how a model is shown them, and whether they serve."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.models.anatomy import Anatomy
from vitrail.models.inputs import read_inputs
from vitrail.tools.looking import Seen, look
from vitrail.tools.stitch import Images, fitted

if TYPE_CHECKING:
    from PIL.Image import Image

SHIPPED = ("golf_ball", "temple")
RECOGNISED = 0.5
"""The probability that the model has to give the class it sees in a guide, for the guide to count as recognised."""
Preprocess = Callable[..., Any]
"""From a PIL image to what the model takes: a tensor, a mapping with pixel_values, or a `vitrail.loading.Sample`."""


@dataclass(frozen=True, eq=False)
class Guide:
    """A picture for every sample, or one for all; the classes the model sees in it, and how sure it is."""

    images: Images
    classes: tuple[int, ...]
    likely: tuple[float, ...]

    def of(self, sample: int) -> tuple[int, float]:
        """The class and its probability in one sample's guide."""
        place = sample if len(self.classes) > 1 else 0
        return self.classes[place], self.likely[place]


def open_shipped(name: str) -> "Image":
    """A guide picture of the package."""
    from PIL import Image

    with files("vitrail.apps.demo").joinpath("pictures", f"{name}.jpg").open("rb") as file, Image.open(file) as picture:
        return picture.convert("RGB")


def find_preprocess(model: nn.Module) -> Preprocess:
    """How this model is shown pictures, where the model itself says so."""
    if getattr(getattr(model, "config", None), "name_or_path", "") == "vitrail.models.zoo:photo":
        from vitrail.models.zoo.photo import preprocess

        return preprocess
    if getattr(model, "pretrained_cfg", None):
        from vitrail.models.loading.vision import view_of

        return view_of(model)
    raise InputError(
        f"{type(model).__name__} does not say how pictures are scaled for it, so the guides that come with the package "
        "cannot be shown to it. Pass preprocess=, a function from a PIL image to the model's input, or guide_image=, a "
        "preprocessed tensor."
    )


def as_images(guide: object, model: nn.Module, preprocess: Preprocess | None) -> Tensor:
    """A guide as a batch of preprocessed pictures; what is no tensor yet is preprocessed."""
    if not isinstance(guide, (Tensor, Mapping)):
        if not hasattr(guide, "convert"):
            raise InputError(
                f"a guide is a preprocessed tensor [b, 3, h, w] or a PIL image, not {type(guide).__name__}. "
                "Open a file with PIL.Image.open(path)."
            )
        guide = (preprocess or find_preprocess(model))(guide)
        guide = getattr(guide, "inputs", guide)
    read = read_inputs(guide)
    if read.kind != "image":
        raise InputError(f"a guide is a picture [b, 3, h, w], but this one has the shape {tuple(read.shown.shape)}.")
    return read.shown


def read_guide(images: Tensor, model: nn.Module, beside: Seen, anatomy: Anatomy | None) -> Guide:
    """A guide of the size of the originals, with what the model sees in it."""
    weight = next(model.parameters())
    images = fitted(images.to(weight.device, weight.dtype), beside.size)
    classes, likely = zip(*look(model, beside.showing(images), anatomy).best, strict=True)
    return Guide(images, classes, likely)


def choose(guides: Sequence[Guide], targets: Sequence[int | None]) -> Guide:
    """For each sample, of the guides that show another class than its target, the one the model is surest of."""
    rows = [max(guides, key=lambda guide, c=target: (guide.classes[0] != c, guide.likely[0])) for target in targets]
    return Guide(
        torch.cat([guide.images for guide in rows]),
        tuple(guide.classes[0] for guide in rows),
        tuple(guide.likely[0] for guide in rows),
    )


def warn_of(guides: Sequence[Guide], targets: Sequence[int | None], named: Callable[[int], str]) -> None:
    """Warn where a guide cannot lead away from the target: it shows the same class, or none the model is sure of."""
    said: set[str] = set()
    for guide in guides:
        for sample, target in enumerate(targets):
            seen, likely = guide.of(sample)
            if seen == target:
                said.add(f"the guide shows the target itself, {named(seen)}: choose a picture of another class.")
            elif likely < RECOGNISED:
                said.add(
                    f"the model does not recognise the guide: {named(seen)} with probability {likely:.2f}, below "
                    f"{RECOGNISED}. Choose a picture it is sure of."
                )
    for message in sorted(said):
        warnings.warn(message, stacklevel=4)
