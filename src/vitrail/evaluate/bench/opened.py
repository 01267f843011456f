"""Models and data sets by their specs, kept open between units."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import ModelError, OptionError
from vitrail.evaluate.bench.builtin import NO_PATH, find_entry
from vitrail.evaluate.bench.generators import own_generators
from vitrail.evaluate.bench.plan import DataSpec, ModelSpec
from vitrail.evaluate.data.examples import Dataset
from vitrail.models.loading import Loaded, load
from vitrail.models.loading.devices import find_device

KINDS = {"image": "image", "sequence": "text", "question": "question"}
"""A model's task -> the kind of data it reads."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A model on its device, and how pictures in 0..1 become its inputs."""

    loaded: Loaded
    device: torch.device
    shift: Tensor
    scale: Tensor

    @property
    def kind(self) -> str:
        """The kind of data it reads."""
        return KINDS[self.loaded.task]

    def normalise(self, images: Tensor) -> Tensor:
        """Pictures in 0..1 as the model's own preprocessing would scale them."""
        return torch.addcmul(self.shift.to(images), images, self.scale.to(images))

    def logits(self, images: Tensor) -> Tensor:
        """What the model says of pictures in 0..1."""
        found = self.loaded.model(self.normalise(images))
        return found if isinstance(found, Tensor) else found.logits


@lru_cache(maxsize=2)
def open_model(spec: ModelSpec, device: str) -> Opened:
    """The model, loaded once; two stay loaded."""
    place = find_device(device)
    with own_generators():  # a new model draws its first weights
        loaded = load(spec.name, arch=spec.arch)
    if loaded.task not in KINDS:
        raise ModelError(
            f"{loaded.name} is a model for {loaded.task} tasks; the bench measures models that classify images or "
            "texts or answer questions."
        )
    loaded.model.to(place).requires_grad_(requires_grad=False)
    shift, scale = affine(loaded) if loaded.kind == "image" else (torch.zeros(1), torch.ones(1))
    return Opened(loaded, place, shift.to(place), scale.to(place))


def affine(loaded: Loaded) -> tuple[Tensor, Tensor]:
    """The normalisation, read off a black and a white picture: input = shift + scale * picture."""
    from PIL import Image

    assert loaded.image_size is not None
    height, width = loaded.image_size
    low, high = (_values(loaded, Image.new("RGB", (width, height), colour)) for colour in ("black", "white"))
    return low[:, None, None], (high - low)[:, None, None]


def _values(loaded: Loaded, picture: Any) -> Tensor:  # noqa: ANN401
    inputs = loaded.image(picture, squash=True).inputs
    return (inputs if isinstance(inputs, Tensor) else inputs["pixel_values"])[0].mean(dim=(1, 2))


def open_data(spec: DataSpec) -> Dataset[Any]:
    """All examples of the data set, opened once."""
    return _open_data(spec.name, spec.path, tuple(sorted(spec.options.items())))


@lru_cache(maxsize=4)
def _open_data(name: str, path: str, options: tuple[tuple[str, Any], ...]) -> Dataset[Any]:
    entry = find_entry(name)
    if not path and name not in NO_PATH:
        raise OptionError(f"where does {name} lie? Write {name}=PATH; there has to be {entry.needs}.")
    return entry.open(path, **dict(options))


def forget() -> None:
    """Open models and data sets anew: their files may have changed."""
    open_model.cache_clear()
    _open_data.cache_clear()
