"""Objects that are accepted as a model, and as its inputs.

A model is a module, or an object that holds one: a model of `vitrail.zoo`, what `vitrail.models.loading.load` gives, a
pipeline of transformers, a model of sentence-transformers. Objects that bring their preprocessing also take a picture,
the name of its file, an array, a text, or a list of them. Everything else is refused with what to give instead.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.errors import InputError, TargetError, as_path
from vitrail.models import MODELS
from vitrail.models.texts import TokenNames, check_text
from vitrail.targets import Target, answer_span, continuation


class FromFeatures(nn.Module):
    """A model of sentence-transformers, called with keywords like any other; it takes and gives a dictionary itself."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.train(inner.training)

    @property
    def config(self) -> Any:  # noqa: ANN401
        """That of the model inside."""
        return getattr(self.inner, "config", None)

    @property
    def embeds(self) -> bool:
        """Return True if the model gives an embedding and no scores."""
        return "CrossEncoder" not in _bases(self.inner)

    def forward(self, **features: Any) -> Any:  # noqa: ANN401
        """The scores of a pair of texts, or the embedding of a text."""
        out = self.inner(dict(features))
        return out["sentence_embedding" if self.embeds else "scores"]


Preprocess = Callable[[Any], tuple[Tensor | None, Any]]


@dataclass(frozen=True)
class Prepared:
    """Inputs as the module takes them, and what is known beside them.

    Args:
        pictures: what the model saw, one for each sample, where pictures were given that are not tensors.
        photographs: what they were made of: paths, pictures or arrays.
        class_names: by class index, where the model says them.
        multi_label: whether the classes are independent of one another.
        preprocess: what makes of a photograph the inputs of the module and the picture it sees, where that is known.
        target: what is explained where no target is named, such as the answer that the model wrote.
        find_class: gives the class, the token or the word of an answer that a text names.
    """

    inputs: Any
    pictures: tuple[Any, ...] | None = None
    class_names: Sequence[str] | Mapping[int, str] | None = None
    multi_label: bool = False
    preprocess: Preprocess | None = None
    photographs: tuple[Any, ...] | None = None
    target: Target | None = None
    find_class: Callable[[str], int | Target] | None = None


WRITES_TOKENS = ("causal", "text-generation")
"""Tasks of `Loaded` and of pipelines whose classes are tokens."""


def prepared(model: object, inputs: object) -> Prepared:
    """The inputs, preprocessed where the model brings its preprocessing and they are not tensors already."""
    if isinstance(inputs, Prepared):
        return inputs
    holder = _holder_of(model)
    config = getattr(holder, "config", None) or getattr(getattr(holder, "model", None), "config", None)
    names = _class_names(holder, config)
    multi = getattr(config, "problem_type", "") == "multi_label_classification"
    if isinstance(inputs, (Tensor, Mapping)):
        module = holder if isinstance(holder, nn.Module) else getattr(holder, "model", holder)
        pictures = getattr(module, "main_input_name", "") == "pixel_values" or hasattr(module, "patch_embed")
        if pictures and isinstance(inputs, Tensor) and inputs.ndim == 3:  # elsewhere three axes are embeddings
            raise InputError(
                f"this model takes pictures [b, 3, h, w], but the tensor has shape {tuple(inputs.shape)}: is the batch "
                "axis missing? Add it with x[None]."
            )
        known = None if isinstance(holder, nn.Module) else _preprocess_of(holder)
        find = partial(_class_of, holder, names)
        return Prepared(inputs, class_names=names, multi_label=multi, preprocess=known, find_class=find)
    if _is_own(holder, "Loaded") and getattr(holder, "task", "") in ("writing", "question"):
        return _written(holder, inputs)
    several = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if not several:
        raise InputError("the list of inputs is empty: there is nothing to explain.")
    show = next((show for holds, show in HOLDERS.items() if holds(holder)), None)
    if show is None:
        kind, short = type(inputs).__name__, isinstance(inputs, (str, Path)) and len(str(inputs)) < 60
        raise InputError(
            f"inputs must be a tensor or a mapping of tensors, not {kind} ({repr(inputs) if short else f'a {kind}'}). "
            "Images: a preprocessed tensor [b, 3, h, w]. Text: what the tokenizer returns with return_tensors='pt'. Or "
            "load the model with its preprocessing, vitrail.load(name), and pass the path, picture or "
            "text itself."
        )
    made, pictures = show(holder, several)
    known = _preprocess_of(holder)
    find = partial(_class_of, holder, names)
    if not pictures:
        return Prepared(made, None, names, multi, known, find_class=find)
    return Prepared(made, tuple(pictures), names, multi, known, tuple(several), find_class=find)


