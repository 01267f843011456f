"""The result of `load`: a model with its preprocessing and the names of its classes."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.attribution import SeenPictures
from vitrail.errors import InputError, OptionError, TargetError, one_line, suggest
from vitrail.models.texts import check_text
from vitrail.targets import Target, check_class, only

if TYPE_CHECKING:
    from PIL.Image import Image

EXAMPLE = "The quick brown fox."


@dataclass(frozen=True, eq=False)
class Sound:
    """The samples `[n]` of a sound, how many make a second, and how many seconds the model's input covers."""

    wave: Tensor
    rate: int
    seconds: float


@dataclass(frozen=True)
class Sample:
    """One input as the model takes it, and the picture or the sound it was made of, if it is one.

    Args:
        start: where a model wrote a text itself, the column of its first token.
        seen: the photograph that maps are drawn over, where it is known which part of it the picture shows.
    """

    inputs: Tensor | Mapping[str, Any]
    picture: "Image | None" = None
    sound: Sound | None = None
    start: int | None = None
    seen: SeenPictures | None = None


Preprocess = Callable[..., Sample]
"""Takes an RGB image and `squash=`, gives the sample."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Shift and scale of each channel: input = shift + scale * picture in 0..1, at the model's own size."""

    shift: Float[Tensor, "c 1 1"]
    scale: Float[Tensor, "c 1 1"]

    def apply(self, pictures: Tensor) -> Tensor:
        """Return the inputs of pictures in 0..1."""
        return torch.addcmul(self.shift.to(pictures), pictures, self.scale.to(pictures))

    def undo(self, inputs: Tensor) -> Tensor:
        """Return the pictures in 0..1 of inputs, neither rounded nor clipped."""
        return (inputs - self.shift.to(inputs)) / self.scale.to(inputs)


