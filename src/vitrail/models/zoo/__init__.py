"""Three small models that we trained, shipped inside the package: no download, no account.

`load("photo")` is a ViT that knows the ten classes of Imagenette; `load("sentiment")` is a BERT that distinguishes
praise from complaint; `load("lookup")` is a tiny Llama that looks up in its context what a person has. All are plain
Hugging Face models. `load_plain` gives the first two as torch modules of our own. These are used wherever a model is
given by its name (`vitrail.explain("photo", ...)`, the command line, the page), because importing transformers takes
longer than an explanation. Their cards are in `vitrail/models/zoo/cards`.
`example("golf_ball")` is the path of a picture to try them on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.errors import InputError, MissingExtraError, ModelError, suggest
from vitrail.models import PICTURES, picture_path, silent
from vitrail.models.zoo.files import REPAIR, dequantise, read_checked, read_json
from vitrail.models.zoo.modules import BertForSequenceClassification, Config, ViTForImageClassification
from vitrail.models.zoo.texts import Tokenise, WordPieces, build_lookup, make_reader, make_tokeniser

__all__ = ["EXAMPLES", "NAMES", "Embedded", "example", "load", "load_plain"]

EXAMPLES = PICTURES


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
    if not isinstance(name, str) or name not in EXAMPLES:
        raise InputError(f"there is no example {name!r}. {suggest(name, EXAMPLES)}")
    return picture_path(name)


def load(name: str) -> Embedded:
    """The embedded model of this name as a Hugging Face model, in single precision on the CPU, in evaluation mode."""
    plain = load_plain(name)
    read = plain.preprocess
    try:
        model = _huggingface(plain)
        if isinstance(read, Tokenise) and isinstance(read.tokenizer, WordPieces):
            with silent():
                read = replace(read, tokenizer=read.tokenizer.full)
        return replace(plain, model=model, preprocess=read)
    except ModuleNotFoundError as error:
        raise _missing(error) from error


def load_plain(name: str) -> Embedded:
    """The same model as a plain torch module where there is one: nothing of transformers is imported."""
    if not isinstance(name, str) or name not in LOADERS:
        raise ModelError(f"there is no embedded model {name!r}. {suggest(name, LOADERS)}")
    try:
        return LOADERS[name]()
    except ModuleNotFoundError as error:
        raise _missing(error) from error


def _missing(error: ModuleNotFoundError) -> MissingExtraError:
    return MissingExtraError(
        f"the embedded models need {error.name}, which is not installed. Run: pip install 'vitrail[all]'"
    )


def _huggingface(plain: Embedded) -> nn.Module:
    """The weights of a plain model in the class of transformers that has the same name."""
    import transformers

    with silent():  # what it imports now writes log lines
        kind = getattr(transformers, type(plain.model).__name__)
    if isinstance(plain.model, kind):
        return plain.model
    config = kind.config_class.from_dict(read_json(f"{plain.name}/config.json"))
    with silent():
        # Not load_state_dict: from_pretrained also translates the names of a checkpoint into those of this version.
        model, info = kind.from_pretrained(
            None, config=config, state_dict=plain.model.state_dict(), dtype=torch.float32, output_loading_info=True
        )
    if info["missing_keys"] or info["unexpected_keys"]:
        raise ModelError(
            f"the weights of {plain.name!r} do not fit this version of transformers: missing "
            f"{sorted(info['missing_keys'])}, unknown {sorted(info['unexpected_keys'])}."
        )
    model.config.name_or_path = f"vitrail.models.zoo:{plain.name}"
    return model.eval()


def load_photo() -> Embedded:
    """The ViT for photographs."""
    from vitrail.models.zoo.photo import preprocess

    return _build("photo", ViTForImageClassification, lambda config: preprocess)


def load_sentiment() -> Embedded:
    """The BERT for sentences."""
    return _build(
        "sentiment", BertForSequenceClassification, lambda config: make_tokeniser(config.max_position_embeddings)
    )


def load_lookup() -> Embedded:
    """The language model that looks up what a person has; its classes are its tokens."""
    with silent():  # importing transformers writes log lines
        model = build_lookup()
    read = make_reader(limit=model.config.max_position_embeddings)
    words = sorted(read.tokenizer.get_vocab().items(), key=lambda item: item[1])
    return Embedded("lookup", model, read, tuple(word for word, _ in words))


def _build(
    name: str, kind: Callable[[Config], nn.Module], reader: Callable[[Config], Callable[[Any], Any]]
) -> Embedded:
    """A model with the shipped weights, every one of them and no other."""
    from safetensors.torch import load as parse

    config = Config.of(read_json(f"{name}/config.json"), name=name)
    weights = dequantise(parse(read_checked(f"{name}/model.safetensors")))
    with torch.device("meta"):
        model = kind(config)
    expected = set(model.state_dict())
    if expected != set(weights):
        raise ModelError(
            f"the weights of {name!r} do not fit the model: missing {sorted(expected - set(weights))}, "
            f"unknown {sorted(set(weights) - expected)}. {REPAIR}"
        )
    model.load_state_dict(weights, assign=True)
    names = tuple(config.id2label[number] for number in range(config.num_labels))
    return Embedded(name, model.eval(), reader(config), names)


LOADERS: dict[str, Callable[[], Embedded]] = {"photo": load_photo, "sentiment": load_sentiment, "lookup": load_lookup}
NAMES = tuple(LOADERS)