def _class_names(holder: Any, config: Any) -> Sequence[str] | Mapping[int, str] | None:  # noqa: ANN401
    """The names of the classes where the model says them; of a language model whose tokenizer is known, its tokens."""
    tokenizer = getattr(holder, "tokenizer", None)
    if tokenizer is not None and getattr(holder, "task", "") in WRITES_TOKENS:
        return TokenNames(tokenizer)
    named = getattr(holder, "class_names", None), getattr(config, "id2label", None)
    return next((found for found in named if isinstance(found, (tuple, Mapping))), None)


def named_target(given: Prepared, target: Any) -> Any:  # noqa: ANN401
    """The target that is named: classes by their names, and what is explained of such inputs where there is none."""
    if target is None:
        return given.target
    if isinstance(target, str):
        return _named(given, target)
    if isinstance(target, (list, tuple)) and any(isinstance(one, str) for one in target):
        return [_named(given, one) if isinstance(one, str) else one for one in target]
    return target


def _named(given: Prepared, name: str) -> int | Target:
    if given.find_class is None:
        raise TargetError(f"the target {name!r} is a text, but the names of the classes are not known: give an index.")
    return given.find_class(name)


def _class_of(holder: Any, names: Sequence[str] | Mapping[int, str] | None, wanted: str) -> int:  # noqa: ANN401
    """The class of a name, or the token of a language model whose tokenizer is known."""
    from vitrail.models.loading.loaded import find_class, find_token

    if _is_own(holder, "Loaded"):
        return holder.find_class(wanted)
    inner = getattr(holder, "model", holder)
    if generates(inner) or getattr(holder, "name", "") == "lookup":
        tokenizer = getattr(holder, "tokenizer", None) or getattr(
            getattr(holder, "preprocess", None), "tokenizer", None
        )
        if tokenizer is None:
            raise TargetError(
                f"the target {wanted!r} is a text, but the tokenizer of this language model is not known: give the "
                "token's id, or the pair (model, tokenizer) as the model."
            )
        return find_token(wanted, tokenizer, len(tokenizer), names_first=True)
    if isinstance(names, Mapping):
        names = [str(names.get(i, f"class {i}")) for i in range(max(names, default=-1) + 1)] or None
    known = names if names is None else list(names)
    count = len(known or ()) or int(getattr(getattr(inner, "config", None), "num_labels", 0) or 0)
    return find_class(wanted, known, count, names_first=True)


def _written(loaded: Any, inputs: object) -> Prepared:  # noqa: ANN401
    """The inputs of a model that writes a text about its source, with its answer; or of a question about a text."""
    from vitrail.models.loading.huggingface import answer_words

    both: tuple[Any, ...] = tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)
    wants = {"text": "a text", "sound": "the path of a .wav file", "picture": "a picture"}.get(loaded.source)
    wants = wants or ("(picture, question)" if loaded.write is not None else "(question, context)")
    if len(both) != (2 if wants.startswith("(") else 1):
        raise InputError(f"{loaded.name} is given {wants}, one at a time, and not {len(both)} inputs.")
    if loaded.write is None:
        question, context = both
        made = loaded.text(check_text(question), check_text(context)).inputs
        return Prepared(made, target=answer_span(), find_class=loaded.find_class)
    first: Any = both[0]
    if loaded.source in ("picture", "question"):
        first = as_image(first)
    elif loaded.source == "sound":
        first = as_path(first, "a sound")
    sample = loaded.write(first, *(check_text(one) for one in both[1:]))
    words = answer_words(loaded, sample)
    if not words:
        raise InputError(f"{loaded.name} wrote no word for this input, so there is nothing to explain.")
    whole = continuation(words[0][1][0], words[-1][1][1])

    def find(wanted: str) -> Target:
        places = [place for word, place in words if word.casefold() == wanted.strip().casefold()]
        if not places:
            raise TargetError(f"{wanted!r} is no word of the answer, which is: {' '.join(word for word, _ in words)}.")
        return continuation(*places[0])

    picture = None if sample.picture is None else (sample.picture,)
    return Prepared(sample.inputs, picture, target=whole, find_class=find)


