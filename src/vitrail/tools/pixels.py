"""The logits of a picture model as a function of raw pixels from 0 to 1, and the budget of a change of them.

At the model's own size, preprocessing is one shift and one scale for each channel. Both are read from what it makes of
a black and a white picture, so any preprocessing works that leaves a picture of that size in place.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail import zoo
from vitrail.capture.outputs import read_output
from vitrail.errors import InputError, MissingExtraError, OptionError
from vitrail.models.inputs import Inputs, read_inputs
from vitrail.models.loading import find_class
from vitrail.models.loading.loaded import Loaded, Scaling, read_scaling

if TYPE_CHECKING:
    from PIL.Image import Image

Levels = Float[Tensor, "1 3 h w"]
"""Pixels from 0 to 1, as raw values or on the 256 levels of a file."""
View = Callable[[Any], Tensor | Mapping[str, Any]]
PROBE = 0.02
"""How far from shift and scale a preprocessed picture may be, in shares of the whole range."""


@dataclass(frozen=True)
class ShownModel:
    """A model, how pictures are shown to it, how one of its own size is, and what its classes are called."""

    model: nn.Module
    show: View
    show_again: View
    names: tuple[str, ...] | None


def shown_model_of(model: object, preprocess: View | None, *, squash: bool) -> ShownModel:
    """The model with its preprocessing, given with it or beside it."""
    if isinstance(model, Loaded):
        if model.kind != "image":
            raise InputError(f"{model.name} reads text, but only pictures have pixels to rewrite.")
        return ShownModel(
            model.model,
            lambda image: model.image(image, squash=squash).inputs,
            lambda image: model.image(image, squash=True).inputs,
            model.class_names,
        )
    if isinstance(model, zoo.Embedded):
        if model.name == "sentiment":
            raise InputError("sentiment reads text, but only pictures have pixels to rewrite.")
        return ShownModel(model.model, model.preprocess, model.preprocess, model.class_names)
    if not isinstance(model, nn.Module):
        raise InputError(f"a model is a torch module or what vitrail.zoo.load gives, not {type(model).__name__}.")
    if preprocess is None:
        raise OptionError(
            "this changes pixels, so it must know how they reach the model: pass preprocess=, a function from a "
            "PIL image to the model's input."
        )
    return ShownModel(model, preprocess, preprocess, labels_of(model))


def labels_of(model: nn.Module) -> tuple[str, ...] | None:
    """The class names of a Hugging Face model."""
    found = getattr(getattr(model, "config", None), "id2label", None)
    return tuple(str(found[i]) for i in range(len(found))) if found else None


@dataclass(frozen=True, eq=False)
class PixelModel:
    """A model's logits from raw pixels of its own size."""

    shown_model: ShownModel
    inputs: Inputs
    scaling: Scaling

    def logits(self, pixels: Levels) -> Float[Tensor, " c"]:
        """Return the logits of these pixels; can be differentiated."""
        return self._answer(self.inputs.showing(self.scaling.apply(pixels).to(self.inputs.shown.dtype)))

    def reload(self, levels: Levels) -> Float[Tensor, " c"]:
        """Return the logits after the picture was saved as a PNG file, opened again and preprocessed."""
        from PIL import Image

        sink = BytesIO()
        to_image(levels).save(sink, "PNG")
        with Image.open(sink) as image, torch.no_grad():
            return self._answer(read_inputs(self.shown_model.show_again(image.convert("RGB"))))

    def find(self, wanted: int | str) -> int:
        """The index of a class given by name or number."""
        with torch.no_grad():
            count = len(self._answer(self.inputs))
        return find_class(str(wanted), self.shown_model.names, count)

    def name(self, index: int) -> str:
        """The first name of a class."""
        return self.shown_model.names[index].split(",")[0] if self.shown_model.names else f"class {index}"

    def _answer(self, inputs: Inputs) -> Float[Tensor, " c"]:
        logits = read_output(self.shown_model.model(*inputs.args, **inputs.kwargs)).wide
        if logits.ndim != 2 or logits.shape[1] < 2:
            raise InputError(f"class rewriting needs logits of two or more classes, but these are {logits.shape}.")
        return logits[0]


