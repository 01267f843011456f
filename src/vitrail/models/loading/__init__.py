"""Models by name: weights, preprocessing, tokenizer and class names from one call."""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.errors import InputError, ModelError, as_path, suggest
from vitrail.models import MODELS as EMBEDDED
from vitrail.models import silent, zoo
from vitrail.models.loading.huggingface import PICKLES, is_cached, load_huggingface, wrong_task
from vitrail.models.loading.loaded import Loaded, Sample, find_class, find_device, find_token
from vitrail.models.loading.vision import is_timm_name, load_timm, load_weights, timm_names

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST_NAME = 1024


def load(
    name: str | Path,
    *,
    arch: str | None = None,
    pickles: bool = False,
    task: str | None = None,
    device: str = "cpu",
) -> Loaded:
    """A model that is ready to be explained, in evaluation mode.

    Args:
        name: `photo`, `sentiment` or `lookup` (the models inside the package), a timm name, a Hugging Face id or
            folder, or a `.safetensors` file.
        arch: the timm architecture that a `.safetensors` file belongs to; nothing else takes one.
        pickles: also read a Hugging Face model whose weights are pickled, by torch's reader of weights alone.
        task: `causal` refuses all but causal language models; None takes every model.
        device: where its weights are kept, such as `cuda`.
    """
    place = find_device(device)
    loaded = _load(name, arch, task, pickles=pickles)
    if task not in (None, loaded.task):
        raise wrong_task(str(name), loaded.task)
    loaded.model.to(place)
    return loaded


def _load(name: str | Path, arch: str | None, task: str | None, *, pickles: bool) -> Loaded:
    """The model of this name, by the loader of its kind."""
    if not isinstance(name, (str, Path)):
        raise ModelError(f"a model must be given by its name or path, not by {type(name).__name__}.")
    name = str(name)
    path = _check_name(name)
    if path.suffix == ".safetensors":
        return load_weights(path, arch)
    if arch is not None:
        raise ModelError(f"an architecture ({arch}) belongs to a .safetensors file, but {name!r} is not one.")
    if name in EMBEDDED and not path.exists():
        return load_embedded(name)
    if not path.exists() and is_timm_name(name):
        return load_timm(name)
    known = [] if path.exists() or is_cached(name) else [*EMBEDDED, *timm_names(name)]
    for near in get_close_matches(name.lower(), known, n=1, cutoff=0.75):
        raise ModelError(f"there is no model {name!r}. Did you mean {near}? A Hugging Face id is owner/name.")
    return load_huggingface(name, pickles=pickles, task=task)


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
    if path.is_dir() and not (path / "config.json").is_file():
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