def opened(model: object, device: str) -> object:
    """The model of a name, ready on the device."""
    if not isinstance(model, (str, Path)):
        raise InputError(
            f"device={device!r} is for a model that is given by its name. Move your own: model.to({device!r})."
        )
    from vitrail.models.loading import load

    return load(model, device=device)


def _holder_of(model: Any) -> Any:  # noqa: ANN401
    """The model as an object: the one of a name, or a pair of a model and its processor as one."""
    if isinstance(model, str) and model in MODELS:
        return _embedded(model)
    if isinstance(model, (str, Path)):
        return _loaded(str(model), _files_of(model))
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], nn.Module):
        from vitrail.models.loading.huggingface import loaded_of

        return loaded_of(*model)
    return model


@lru_cache(maxsize=1)
def _loaded(name: str, files: Hashable) -> Any:  # noqa: ANN401
    """The model of a name, which is kept until another one is named or its files have changed."""
    from vitrail.models.loading import load

    return load(name)


def _files_of(name: str | Path) -> Hashable:
    """Return a value that changes when the files of a model change; None for one that is no file or folder."""
    place = Path(name)
    try:
        files = sorted(place.iterdir()) if place.is_dir() else [place] if place.is_file() else []
        return tuple((str(one), one.stat().st_mtime_ns, one.stat().st_size) for one in files)
    except (OSError, ValueError):  # a name that no file can have
        return None


def _preprocess_of(holder: object) -> Preprocess | None:
    """The function by which a model that brings its preprocessing sees a photograph; it does not hold the model."""
    if _is_own(holder, "Loaded"):
        found = getattr(holder, "preprocess", None)
        return None if found is None else partial(seen_by_loaded, found)
    if _is_own(holder, "Embedded") and getattr(holder, "name", "") == "photo":
        return _seen_by_photo
    return None


def seen_by_loaded(preprocess: Callable[[Any], Any], image: Any) -> tuple[Tensor | None, Any]:  # noqa: ANN401
    """Return the inputs that a preprocessing makes of a photograph, and the picture that the model sees."""
    sample = preprocess(image)
    found = sample.inputs if isinstance(sample.inputs, Tensor) else sample.inputs.get("pixel_values")
    return found, sample.picture


def _seen_by_photo(image: Any) -> tuple[Tensor | None, Any]:  # noqa: ANN401
    from vitrail.models.zoo.photo import crop, to_input

    seen = crop(image)
    return to_input(seen), seen


def _show_loaded(loaded: Any, several: Sequence[object]) -> tuple[Any, list[Any]]:  # noqa: ANN401
    """A batch as an object of `vitrail.models.loading` takes it."""
    if loaded.kind == "text":
        return loaded.texts([check_text(text) for text in several]), []
    samples = [loaded.image(as_image(one)) for one in several]
    made, pictures = [sample.inputs for sample in samples], [sample.picture for sample in samples]
    if isinstance(made[0], Tensor):
        return torch.cat(made), pictures
    return {name: torch.cat([one[name] for one in made]) for name in made[0]}, pictures


def _show_embedded(found: Any, several: Sequence[object]) -> tuple[Any, list[Any]]:  # noqa: ANN401
    """A batch as a model of `vitrail.zoo` takes it."""
    if found.name != "photo":
        return found.preprocess([check_text(text) for text in several]), []
    from vitrail.models.zoo.photo import crop, to_input

    pictures = [crop(as_image(one)) for one in several]
    return torch.cat([to_input(picture) for picture in pictures]), pictures


def _show_pipeline(pipeline: Any, several: Sequence[object]) -> tuple[Any, list[Any]]:  # noqa: ANN401
    """A batch by the tokenizer or the image processor of a pipeline."""
    device = next(pipeline.model.parameters()).device
    if pipeline.image_processor is not None:
        pictures = [as_image(one) for one in several]
        return dict(pipeline.image_processor(images=pictures, return_tensors="pt").to(device)), []
    texts = [check_text(text) for text in several]
    options = {"return_tensors": "pt", "padding": len(texts) > 1, "return_special_tokens_mask": True}
    return pipeline.tokenizer(texts, **options).to(device), []


HOLDERS: dict[Callable[[object], bool], Callable[[Any, Sequence[object]], tuple[Any, list[Any]]]] = {
    lambda x: _is_own(x, "Loaded"): _show_loaded,
    lambda x: _is_own(x, "Embedded"): _show_embedded,
    lambda x: "Pipeline" in _bases(x) and getattr(x, "image_processor", x) is not x: _show_pipeline,
}
"""Objects that bring their preprocessing, and how each is shown a batch."""


