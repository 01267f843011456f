"""Models by name: weights, preprocessing, tokenizer and class names from one call."""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vitrail.errors import InputError, ModelError, OptionError, as_path, suggest
from vitrail.models import MODELS as EMBEDDED
from vitrail.models import silent, zoo
from vitrail.models.loading.huggingface import PICKLES, is_cached, load_huggingface, wrong_task
from vitrail.models.loading.loaded import Loaded, Sample, find_class, find_device, find_dtype, find_token
from vitrail.models.loading.vision import (
    is_timm_name,
    is_torchvision_name,
    load_timm,
    load_torchvision,
    load_weights,
    timm_names,
)

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST_NAME = 1024


def load(
    name: str | Path,
    *,
    arch: str | None = None,
    pickles: bool = False,
    task: str | None = None,
    device: str | None = None,
    dtype: torch.dtype | str | None = None,
    pretrained: bool = True,
) -> Loaded:
    """Open a model by its name, with its preprocessing and the names of its classes, in evaluation mode.

    Args:
        name: `photo`, `sentiment` or `lookup` (the models inside the package), a timm name, a torchvision name such as
            `torchvision/vit_b_16`, a Hugging Face id or folder, or a `.safetensors` file.
        arch: the timm architecture that a `.safetensors` file belongs to; nothing else takes one.
        pickles: also read a Hugging Face model whose weights are pickled, by torch's reader of weights alone.
        task: `causal` refuses all but causal language models; None takes every model.
        device: where its weights are kept, such as `cuda`; None is the CPU.
        dtype: the precision of its weights, such as `torch.bfloat16`; None keeps that of its files.
        pretrained: False gives random weights, to try things without a download.

    Returns:
        The model (`.model`) with its preprocessing. `explain` and all other functions take it as it is.

    Raises:
        ModelError: if there is no model of this name, or it cannot be opened safely.
        OptionError: if the device or the precision cannot be used.

    Example:
        >>> loaded = vitrail.load("sentiment")
        >>> loaded.class_names
        ('negative', 'positive')
        >>> vitrail.explain(loaded, "It never comes to life.", target="negative").target
        logit of 0
    """
    place, precision = find_device("cpu" if device is None else device), find_dtype(dtype)
    loaded = _load(name, arch, task, pickles=pickles, pretrained=pretrained)
    if task not in (None, loaded.task):
        raise wrong_task(str(name), loaded.task)
    loaded.model.to(place, precision)
    return loaded


def _load(name: str | Path, arch: str | None, task: str | None, *, pickles: bool, pretrained: bool) -> Loaded:
    """The model of this name, by the loader of its kind."""
    if not isinstance(name, (str, Path)):
        raise ModelError(f"a model must be given by its name or path, not by {type(name).__name__}.")
    name = str(name)
    path = _check_name(name)
    if not pretrained and (path.suffix == ".safetensors" or name in EMBEDDED):
        raise OptionError(f"pretrained=False gives random weights, but {name} comes with its weights: leave it out.")
    if path.suffix == ".safetensors":
        return load_weights(path, arch)
    if arch is not None:
        raise ModelError(f"an architecture ({arch}) belongs to a .safetensors file, but {name!r} is not one.")
    if path.exists() and name not in EMBEDDED:  # a folder of that name is ./photo
        return load_huggingface(name, pickles=pickles, task=task, pretrained=pretrained)
    return _load_named(name, task, pickles=pickles, pretrained=pretrained)


def _load_named(name: str, task: str | None, *, pickles: bool, pretrained: bool) -> Loaded:
    """The model of a name that is no file and no folder here."""
    if name in EMBEDDED:
        return load_embedded(name)
    if is_timm_name(name):
        return load_timm(name, pretrained=pretrained)
    if is_torchvision_name(name):
        return load_torchvision(name, pretrained=pretrained)
    known = [] if is_cached(name) else [*EMBEDDED, *timm_names(name)]
    for near in get_close_matches(name.lower(), known, n=1, cutoff=0.75):
        raise ModelError(f"there is no model {name!r}. Did you mean {near}? A Hugging Face id is owner/name.")
    return load_huggingface(name, pickles=pickles, task=task, pretrained=pretrained)


def _check_name(name: str) -> Path:
    """The name as a path, if it can name a model at all."""
    if not name.strip() or "\0" in name or len(name) > LONGEST_NAME:
        shown = f"{name[:40]}..." if len(name) > LONGEST_NAME else repr(name)
        raise ModelError(f"{shown} cannot be the name of a model. {suggest(name[:40], EMBEDDED)}")
    try:
        path = as_path(name, "a model")
    except InputError as error:
        raise ModelError(f"{name[:40]!r}... cannot be the name of a model. {error}") from error
    if path.suffix.lower() in PICKLES and not path.is_dir():
        raise ModelError(
            f"{name} is a pickle, which can run any code when it is opened, so it is refused. Convert it once where "
            "you trust it: safetensors.torch.save_file(torch.load(file, weights_only=True), 'model.safetensors')."
        )
    if path.is_dir() and name not in EMBEDDED and not (path / "config.json").is_file():
        raise ModelError(f"the folder {name} holds no config.json, so it is no Hugging Face model.")
    return path


def load_embedded(name: str) -> Loaded:
    """A model inside the package with its preprocessing or tokenizer."""
    from vitrail.models.zoo.photo import SIZE

    found, task = zoo.load_plain(name), EMBEDDED[name]
    text = task != "image"
    return Loaded(
        model=found.model,
        name=name,
        kind="text" if text else "image",
        task=task,
        classes=len(found.class_names),
        class_names=None if task == "causal" else found.class_names,
        preprocess=None if text else _photo,
        tokenizer=found.preprocess.tokenizer if text else None,  # pyright: ignore[reportFunctionMemberAccess]
        image_size=None if text else (SIZE, SIZE),
        demonstration=True,
    )


def _photo(image: "Image", *, squash: bool = False) -> Sample:
    from vitrail.models.zoo.photo import crop, stretched, to_input

    shown = stretched(image) if squash else crop(image)
    return Sample(to_input(shown), shown)


__all__ = ["EMBEDDED", "Loaded", "Sample", "find_class", "find_device", "find_token", "load", "silent"]
