"""What may stand for a model: a module, an object that holds one, or words that say what to give instead."""

from typing import Any

from torch import nn

from vitrail.errors import InputError, TargetError
from vitrail.targets import Target


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
        """Whether the model gives an embedding and no scores."""
        return "CrossEncoder" not in _bases(self.inner)

    def forward(self, **features: Any) -> Any:  # noqa: ANN401
        """The scores of a pair of texts, or the embedding of a text."""
        out = self.inner(dict(features))
        return out["sentence_embedding" if self.embeds else "scores"]


def taken(model: object) -> nn.Module:
    """The module to explain, or an error that says what was given and what to give instead."""
    if isinstance(model, nn.Module):
        return FromFeatures(model) if "BaseModel" in _bases(model) and _from(model, "sentence_transformers") else model
    if "Pipeline" in _bases(model) and isinstance(inner := getattr(model, "model", None), nn.Module):
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


def _from(x: object, package: str) -> bool:
    return any(base.__module__.split(".")[0] == package for base in type(x).__mro__)


def _what(model: object) -> str:
    """What was given instead of a model, and what to do."""
    if model is None:
        return "None. Did the function that builds the model return it?"
    if isinstance(model, str):
        return f"the text {model!r}. Load the model first, for example with transformers or timm, and pass it."
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
