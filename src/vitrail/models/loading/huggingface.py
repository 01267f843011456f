"""Hugging Face models from a folder, the cache or the hub: safetensors only, and never code from a repository."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from vitrail.errors import MissingExtraError, ModelError
from vitrail.models.loading.loaded import Loaded, Sample
from vitrail.models.loading.writing import AUTO, reads, writer
from vitrail.models.silence import silent

T = TypeVar("T")

TASKS: dict[str, tuple[str, str]] = {
    "ForImageClassification": ("AutoModelForImageClassification", "image"),
    "ForImageClassificationWithTeacher": ("AutoModelForImageClassification", "image"),
    "ForSequenceClassification": ("AutoModelForSequenceClassification", "sequence"),
    "ForQuestionAnswering": ("AutoModelForQuestionAnswering", "question"),
    "ForCausalLM": ("AutoModelForCausalLM", "causal"),
    "LMHeadModel": ("AutoModelForCausalLM", "causal"),
    "ForObjectDetection": ("AutoModelForObjectDetection", "boxes"),
    "ForConditionalGeneration": ("", "writing"),
    "MTModel": ("", "writing"),
    "EncoderDecoderModel": ("", "writing"),
}
"""Endings of class names in `config.architectures` -> the auto class that loads them, and what they do.

What loads a model that writes text depends on what it is given (`writing.AUTO`).
"""


def load_huggingface(name: str, *, pickles: bool = False) -> Loaded:
    """A model for images, sequences, questions, next tokens or whole texts, with its processor or tokenizer."""
    transformers = _transformers(name)
    with silent():
        return _load(name, transformers, pickles=pickles)


def _load(name: str, transformers: Any, *, pickles: bool) -> Loaded:  # noqa: ANN401
    config = _fetch(name, lambda: transformers.AutoConfig.from_pretrained(name, trust_remote_code=False))
    _check_depth(name, config)
    auto, task = _task(name, config)
    _check_shards(Path(name))
    source = reads(config) if task == "writing" else None
    model = _model(name, getattr(transformers, AUTO[source] if source else auto), pickles=pickles)
    if task == "image":
        return _image_model(name, model, transformers)
    if task == "boxes":
        return _detector(name, model, transformers)
    if source is not None:
        return writer(name, model, source, lambda kind: _part(name, transformers, kind))
    tokenizer = _fetch(name, lambda: transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False))
    classes = model.get_output_embeddings().weight.shape[0] if task == "causal" else int(config.num_labels)  # pyright: ignore
    names = _label_names(config) if task == "sequence" else None
    return Loaded(model, name, "text", task, classes, names, tokenizer=tokenizer)


def _detector(name: str, model: nn.Module, transformers: Any) -> Loaded:  # noqa: ANN401
    """A model that finds objects in images of any size."""
    from vitrail.models.loading.images import picture_of

    processor, names = _part(name, transformers, "AutoImageProcessor"), _label_names(model.config)

    def preprocess(image: Any, *, squash: bool = False) -> Sample:  # noqa: ANN401
        pixels = processor(images=image, return_tensors="pt")["pixel_values"]
        return Sample({"pixel_values": pixels}, picture_of(pixels, processor))

    return Loaded(model, name, "image", "boxes", len(names), names, preprocess=preprocess, processor=processor)


def _part(name: str, transformers: Any, kind: str) -> Any:  # noqa: ANN401
    """A part that comes with a model: its tokenizer, or what prepares pictures or sounds."""
    return _fetch(name, lambda: getattr(transformers, kind).from_pretrained(name, trust_remote_code=False))


def _transformers(name: str) -> Any:  # noqa: ANN401
    if (name.startswith((".", os.sep)) or name.endswith(os.sep)) and not Path(name).is_dir():
        raise ModelError(f"there is no model at {name}.")
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            f"{name!r} is no timm name, and Hugging Face models need the package transformers: "
            "pip install 'vitrail[huggingface]'"
        ) from error
    return transformers


def is_cached(name: str) -> bool:
    """Whether the model's config is in the cache of the hub."""
    try:
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except (ImportError, ValueError):
        return False


def _fetch(name: str, get: Callable[[], T]) -> T:
    """What the library gives, or one line that says why it does not."""
    try:
        return get()
    except Exception as error:  # the hub's errors have no common root
        reason = " ".join(str(error).split()) or type(error).__name__
        where = "this folder" if Path(name).is_dir() else "timm's names, the folders here, the cache or the hub"
        raise ModelError(f"{name!r} could not be loaded from {where}: {reason}") from error


def _check_depth(name: str, config: Any) -> None:  # noqa: ANN401
    """Refuse a config whose model would take hours to build, before anything is built."""
    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise ModelError(f"the config of {name!r} asks for {layers:,} layers; at most {MOST_LAYERS:,} are loaded.")


MOST_LAYERS = 2_000


