"""The inputs of a model, checked once; and the grid of patches of a picture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from einops import reduce
from torch import Tensor, nn

from vitrail.errors import InputError

TEXTS = frozenset({"input_ids", "attention_mask", "position_ids"})
"""Keywords that stand for texts where a picture is what the model looks at: one text a class, whatever the batch."""


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
    main: str | None = None  # the keyword of what the model looks at; None for the first argument
    shared: frozenset[str] = frozenset()  # keywords that belong to no one sample: texts to compare pictures with
    signal: bool = False  # real numbers that are neither pictures nor embeddings: audio, tables, spectra, video

    @property
    def shown(self) -> Tensor:
        """The tensor that the model looks at: the picture, the token ids or the embeddings."""
        return self.args[0] if self.main is None else self.kwargs[self.main]

    def showing(self, x: Tensor) -> "Inputs":
        """The same call on something else to look at."""
        batch = x.shape[0]
        if self.main is None:
            return replace(self, args=(x, *self.args[1:]), batch=batch)
        return replace(self, kwargs={**self.kwargs, self.main: x}, batch=batch)

    def take(self, rows: Tensor) -> "Inputs":
        """Some samples of the batch, in the order given."""

        def some(x: Any) -> Any:  # noqa: ANN401
            return x[rows.to(x.device)] if isinstance(x, Tensor) and x.shape[:1] == (self.batch,) else x

        return replace(
            self,
            args=tuple(some(x) for x in self.args),
            kwargs={name: x if name in self.shared else some(x) for name, x in self.kwargs.items()},
            batch=len(rows),
            **{name: some(getattr(self, name)) for name in ("ids", "attention_mask", "special")},
            tokens=None if self.tokens is None else tuple(self.tokens[row] for row in rows.tolist()),
        )

    def each(self, change: Callable[[Tensor], Tensor]) -> "Inputs":
        """The same call with every tensor of its arguments changed."""

        def own(x: Any) -> Any:  # noqa: ANN401
            return change(x) if isinstance(x, Tensor) else x

        return replace(self, args=tuple(map(own, self.args)), kwargs={n: own(x) for n, x in self.kwargs.items()})

    def cast(self, dtype: torch.dtype) -> "Inputs":
        """The same call with all real numbers in this precision."""
        return self.each(lambda x: x.to(dtype) if x.is_floating_point() else x)

    def usable(self) -> "Inputs":
        """The same call with tensors autograd may save: those made under `torch.inference_mode` are copied."""
        mask = self.attention_mask
        if not any(isinstance(x, Tensor) and x.is_inference() for x in (*self.args, *self.kwargs.values(), mask)):
            return self
        copied = mask.clone() if mask is not None and mask.is_inference() else mask
        return replace(self.each(lambda x: x.clone() if x.is_inference() else x), attention_mask=copied)


def led_by_text(inputs: Inputs) -> Inputs:
    """The same call with one sample for each text, where pictures stand inside of texts and are more or fewer."""
    ids = inputs.kwargs.get("input_ids")
    if inputs.main != "pixel_values" or not isinstance(ids, Tensor) or ids.ndim != 2 or len(ids) == inputs.batch:
        return inputs
    mask = inputs.kwargs.get("attention_mask")
    return replace(
        inputs,
        kind="text",
        batch=len(ids),
        size=None,
        ids=ids,
        attention_mask=mask if isinstance(mask, Tensor) and mask.ndim == 2 else None,
        tokens=tuple(tuple(map(str, row)) for row in ids.tolist()),
        main="input_ids",
        shared=frozenset(),
    )


def read_inputs(inputs: object) -> Inputs:
    """The inputs in one form, after checking that they can be explained at all."""
    if isinstance(inputs, Mapping):
        return _read_mapping(inputs)
    if not isinstance(inputs, Tensor):
        raise InputError(
            f"inputs must be a tensor or a mapping of tensors, not {type(inputs).__name__}. Images: a preprocessed "
            "tensor [b, 3, h, w]. Text: what the tokenizer returns with return_tensors='pt'."
        )
    kind, signal = _kind("a tensor", inputs)
    _check_values("inputs", inputs)
    return Inputs(
        args=(inputs,),
        kwargs={},
        kind=kind,
        batch=inputs.shape[0],
        size=(inputs.shape[2], inputs.shape[3]) if kind == "image" else None,
        ids=inputs if inputs.ndim == 2 and not inputs.is_floating_point() else None,
        signal=signal,
    )


def _kind(name: str, x: Tensor) -> tuple[str, bool]:
    """Return the kind of a batch by its shape, `image` or `text`, and whether it is a signal.

    Signals are audio or a table `[b, n]`, a spectrum by its name, and video `[b, frames, 3, h, w]`.
    """
    real, picture = x.is_floating_point(), name == "pixel_values"
    if real and x.ndim == 4:
        return "image", False
    signal = real and ((x.ndim == 2 and not picture) or x.ndim == 5 or (x.ndim == 3 and name in SPECTRA))
    if signal or (real and x.ndim == 3 and not picture) or (x.ndim == 2 and not real):
        return "text", signal
    raise InputError(
        f"{name} has shape {tuple(x.shape)} and dtype {x.dtype}, but what is explained is a batch of images "
        f"[b, 3, h, w] in real numbers, of token ids [b, t], of embeddings [b, t, d], of audio or tables [b, n], or "
        f"of video [b, frames, 3, h, w]. {_looks_like(name, x)}"
    )


SPECTRA = frozenset({"input_values", "input_features"})
"""Keywords under which audio models take spectra, which would else be taken for embeddings."""


def _looks_like(name: str, x: Tensor) -> str:
    """Return a guess at what a tensor that cannot be explained is, and what to do with it."""
    if x.is_floating_point():
        if name == "pixel_values" and x.ndim < 4:
            return "This looks like one picture: is the batch axis missing? Add it with x[None]."
        return ONE_SIGNAL if x.ndim == 1 else ""
    return CHOICES if name == "input_ids" and x.ndim == 3 else WHOLE_SHAPES.get(x.ndim, "")


CHOICES = (
    "This looks like texts with several choices each, [b, choices, t]. A model of multiple choice scores every choice "
    "by itself: explain one, by a module that takes ids [b, t] and gives model(input_ids=ids[:, None]).logits."
)
ONE_SIGNAL = "This looks like one example of audio or of a table: is the batch axis missing? Add it with x[None]."
WHOLE_SHAPES = {
    1: "This looks like the token ids of one text: is the batch axis missing? Add it with x[None].",
    3: "This looks like one picture in whole numbers: give it a batch axis and the model's own preprocessing.",
    4: "This looks like pictures in whole numbers: run the model's own preprocessing, which scales them.",
    5: "This looks like video in whole numbers: run the model's own preprocessing, which scales it.",
}


def _read_mapping(inputs: Mapping[str, Any]) -> Inputs:
    tensors = {name: x for name, x in inputs.items() if isinstance(x, Tensor)}
    # A model of one's own may name its arguments as it likes: then the first tensor is what it looks at.
    main = next((n for n in (*MAIN, *tensors) if n in tensors), None)
    if main is None:
        raise InputError(
            f"inputs hold {', '.join(inputs) or 'nothing'}, but no tensor. Call the tokenizer or image processor with "
            "return_tensors='pt'."
        )
    for name, x in tensors.items():
        _check_values(name, x)
    # Patches in a row with the form of each picture, which are compared with texts; else packed patches or tiles.
    rows = "spatial_shapes" in tensors and tensors[main].ndim == 3
    if main == "pixel_values" and "input_ids" in tensors and tensors[main].ndim != 4 and not rows:
        main = "input_ids"
    x = tensors[main]
    kind, signal = ("image", False) if rows and main == "pixel_values" else _kind(main, x)
    shared = TEXTS & tensors.keys() if kind == "image" and "input_ids" in tensors else frozenset()
    mask = tensors.get("attention_mask")
    for name, one in tensors.items():
        _check_mask(name, one)
    if mask is not None and mask.ndim == 2 and not bool(mask.bool().any(dim=1).all()):
        raise InputError("one of the texts is empty: its attention_mask has no 1. Leave it out of the batch.")
    if kind == "text" and not signal:
        _check_tokens(inputs, x, mask)
    # For the reader of the result or for training, not for the model's answer.
    skip = {"special_tokens_mask", "offset_mapping", "labels", "start_positions", "end_positions"}
    return Inputs(
        args=(),
        kwargs={n: v for n, v in inputs.items() if n not in skip},
        kind=kind,
        batch=x.shape[0],
        size=(x.shape[2], x.shape[3]) if kind == "image" and x.ndim == 4 else None,
        ids=x if kind == "text" and x.ndim == 2 and not signal else None,
        # The mask of a signal speaks of samples, not of tokens: the model makes its own of it.
        attention_mask=mask if mask is not None and mask.ndim == 2 and not shared and not signal else None,
        special=tensors.get("special_tokens_mask"),
        tokens=_token_strings(inputs, x) if kind == "text" else None,
        main=main,
        shared=frozenset(shared),
        signal=signal,
    )


def _check_values(name: str, x: Tensor) -> None:
    if x.is_nested:
        raise InputError(
            f"{name} is a nested tensor, whose samples differ in shape. Explain one sample at a time, or pad them to "
            "one shape with .to_padded_tensor(0.0) and name the padding in a mask."
        )
    if x.numel() == 0:
        raise InputError(f"{name} is empty: its shape is {tuple(x.shape)}. There is nothing to explain.")
    if x.layout is not torch.strided:
        raise InputError(f"{name} is a tensor of layout {x.layout}. Make it an ordinary one with .to_dense().")
    if x.is_meta:
        raise InputError(f"{name} is on the meta device and holds no values. Move it to the device of the model.")
    if x.is_floating_point() and "mask" not in name and not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).sum())
        raise InputError(f"{name} holds {bad} NaN or infinite values of {x.numel()}. Check the preprocessing.")


def _check_mask(name: str, x: Tensor) -> None:
    """Refuse what is no mask. Masks of more axes may hold what is added to the attention scores, minus infinity too."""
    if "mask" not in name:
        return
    if x.is_floating_point() and bool(x.isnan().any()):
        raise InputError(f"{name} holds {int(x.isnan().sum())} NaN of {x.numel()} values. Check how it was made.")
    if x.ndim == 2 and name.endswith(PLAIN_MASKS) and not bool(((x == 0) | (x == 1)).all()):
        wrong = x[(x != 0) & (x != 1)][0].item()
        raise InputError(
            f"{name} holds {wrong:g}, but a mask [b, t] holds 1 for tokens that are read and 0 for padding. A mask "
            "that is added to the attention scores has four axes."
        )


MAIN = ("pixel_values", "pixel_values_videos", "input_ids", "inputs_embeds", "input_values", "input_features")
"""Keywords of what a model looks at, the first that is given."""
PLAIN_MASKS = ("attention_mask", "special_tokens_mask", "pixel_mask")
"""Names of masks that hold 0 and 1 where they have two axes; a model of one's own may call others as it likes."""