def read_scaling(show: Callable[["Image"], Tensor], size: tuple[int, int]) -> Scaling:
    """Return what preprocessing does to a picture of the model's own size, read off a black and a white one.

    Args:
        show: gives the input `[1, c, h, w]` of a picture.
        size: height and width.
    """
    from PIL import Image

    def mean(colour: str) -> Tensor:
        return show(Image.new("RGB", (size[1], size[0]), colour))[0].mean(dim=(1, 2))[:, None, None]

    shift = mean("black")
    return Scaling(shift, mean("white") - shift)


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode with its preprocessing and the names of its classes.

    Args:
        kind: `"image"` or `"text"`.
        task: `"image"`, `"sequence"`, `"question"`, `"causal"`, `"writing"` or `"boxes"`.
        class_names: by class index; for a language model there are none, its tokens are the classes.
        preprocess: for images.
        tokenizer: for text.
        processor: the settings behind `preprocess`, where they come with the model: a dataclass, or an object with
            `to_dict`.
        demonstration: whether it is one of the small models inside the package.
        write: for models that write text about a source; takes the source and gives a sample with what was written.
        source: what `write` takes: `"text"`, `"sound"`, `"picture"`, or `"question"` for a picture and a question.
    """

    model: nn.Module
    name: str
    kind: str
    task: str
    classes: int
    class_names: tuple[str, ...] | None = None
    preprocess: Preprocess | None = None
    tokenizer: Any = None
    image_size: tuple[int, int] | None = None
    processor: Any = None
    demonstration: bool = False
    write: Callable[..., Sample] | None = None
    source: str | None = None

    def image(self, image: "Image", *, squash: bool = False) -> Sample:
        """An image as the model takes it.

        Args:
            squash: resize to the model's size without cropping; the aspect ratio changes.
        """
        if self.preprocess is None:
            raise InputError(f"{self.name} reads text, not images.")
        sample = self.preprocess(image, squash=squash)
        return replace(sample, inputs=self._placed(sample.inputs))

    @cached_property
    def scaling(self) -> Scaling:
        """The shift and scale of its preprocessing, for a picture of its own size."""
        assert self.image_size is not None
        return read_scaling(lambda picture: _pixels(self.image(picture, squash=True).inputs), self.image_size)

    def normalise(self, pictures: Tensor) -> Tensor:
        """Return pictures in 0..1 as the model's own preprocessing would scale them."""
        return self.scaling.apply(pictures)

    def pictures(self, inputs: Tensor) -> Tensor:
        """Return the pictures in 0..1 that inputs were made of, as far as the model sees them."""
        return self.scaling.undo(inputs).clamp(0, 1)

    def logits(self, pictures: Tensor) -> Tensor:
        """Return the model's logits of pictures in 0..1 of its own size; they can be differentiated."""
        found = self.model(self.normalise(pictures))
        return found if isinstance(found, Tensor) else found.logits

    def text(self, text: str, pair: str | None = None) -> Sample:
        """A text, or a pair such as question and context, as the model takes it."""
        if self.tokenizer is None:
            raise InputError(f"{self.name} reads images, not text.")
        # A text that is too long is refused by `explain` with its length, so nothing is cut here.
        return self._encoded(check_text(text), None if pair is None else check_text(pair))

    def texts(self, texts: Sequence[str]) -> Any:  # noqa: ANN401
        """Several texts as the model takes them, padded to the longest."""
        if self.tokenizer is None:
            raise InputError(f"{self.name} reads images, not text.")
        if self.task == "question":
            raise InputError(f"{self.name} answers questions: pass {self.name}.text(question, context).inputs.")
        return self._encoded(list(texts), None).inputs

    def example(self) -> Sample:
        """An input with no meaning, to try the model on; two texts of unequal length where there is padding."""
        if self.write is not None:
            if self.source != "text":
                raise InputError(f"{self.name} writes text about a {self.source}: there is no example of one.")
            return self.write(EXAMPLE)
        if self.image_size is not None:
            from PIL import Image

            noise = torch.randint(256, (*self.image_size, 3), generator=torch.Generator().manual_seed(0))
            return self.image(Image.fromarray(noise.to(torch.uint8).numpy()), squash=True)
        texts = [EXAMPLE, EXAMPLE[:9]] if self.tokenizer.pad_token is not None else [EXAMPLE]
        return self._encoded(texts, texts if self.task == "question" else None)

    def _encoded(self, text: str | list[str], pair: str | list[str] | None) -> Sample:
        padding = isinstance(text, list) and len(text) > 1
        options = {"return_tensors": "pt", "return_special_tokens_mask": True, "padding": padding, "verbose": False}
        return Sample(self._placed(self.tokenizer(text, pair, **options)))

    def _placed(self, inputs: Any) -> Any:  # noqa: ANN401
        """The inputs on the model's device, real numbers in its dtype."""
        weight = next(self.model.parameters())
        if isinstance(inputs, Tensor):
            return inputs.to(weight.device, weight.dtype)
        if "pixel_values" in inputs:
            return {**inputs, "pixel_values": inputs["pixel_values"].to(weight.device, weight.dtype)}
        return inputs.to(weight.device)

    def class_name(self, index: int) -> str:
        """The first name of a class, with its index where another has the same name; a language model's token."""
        if self.task == "causal":
            return repr(self.tokenizer.decode([index]))
        if not self.class_names:
            return f"class {index}"
        name = _first(self.class_names[index])
        return f"{name} ({index})" if self._shared_names[name.casefold()] > 1 else name

    @cached_property
    def _shared_names(self) -> Counter[str]:
        return Counter(_first(names).casefold() for names in self.class_names or ())

    def find_class(self, wanted: str) -> int:
        """Return the class of this name, or a language model's token; digits that name none are an index."""
        if self.task == "causal":
            return find_token(wanted, self.tokenizer, self.classes, names_first=True)
        if self.task == "question":
            raise TargetError(f"{self.name} answers questions, so it has no classes: leave the target out.")
        return find_class(wanted, self.class_names, self.classes, names_first=True)

    def target_name(self, target: Target) -> str:
        """Return the explained target of one sample, in the names of the classes."""
        if target.first is None:
            return str(target)
        first = self.class_name(only(target.first))
        return first if target.second is None else f"{first} rather than {self.class_name(only(target.second))}"


