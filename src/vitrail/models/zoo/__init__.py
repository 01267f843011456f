"""Two small models of our own training, shipped inside the package: no download, no account.

`load("photo")` is a ViT that knows the ten classes of Imagenette; `load("sentiment")` is a BERT that tells praise
from complaint. Both are plain Hugging Face models. Their cards lie in `vitrail/models/zoo/cards`.
`example("golf_ball")` is the path of a picture to try them on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.errors import InputError, MissingExtraError, ModelError, suggest
from vitrail.models.silence import silent
from vitrail.models.zoo.files import read_checked, read_json
from vitrail.models.zoo.int8 import dequantise
from vitrail.models.zoo.sentiment import make_tokeniser

__all__ = ["EXAMPLES", "NAMES", "Embedded", "example", "load"]

EXAMPLES = {
    "golf_ball": "Golf ball: rendered by us, Apache-2.0.",
    "temple": "Temple: Daniel Büchele, CC BY 2.0, cut to a square.",
}
"""Name -> where the picture comes from. They lie in `vitrail/apps/demo/pictures`."""


@dataclass(frozen=True)
class Embedded:
    """An embedded model, ready to be called: `model(preprocess(photo))`, `model(**preprocess(sentences))`.

    `vitrail.explain` takes it as it is, with a picture, a path or a text: `vitrail.explain(photo, "cat.jpg")`.
    """

    name: str
    model: nn.Module
    preprocess: Callable[[Any], Any]
    class_names: tuple[str, ...]

    def __repr__(self) -> str:
        """One line."""
        return f"Embedded({self.name!r}, classes: {', '.join(self.class_names)})"


def example(name: str = "golf_ball") -> Path:
    """The path of a picture that comes with the package: `golf_ball` or `temple`."""
    if name not in EXAMPLES:
        raise InputError(f"there is no example {name!r}. {suggest(name, EXAMPLES)}")
    return Path(str(resources.files("vitrail.apps.demo"))) / "pictures" / f"{name}.jpg"


def load(name: str) -> Embedded:
    """The embedded model of this name, in single precision on the CPU, in evaluation mode."""
    if name not in LOADERS:
        raise ModelError(f"there is no embedded model {name!r}. {suggest(name, LOADERS)}")
    try:
        with silent():
            return LOADERS[name]()
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the embedded models need {error.name}, which is not installed. Run: pip install 'vitrail[all]'"
        ) from error


def load_photo() -> Embedded:
    """The ViT for photographs."""
    from transformers import ViTConfig, ViTForImageClassification

    from vitrail.models.zoo.photo import preprocess

    model = _build("photo", ViTForImageClassification, ViTConfig)
    return Embedded("photo", model, preprocess, _class_names(model))


def load_sentiment() -> Embedded:
    """The BERT for sentences."""
    from transformers import BertConfig, BertForSequenceClassification

    model = _build("sentiment", BertForSequenceClassification, BertConfig)
    tokenise = make_tokeniser(limit=model.config.max_position_embeddings)
    return Embedded("sentiment", model, tokenise, _class_names(model))


def _build(name: str, model_class: Any, config_class: Any) -> Any:  # noqa: ANN401 - Hugging Face classes
    """A Hugging Face model with the shipped weights, every one of them and no other."""
    from safetensors.torch import load as parse

    config = config_class.from_dict(read_json(f"{name}/config.json"))
    weights = dequantise(parse(read_checked(f"{name}/model.safetensors")))
    # Not load_state_dict: from_pretrained also translates the names of a checkpoint into those of this version.
    model, info = model_class.from_pretrained(
        None, config=config, state_dict=weights, dtype=torch.float32, output_loading_info=True
    )
    if info["missing_keys"] or info["unexpected_keys"]:
        raise ModelError(
            f"the weights of {name!r} do not fit this version of transformers: missing {sorted(info['missing_keys'])}, "
            f"unknown {sorted(info['unexpected_keys'])}."
        )
    model.config.name_or_path = f"vitrail.models.zoo:{name}"
    return model.eval()


def _class_names(model: Any) -> tuple[str, ...]:  # noqa: ANN401 - a Hugging Face model
    return tuple(model.config.id2label[number] for number in range(model.config.num_labels))


LOADERS: dict[str, Callable[[], Embedded]] = {"photo": load_photo, "sentiment": load_sentiment}
NAMES = tuple(LOADERS)