def _check_tokens(inputs: Mapping[str, Any], x: Tensor, mask: Tensor | None) -> None:
    """Refuse a mask of another length than the text, and a text of which nothing is left but the tokenizer's marks."""
    cached = inputs.get("past_key_values") is not None  # which is looked at later; then the mask speaks of it too
    if mask is not None and mask.ndim == 2 and mask.shape != x.shape[:2] and not cached:
        raise InputError(
            f"attention_mask has shape {tuple(mask.shape)}, but the text has {x.shape[0]} x {x.shape[1]} tokens. Use "
            "the mask that the tokenizer gave with them."
        )
    special = _special(inputs)
    if special is None or special.ndim != 2:
        return
    content = special == 0
    if mask is not None and mask.shape == content.shape:
        content &= mask.to(content.device) != 0
    empty = (~content.any(dim=1)).nonzero()[:, 0].tolist()
    if empty:
        raise InputError(
            f"text {empty[0]} of the batch has no token of its own, only special tokens: it is empty, or holds nothing "
            "but characters that the tokenizer drops, such as zero-width ones. Leave it out of the batch."
        )


def _special(inputs: Mapping[str, Any]) -> Tensor | None:
    """Return which tokens a tokenizer added: by the mask that was given, or as a fast tokenizer knows it."""
    special = inputs.get("special_tokens_mask")
    if isinstance(special, Tensor):
        return special
    encodings = getattr(inputs, "encodings", None) if getattr(inputs, "is_fast", False) else None
    return torch.tensor([one.special_tokens_mask for one in encodings]) if encodings else None