def _pixels(inputs: Tensor | Mapping[str, Any]) -> Tensor:
    return inputs if isinstance(inputs, Tensor) else inputs["pixel_values"]


def _first(names: str) -> str:
    """The first of a class's names, which are separated by commas."""
    return names.split(",")[0]


def find_class(wanted: str, names: Sequence[str] | None, count: int, *, names_first: bool = False) -> int:
    """The index of a class given by index or by any of its comma-separated names.

    Args:
        names_first: whether digits are a name where a class has it, as in Python, where an index is a number.
    """
    named = names_first and any(_key(wanted) in _synonyms(label) for label in names or ())
    if INDEX.fullmatch(wanted.strip()) and not named:
        return check_class(int(wanted), count)
    if names is None:
        known = f"an index, 0 to {count - 1}" if count else "an index"
        raise TargetError(f"this model's classes have no names: give {known}, not {wanted!r}.")
    found = [index for index, label in enumerate(names) if _key(wanted) in _synonyms(label)]
    if len(found) == 1:
        return found[0]
    if found:
        listed = "; ".join(f"{index} ({names[index]})" for index in found)
        raise TargetError(f"{wanted!r} names {len(found)} classes: {listed}. Give the index.")
    near = suggest(_key(wanted), {synonym for label in names for synonym in _synonyms(label)})
    if not near.startswith("Did") and len(names) > 20:
        near = f"Its {len(names)} classes are called {_first(names[0])}, {_first(names[1])}, ...; an index works too."
    raise TargetError(f"the model has no class {wanted!r}. {near}")


INDEX = re.compile(r"[+-]?\d+")


def find_token(wanted: str, tokenizer: Any, count: int, *, names_first: bool = False) -> int:  # noqa: ANN401
    """The id of a token given by id or as text; spaces count.

    Args:
        names_first: whether digits are a token where there is one, as in Python, where an id is a number.
    """
    ids = tokenizer(wanted, add_special_tokens=False)["input_ids"]
    named = names_first and len(ids) == 1 and ids[0] != tokenizer.unk_token_id
    if wanted.strip().isdecimal() and not named:
        return check_class(int(wanted), count)
    if len(ids) == 1 and ids[0] == tokenizer.unk_token_id and wanted.strip() != tokenizer.unk_token:
        near = suggest(wanted, tokenizer.get_vocab())
        near = f" {near}" if near.startswith("Did") else ""
        raise TargetError(f"{wanted!r} is no token of the model, which reads it as {tokenizer.unk_token!r}.{near}")
    if len(ids) == 1:
        return int(ids[0])
    pieces = ", ".join(repr(tokenizer.decode([i])) for i in ids)
    raise TargetError(
        f"{wanted!r} is {len(ids)} tokens ({pieces}), but a target is one. A word inside a sentence often begins with "
        f"a space: {' ' + wanted.strip()!r}."
    )


def _key(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").split())


def _synonyms(label: str) -> set[str]:
    return {_key(label), *(_key(part) for part in label.split(","))}


def find_device(name: str) -> torch.device:
    """The device of this name, if it can hold values and compute."""
    try:
        device = torch.device(name)
        torch.ones(1, device=device).add(1).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise OptionError(f"the device {name!r} cannot be used: {one_line(error)[:200]}") from error
    return device


def find_dtype(given: torch.dtype | str | None) -> torch.dtype | None:
    """The precision of this name, if it is one of real numbers."""
    found = getattr(torch, given, given) if isinstance(given, str) else given
    if found is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise OptionError(
            f"dtype={given!r}, but weights are real numbers: torch.bfloat16, float16, float32 or float64."
        )
    return found