def pixel_model_of(shown_model: ShownModel, image: "Image") -> tuple[PixelModel, Levels]:
    """The pixel_model for this model, and the picture as it sees it, on 256 levels."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pictures are read and written with Pillow: pip install 'vitrail[plots]'") from error
    if not isinstance(image, Image.Image):
        raise InputError(f"an image is a PIL image, not {type(image).__name__}. Open a file with PIL.Image.open(path).")
    first = read_inputs(shown_model.show(image))
    if first.kind != "image" or first.shown.shape[:2] != (1, 3):
        raise InputError("class rewriting changes one picture of three channels, but the preprocessing gave no such.")

    def show(probe: Any) -> Tensor:  # noqa: ANN401
        return read_inputs(shown_model.show_again(probe)).shown.detach().float()

    height, width = first.shown.shape[2:]
    scaling = read_scaling(show, (height, width))
    noise = np.random.default_rng(0).integers(256, size=(height, width, 3), dtype=np.uint8)
    again, pixels = show(Image.fromarray(noise)), torch.from_numpy(noise).permute(2, 0, 1)[None] / 255
    expected = scaling.apply(pixels.to(again))
    if again.shape != expected.shape or float(((again - expected) / scaling.scale).abs().max()) > PROBE:
        raise OptionError(
            f"the preprocessing changes a picture of {width} x {height} pixels, the model's own size, by more than "
            "a shift and a scale of each channel, so what is saved would not be what the model sees. Leave resizing "
            "and cropping out of it."
        )
    levels = to_levels(scaling.undo(first.shown.detach().float()))
    return PixelModel(shown_model, first, scaling), levels


def to_levels(pixels: Levels) -> Levels:
    """The nearest of the 256 levels a file can hold."""
    return (pixels * 255).round().clamp(0, 255) / 255


def to_image(levels: Levels) -> "Image":
    """The picture of these levels."""
    from PIL import Image

    return Image.fromarray(to_array(levels))


def to_array(levels: Levels) -> np.ndarray:
    """The levels as bytes, channels last."""
    return (levels[0] * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()


ROUNDING = 1e-6


@dataclass(frozen=True)
class Budget:
    """The largest change, in units of the range 0 to 1; None for as far as it takes.

    Args:
        l2: of the Euclidean norm over all values.
        linf: of any one value.
    """

    l2: float | None = None
    linf: float | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that are none."""
        for name, size in (("l2", self.l2), ("linf", self.linf)):
            if size is not None and not (math.isfinite(size) and size > 0):
                raise OptionError(f"{name}={size}, but a budget is a size above 0, in units of the range 0 to 1.")
        if self.linf is not None and self.linf < (1 - ROUNDING) / 255:
            raise OptionError(f"linf={self.linf} is less than one of the 255 steps of an 8-bit picture: nothing fits.")

    def holds(self, *, l2: float, linf: float) -> bool:
        """Return True if a change of this size is within the budget."""
        pairs = ((self.l2, l2), (self.linf, linf))
        return all(limit is None or size <= limit + ROUNDING for limit, size in pairs)

    def typical(self, count: int) -> float:
        """The change of each of so many values that just fills the budget; 0 where there is none."""
        sizes = [self.l2 and self.l2 / math.sqrt(count), self.linf]
        return min([size for size in sizes if size is not None], default=0.0)

    def project(self, change: Tensor) -> Tensor:
        """The nearest change within the budget."""
        if self.linf is not None:
            change = change.clamp(-self.linf, self.linf)
        if self.l2 is not None:
            change = change * min(1.0, self.l2 / max(float(change.norm()), torch.finfo(change.dtype).tiny))
        return change

    def quantise(self, pixels: Levels, original: Levels) -> Levels:
        """The nearest 8-bit picture within the budget: where rounding leads out of it, the smallest changes are undone.

        Args:
            original: on 256 levels.
        """
        change = (to_levels(pixels) - original).mul(255).round()
        if self.linf is not None:
            whole = math.floor(self.linf * 255 + ROUNDING)
            change = change.clamp(-whole, whole)
        if self.l2 is not None:
            order = (pixels - original).abs().flatten().argsort(descending=True)
            spent = change.flatten()[order].double().square().cumsum(dim=0)
            kept = torch.empty_like(order, dtype=torch.bool)
            kept[order] = spent <= (self.l2 * 255) ** 2
            change = change * kept.view_as(change)
        return to_levels(original + change / 255)