def _token_strings(inputs: Mapping[str, Any], ids: Tensor) -> tuple[tuple[str, ...], ...] | None:
    """The tokens as a fast tokenizer wrote them, or the ids as text; None where there are neither."""
    if getattr(inputs, "is_fast", False):
        return tuple(tuple(inputs.tokens(i)) for i in range(ids.shape[0]))  # pyright: ignore[reportAttributeAccessIssue]
    if ids.is_floating_point():
        return None
    return tuple(tuple(map(str, row)) for row in ids.tolist())  # one copy from a GPU, not one for each token


def check_fits(model: nn.Module, inputs: Inputs) -> None:
    """Refuse inputs of another kind than the model reads, longer ones than it has positions for, unknown tokens."""
    config, reads = getattr(model, "config", None), getattr(model, "main_input_name", "")
    compares = getattr(config, "model_type", "") == "clip" and hasattr(model, "logit_scale")
    if compares and (inputs.kind != "image" or "input_ids" not in inputs.kwargs):
        raise InputError(
            f"{type(model).__name__} compares pictures with texts, so a class is a text: give it pixel_values, "
            "input_ids and attention_mask by name, as its processor does. To explain the texts: "
            "vitrail.TextTower(model, pixel_values)."
        )
    if inputs.signal and inputs.main is None and inputs.shown.ndim == 2 and reads in ("input_ids", "pixel_values"):
        raise InputError(
            f"{type(model).__name__} reads {reads}, but the input has shape {tuple(inputs.shown.shape)} in real "
            "numbers, as audio and tables have. If it is the embeddings [t, d] of one text or one channel of a "
            "picture: is the batch axis missing? Add it with x[None]."
        )
    # The configuration of a model of pictures names their size, and no frames.
    pictures = reads == "pixel_values" and hasattr(config, "image_size") and not hasattr(config, "num_frames")
    if inputs.main is None and inputs.shown.ndim == 5 and pictures:
        raise InputError(
            f"{type(model).__name__} reads pictures [b, 3, h, w], but the input has shape {tuple(inputs.shown.shape)}, "
            "as video has. Is there one axis too many? Take it away with x[0], or explain the frames as a batch."
        )
    if inputs.kind == "text" and not inputs.signal:
        _check_text(model, inputs, getattr(config, "vocab_size", None))


