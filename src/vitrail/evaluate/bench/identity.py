"""The identity of a run: a hash of everything of a model and of a data set that decides a number.

Every weight of a model is hashed. Data sets are hashed example by example, as they are read: the bytes of a picture's
file where it has one, else its pixels; texts, labels, masks, boxes, rationales and answers. Only hashes are kept, so a
set of any size fits into memory.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, astuple
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.attribution import versions
from vitrail.errors import InputError
from vitrail.evaluate.data.examples import Dataset, Example, ImageExample
from vitrail.evaluate.data.pictures import PictureFile
from vitrail.models.loading import Loaded

CHUNK = 1 << 22
"""So many values of a tensor are copied from its device at a time."""
FURTHER_PACKAGES = ("numpy", "scipy", "pillow", "tokenizers", "torchvision")
"""Beside those of every result: what decodes and resizes pictures, cuts texts into tokens and computes metrics."""
UNIMPORTANT = {"_name_or_path", "name_or_path", "transformers_version"}
UNREADABLE = b"\nunreadable"
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def library_versions() -> dict[str, str]:
    """The versions of all libraries that a stored number depends on."""
    found = dict(versions())
    for package in FURTHER_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def model_identity(loaded: Loaded) -> dict[str, str]:
    """The hash of all weights and buffers, and of all else that decides what the model makes of an input."""
    return {"hash": weights_hash(loaded.model), "setup": setup_hash(loaded)}


def weights_hash(model: nn.Module) -> str:
    """A hash of the names, shapes, dtypes and values of all parameters and buffers: one changed weight changes it."""
    digest = hashlib.sha256()
    for name, x in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tuple(x.shape)} {x.dtype}\n".encode())
        for part in x.detach().reshape(-1).split(CHUNK):
            digest.update(_bytes(part))
    return digest.hexdigest()[:16]


def _bytes(values: Tensor) -> memoryview:
    return values.cpu().contiguous().view(torch.uint8).numpy().data


def setup_hash(loaded: Loaded) -> str:
    """A hash of the model's modules, config and classes, and of its image processor or tokenizer."""
    config = getattr(loaded.model, "config", None)
    known = {
        "modules": ADDRESS.sub("", repr(loaded.model)),
        "config": config.to_dict() if hasattr(config, "to_dict") else str(config),  # pyright: ignore
        "classes": loaded.class_names,
        "image_size": loaded.image_size,
        "processor": _processor(loaded.processor),
        "tokenizer": _tokenizer(loaded.tokenizer),
    }
    return _hashed(_without_names(known))


def _processor(processor: Any) -> Any:  # noqa: ANN401
    """The settings of the image processor. Those of an embedded model belong to the version of vitrail."""
    if processor is None:
        return None
    return processor.to_dict() if hasattr(processor, "to_dict") else asdict(processor)


def _tokenizer(tokenizer: Any) -> Any:  # noqa: ANN401
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items())
    return [type(tokenizer).__name__, rules, tokenizer.special_tokens_map, tokenizer.padding_side]


def _without_names(value: Any) -> Any:  # noqa: ANN401
    """The same without the places a model was loaded from, which decide nothing."""
    if isinstance(value, Mapping):
        return {str(name): _without_names(x) for name, x in value.items() if name not in UNIMPORTANT}
    return [_without_names(x) for x in value] if isinstance(value, (list, tuple)) else value


def _hashed(value: Any) -> str:  # noqa: ANN401
    text = json.dumps(value, sort_keys=True, default=lambda x: ADDRESS.sub("", repr(x)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def set_hash(dataset: Dataset[Any]) -> str:
    """A hash of the keys of all examples in their order and of the names of classes, without reading an example."""
    digest = hashlib.sha256()
    for names in (dataset.classes, dataset.mask_classes):
        digest.update(json.dumps(sorted(names.items())).encode())
    for key in dataset.keys:
        digest.update(f"\n{key}".encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]


def example_hash(example: Example) -> str:
    """A hash of everything that is measured of an example."""
    digest = hashlib.sha256(type(example).__name__.encode())
    if isinstance(example, ImageExample):
        _add_picture(digest, example)
    else:
        digest.update(json.dumps(astuple(example)).encode())
    return digest.hexdigest()[:32]


def _add_picture(digest: Any, example: ImageExample) -> None:  # noqa: ANN401
    boxes = [astuple(box) for box in example.boxes]
    digest.update(json.dumps([example.key, example.label, boxes]).encode())
    for read in (_picture, _mask):
        try:
            read(digest, example)
        except InputError:  # a damaged example is stored with its reason, so that it is damaged is part of its content
            digest.update(UNREADABLE)


def _picture(digest: Any, example: ImageExample) -> None:  # noqa: ANN401
    if isinstance(example.open_image, PictureFile):
        digest.update(b"\nfile\n")
        digest.update(example.open_image.stored())
        return
    pixels = np.ascontiguousarray(example.image)
    digest.update(f"\npixels {pixels.shape} {pixels.dtype}\n".encode())
    digest.update(pixels)


def _mask(digest: Any, example: ImageExample) -> None:  # noqa: ANN401
    mask = example.mask
    if mask is not None:
        digest.update(f"\nmask {tuple(mask.shape)}\n".encode())
        digest.update(np.ascontiguousarray(mask.numpy().astype(np.int32)))


def hash_of(dataset: Dataset[Any], number: int) -> str:
    """The hash of the example at a place of the source, also where it cannot be read."""
    try:
        return example_hash(dataset.read(number))
    except InputError:
        return hashlib.sha256(UNREADABLE).hexdigest()[:32]
