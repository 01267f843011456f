"""What a model is called with, checked once at the border."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import InputError


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arguments of one call, and what can be read off them without running the model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    kind: str  # "image" or "text"
    batch: int
    size: tuple[int, int] | None = None
    ids: Tensor | None = None
    attention_mask: Tensor | None = None
    special: Tensor | None = None
    tokens: tuple[tuple[str, ...], ...] | None = None

    def usable(self) -> "Inputs":
        """The same call with tensors autograd may save: those made under `torch.inference_mode` are copied."""

        def own(x: Any) -> Any:  # noqa: ANN401
            return x.clone() if isinstance(x, Tensor) and x.is_inference() else x

        kwargs = {name: own(x) for name, x in self.kwargs.items()}
        return replace(
            self, args=tuple(own(x) for x in self.args), kwargs=kwargs, attention_mask=own(self.attention_mask)
        )


def read_inputs(inputs: object) -> Inputs:
    """The inputs in one form, after checking that they can be explained at all."""
    if isinstance(inputs, Tensor):
        return _read_tensor(inputs)
    if isinstance(inputs, Mapping):
        return _read_mapping(inputs)
    raise InputError(
        f"inputs must be a tensor or a mapping of tensors, not {type(inputs).__name__}. Images: a preprocessed "
        "tensor [b, 3, h, w]. Text: what the tokenizer returns with return_tensors='pt'."
    )


def _read_tensor(x: Tensor) -> Inputs:
    kind = "image" if x.is_floating_point() and x.ndim == 4 else "text"
    if not (kind == "image" or (x.ndim == 2 and not x.is_floating_point()) or x.ndim == 3):
        raise InputError(
            f"a tensor of shape {tuple(x.shape)} and dtype {x.dtype} is neither a batch of images [b, 3, h, w] "
            "nor of token ids [b, t] nor of embeddings [b, t, d]. Is the batch axis missing?"
        )
    _check_values("inputs", x)
    return Inputs(
        args=(x,),
        kwargs={},
        kind=kind,
        batch=x.shape[0],
        size=(x.shape[2], x.shape[3]) if kind == "image" else None,
        ids=x if x.ndim == 2 else None,
    )


def _read_mapping(inputs: Mapping[str, Any]) -> Inputs:
    tensors = {name: x for name, x in inputs.items() if isinstance(x, Tensor)}
    main = next((n for n in ("pixel_values", "input_ids", "inputs_embeds") if n in tensors), None)
    if main is None:
        raise InputError(
            f"inputs hold {', '.join(inputs) or 'nothing'}, but none of pixel_values, input_ids or inputs_embeds as a "
            "tensor. Call the tokenizer or image processor with return_tensors='pt'."
        )
    for name, x in tensors.items():
        _check_values(name, x)
    x = tensors[main]
    mask = tensors.get("attention_mask")
    if mask is not None and mask.ndim == 2 and not bool(mask.bool().any(dim=1).all()):
        raise InputError("one of the texts is empty: its attention_mask has no 1. Leave it out of the batch.")
    skip = {"special_tokens_mask", "offset_mapping"}  # for the reader of the result, not for the model
    return Inputs(
        args=(),
        kwargs={n: v for n, v in inputs.items() if n not in skip},
        kind="image" if main == "pixel_values" else "text",
        batch=x.shape[0],
        size=(x.shape[2], x.shape[3]) if main == "pixel_values" else None,
        ids=tensors.get("input_ids"),
        attention_mask=mask if mask is not None and mask.ndim == 2 else None,
        special=tensors.get("special_tokens_mask"),
        tokens=_token_strings(inputs, x),
    )


def _check_values(name: str, x: Tensor) -> None:
    if x.numel() == 0:
        raise InputError(f"{name} is empty: its shape is {tuple(x.shape)}. There is nothing to explain.")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).sum())
        raise InputError(f"{name} holds {bad} NaN or infinite values of {x.numel()}. Check the preprocessing.")


def _token_strings(inputs: Mapping[str, Any], ids: Tensor) -> tuple[tuple[str, ...], ...] | None:
    """The tokens as a fast tokenizer wrote them, or the ids as text; None where there are neither."""
    if getattr(inputs, "is_fast", False):
        return tuple(tuple(inputs.tokens(i)) for i in range(ids.shape[0]))  # pyright: ignore[reportAttributeAccessIssue]
    if ids.is_floating_point():
        return None
    return tuple(tuple(str(int(token)) for token in row) for row in ids)


def check_length(model: nn.Module, inputs: Inputs) -> None:
    """Refuse a text that is longer than the positions the model has."""
    if inputs.ids is None or inputs.kind != "text":
        return
    length, limit = inputs.ids.shape[1], position_limit(model)
    if limit is not None and length > limit:
        raise InputError(
            f"the text has {length} tokens, but {type(model).__name__} has {limit} positions. "
            "Shorten it, or tokenize with truncation=True if cutting the end is acceptable."
        )


def position_limit(model: nn.Module) -> int | None:
    """How many tokens the model has positions for, or None if it does not say."""
    for name, module in model.named_modules():
        if name.endswith(("position_embeddings", "wpe")) and isinstance(module, nn.Embedding):
            # RoBERTa and MPNet count positions from behind their padding index.
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None