def _check_text(model: nn.Module, inputs: Inputs, known: object) -> None:
    """Refuse tokens that the model does not know, and more of them than it has positions for."""
    ids, given = inputs.ids, (*inputs.args, *inputs.kwargs.values())
    lengths = [x.shape[1] for x in given if isinstance(x, Tensor) and x.ndim in (2, 3)]
    if not lengths:
        return
    unknown = (ids < 0) | (ids >= known) if ids is not None and isinstance(known, int) else None
    if ids is not None and unknown is not None and bool(unknown.any()):  # one question, and the same for all texts
        raise InputError(
            f"token {int(ids[unknown].max())} is not among the {known} the model knows. Is this its own tokenizer?"
        )
    limit = position_limit(model)
    if limit is not None and lengths[0] > limit:
        raise InputError(
            f"the text has {lengths[0]} tokens, but {type(model).__name__} has {limit} positions. "
            "Shorten it, or tokenize with truncation=True if cutting the end is acceptable."
        )


def position_limit(model: nn.Module) -> int | None:
    """Return the number of tokens the model has positions for, or None if it does not say."""
    for name, module in model.named_modules():
        if name.endswith(("position_embeddings", "wpe")) and isinstance(module, nn.Embedding):
            # RoBERTa and MPNet count positions from the one after their padding index.
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def patch_sums(pixels: Tensor, grid: tuple[int, int], patch: tuple[int, int] | None = None) -> Tensor:
    """The sum of a map over each patch; pixels left over at the edges belong to none.

    Args:
        patch: pixels of a patch in either direction; None where patches fill the picture.
    """
    tall, wide = patch or (pixels.shape[1] // grid[0], pixels.shape[2] // grid[1])
    inside = pixels[:, : grid[0] * tall, : grid[1] * wide]
    return reduce(inside, "b (y s) (x t) -> b (y x)", "sum", s=tall, t=wide)