def _check_shards(folder: Path) -> None:
    """Refuse an index of weights that leads out of its folder, before any of its files is opened."""
    for index in sorted(folder.glob("*.index.json")) if folder.is_dir() else ():
        try:
            files = list(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(f"{index} is no index of weights: it needs weight_map, a file for each tensor.") from error
        wrong = next((file for file in files if not isinstance(file, str) or Path(file).name != file), None)
        if wrong is not None:
            raise ModelError(f"{index} names the file {wrong!r}, which does not lie in its folder.")


def _task(name: str, config: Any) -> tuple[str, str]:  # noqa: ANN401
    given = config.architectures or []
    architectures = [str(one) for one in ([given] if isinstance(given, str) else given)]
    for architecture in architectures:
        for ending, found in TASKS.items():
            if architecture.endswith(ending):
                return found
    raise ModelError(
        f"{name!r} is {', '.join(architectures) or 'of no named architecture'}, but only classes that end in "
        f"{', '.join(TASKS)} have logits to explain. Fine-tune or choose one of those."
    )


def _model(name: str, auto: Any, *, pickles: bool) -> nn.Module:  # noqa: ANN401
    safe = None if pickles else True
    model, info = _fetch(
        name,
        lambda: auto.from_pretrained(
            name,
            trust_remote_code=False,
            use_safetensors=safe,
            weights_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below; transformers only says that there are some
        ),
    )
    for tensor, held, needed in sorted(info["mismatched_keys"]):
        raise ModelError(
            f"the weights of {name!r} do not fit its config: {tensor} has shape {list(held)}, but the config asks for "
            f"{list(needed)}."
        )
    if missing := sorted(info["missing_keys"]):
        # transformers would fill them with random numbers and explain those.
        raise ModelError(f"the weights of {name!r} lack {len(missing)} tensors of the model, such as {missing[0]}.")
    return model.eval()


def _label_names(config: Any) -> tuple[str, ...]:  # noqa: ANN401
    return tuple(str(config.id2label.get(i, f"LABEL_{i}")) for i in range(int(config.num_labels)))


def _image_model(name: str, model: nn.Module, transformers: Any) -> Loaded:  # noqa: ANN401
    from vitrail.models.loading.images import picture_of, within_ratio

    processor = _fetch(name, lambda: transformers.AutoImageProcessor.from_pretrained(name, trust_remote_code=False))
    config: Any = model.config
    size = _size(name, config, processor)
    _check_result(name, processor)

    def preprocess(image: Any, *, squash: bool = False) -> Sample:  # noqa: ANN401
        given: dict[str, Any] = {}
        if squash:
            image, given = image.resize((size[1], size[0])), {"do_resize": False, "do_center_crop": False}
        pixels = _processed(name, processor, within_ratio(image), given)
        return Sample({"pixel_values": pixels}, picture_of(pixels, processor))

    names = _label_names(config)
    return Loaded(
        model, name, "image", "image", len(names), names, preprocess=preprocess, image_size=size, processor=processor
    )


def _size(name: str, config: Any, processor: Any) -> tuple[int, int]:  # noqa: ANN401
    """Height and width of what the model sees."""
    side = getattr(config, "image_size", None)
    if isinstance(side, int):
        return side, side
    if side is not None:
        return int(side[0]), int(side[1])
    given: Any = getattr(processor, "crop_size", None) or getattr(processor, "size", None) or {}
    if "height" not in given or "width" not in given:
        raise ModelError(f"neither the config nor the image processor of {name!r} says how large its images are.")
    return int(given["height"]), int(given["width"])


def _check_result(name: str, processor: Any) -> None:  # noqa: ANN401
    """Refuse a processor whose pictures would have no pixels or would fill the memory, by the sizes it names."""
    for what in ("size", "crop_size"):
        given: Any = getattr(processor, what, None)
        if not given or not getattr(processor, "do_resize" if what == "size" else "do_center_crop", True):
            continue
        sides = [given.get(side) for side in ("height", "width", "shortest_edge", "longest_edge")]
        named = [side for side in sides if side is not None]
        if any(not 0 < side <= LONGEST_SIDE for side in named):
            raise ModelError(
                f"the image processor of {name!r} gives pictures a {what} of {dict(given)}; sides have 1 to "
                f"{LONGEST_SIDE:,} pixels."
            )


LONGEST_SIDE = 8_192


def _processed(name: str, processor: Any, image: Any, given: dict[str, Any]) -> torch.Tensor:  # noqa: ANN401
    """The pixels that a processor makes of a picture, or what it says."""
    try:
        pixels = processor(images=image, return_tensors="pt", **given)["pixel_values"]
    except Exception as error:  # processors check little, and fail in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"the image processor of {name!r} failed: {type(error).__name__}: {reason}") from error
    if not isinstance(pixels, torch.Tensor) or pixels.ndim != 4:
        shape = list(getattr(pixels, "shape", ()))
        raise ModelError(f"the image processor of {name!r} gives pixels of shape {shape}, not [b, channels, h, w].")
    return pixels