def as_image(given: object) -> Any:  # noqa: ANN401
    """A PIL image of a picture, of the name of its file, or of an array [h, w, 3]."""
    from PIL import Image

    from vitrail.models.loading.images import open_image, reading, to_rgb, upright

    if isinstance(given, (str, Path)):
        return open_image(as_path(given, "an image"))
    if isinstance(given, Image.Image):
        with reading():  # it was opened, but nothing was read of it yet
            return to_rgb(upright(given))
    if isinstance(given, Tensor):
        raise InputError("a list of tensors is no batch: stack them with torch.stack, as the model takes them.")
    if isinstance(given, np.ndarray):
        return Image.fromarray(_as_bytes(given)).convert("RGB")
    raise InputError(f"a picture is a PIL image, a path or an array [h, w, 3], not {type(given).__name__}.")


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """The array as 8-bit numbers: real numbers from 0 to 1 are scaled."""
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or not array.size:
        raise InputError(f"an array is a picture [h, w] or [h, w, 3], but this one has shape {list(array.shape)}.")
    array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "f" and np.isfinite(array).all() and 0 <= array.min() <= array.max() <= 1:
        return (array * 255).round().astype(np.uint8)
    raise InputError(
        f"an array of pixels holds 8-bit numbers, or real numbers from 0 to 1, but this one is {array.dtype} from "
        f"{array.min():g} to {array.max():g}."
    )


@cache
def _embedded(name: str) -> Any:  # noqa: ANN401
    from vitrail.models import zoo

    return zoo.load_plain(name)


def taken(model: object) -> nn.Module:
    """The module to explain, or an error that says what was given and what to give instead."""
    if isinstance(model, str) and model in MODELS:
        return _embedded(model).model
    if isinstance(model, (str, Path)):
        return _loaded(str(model), _files_of(model)).model
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], nn.Module):
        return model[0]
    if isinstance(model, nn.Module):
        sentences = any(base.__module__.startswith("sentence_transformers") for base in type(model).__mro__)
        return FromFeatures(model) if sentences and "BaseModel" in _bases(model) else model
    inner = getattr(model, "model", None)
    if _is_own(model, "Embedded", "Loaded") or ("Pipeline" in _bases(model) and isinstance(inner, nn.Module)):
        return taken(inner)
    raise InputError(f"a model is a torch.nn.Module, but this is {_what(model)}")


def check_target(own: nn.Module, target: object) -> None:
    """Refuse a class of a model that gives an embedding: its numbers are no classes."""
    if isinstance(own, FromFeatures) and own.embeds and isinstance(target, Target):
        raise TargetError(
            f"{type(own.inner).__name__} gives an embedding, which has no classes to explain. Explain a function of "
            "the embedding that gives one value per text, such as the likeness to another: target=lambda embedding: "
            "torch.nn.functional.cosine_similarity(embedding, other), with other = model.encode([text], "
            "convert_to_tensor=True)."
        )


def _bases(x: object) -> set[str]:
    return {base.__name__ for base in type(x).__mro__}


def _is_own(x: object, *names: str) -> bool:
    """Return True if an object is of a class of ours that has one of these names, without importing the class."""
    return type(x).__name__ in names and any(base.__module__.split(".")[0] == "vitrail" for base in type(x).__mro__)


def _what(model: object) -> str:
    """Return a description of what was given instead of a model, and what to do."""
    if model is None:
        return "None. Did the function that builds the model return it?"
    if isinstance(model, type):
        return f"the class {model.__name__}. Make a model of it, and pass that."
    if isinstance(getattr(model, "model", None), nn.Module):
        return f"a {type(model).__name__}, which holds one: pass its .model."
    if callable(model):
        name = getattr(model, "__name__", type(model).__name__)
        return (
            f"{name}, a {type(model).__name__}. Hooks and rules need modules: put the function into the forward of a "
            "torch.nn.Module that holds the modules it calls."
        )
    return f"a {type(model).__name__}."


def every_module(model: nn.Module) -> list[nn.Module]:
    """The model and all modules inside it, each once, as `model.modules()` but many times faster."""
    found, waiting = {}, [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            waiting += [child for child in module._modules.values() if child is not None]
    return list(found.values())


def generates(model: object) -> bool:
    """Return True if a model says that it writes texts: then it predicts the next token, whatever its masks show."""
    says = getattr(model, "can_generate", None)
    return bool(says()) if callable(says) else False
