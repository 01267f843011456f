"""Gradient methods on models with several streams: one attribution for each of the model's inputs."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vitrail.attribution import Attribution
from vitrail.capture.input_gradients import Attributed, input_x_gradient, integrated_gradients
from vitrail.capture.outputs import Scalar
from vitrail.models.grids import patch_sums
from vitrail.models.inputs import Inputs

if TYPE_CHECKING:
    from vitrail.api import Request

SQUARE = 16
ASSUMED = f"pixels are summed over squares of at most {SQUARE} pixels: which of them make a token was not measured"

METHODS: dict[str, Callable[..., tuple[Scalar, Attributed, Tensor | None]]] = {
    "input_x_gradient": lambda model, inputs, target, options: input_x_gradient(model, inputs, target),
    "integrated_gradients": lambda model, inputs, target, options: integrated_gradients(
        model, inputs, target, steps=options["steps"]
    ),
}
"""Methods that read gradients at the inputs alone."""
NAMES = {
    "input_ids": "text",
    "inputs_embeds": "text",
    "decoder_input_ids": "decoder",
    "decoder_inputs_embeds": "decoder",
    "pixel_values": "image",
    "input_features": "audio",
    "input_values": "audio",
    "visual_embeds": "image",
    "image_patches": "image",
    "qformer_input_ids": "text_2",
    "src": "encoder",
    "tgt": "decoder",
}
"""What the stream of an input is called."""


def explain_inputs(model: nn.Module, request: "Request") -> Attribution:
    """One gradient method: the attribution of the input that is looked at, with those of all inputs."""
    inputs = request.inputs
    part, found, residual = METHODS[request.entry.name](model, inputs, request.target, request.options)
    streams: dict[str, Attribution] = {}
    for given, values in found.items():
        name = NAMES.get(given, given)
        for i, one in enumerate(_pictures(values) if given == "pixel_values" else [values]):
            summed = one.sum(dim=_channels(model, given, one))
            streams[name if i == 0 else f"{name}_{i + 1}"] = _one(request, part, given, summed, residual)
    if "decoder" in streams:
        first = next((name for name in ("text", "image", "audio") if name in streams), None)
        streams = {"encoder" if name == first else name: one for name, one in streams.items()}
    order = ("image", "text") if hasattr(model, "logit_scale") else ("text", "image")  # two towers, or one text
    main = next(name for name in ("encoder", *order, *streams) if name in streams)
    return replace(streams[main], streams=streams if len(streams) > 1 else {})


def _channels(model: nn.Module, given: str, values: Tensor) -> int:
    """The axis of channels: before pixels, and before the frames of a sound where the model says so; else the last."""
    bins = getattr(getattr(model, "config", None), "num_mel_bins", None)
    frames_last = given == "input_features" and values.ndim == 3 and values.shape[1] == bins
    return 1 if values.ndim == 4 or frames_last else -1


def _pictures(x: Tensor) -> list[Tensor]:
    """The pictures of a sample one by one, where it has several."""
    return list(x.unbind(dim=1)) if x.ndim == 5 else [x]


def _one(request: "Request", part: Scalar, given: str, values: Tensor, residual: Tensor | None) -> Attribution:
    """The attribution of one input."""
    common: dict[str, Any] = {
        "method": request.entry.name,
        "target": part.target,
        "signed": request.entry.is_signed(request.options),
        "preset": request.preset,
        "options": dict(request.options),
    }
    known: dict[str, Any] = {"backend": "none", "level": "inputs"}
    known |= {} if residual is None else {"residual": residual.tolist()}
    known |= {} if request.reason is None else {"default": request.reason}
    if given == "pixel_values" and values.ndim == 3:
        pixels = values
        height, width = pixels.shape[1:]
        tall, wide = (next(n for n in range(SQUARE, 0, -1) if side % n == 0) for side in (height, width))
        grid = (height // tall, width // wide)
        return Attribution(
            patch_sums(pixels, grid, (tall, wide)),
            kind="image",
            grid=grid,
            size=(height, width),
            pixels=pixels,
            provenance={**known, "assumed": [ASSUMED]},
            **common,
        )
    scores = values if values.ndim == 2 else values.reshape(1, -1)  # patches in one row belong to one sample
    tokens, valid = _labels(request.inputs, given, scores)
    return Attribution(scores, kind="text", tokens=tokens, valid=valid, provenance=known, **common)


def _labels(inputs: Inputs, given: str, scores: Tensor) -> tuple[tuple[tuple[str, ...], ...] | None, Tensor | None]:
    """The tokens of a text, and which of them are real."""
    ids = inputs.kwargs.get(given, inputs.args[0] if inputs.args else None)
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.shape != scores.shape:
        return None, None
    own = inputs.tokens is not None and given == "input_ids" and inputs.kind == "text"
    words = inputs.tokens if own else tuple(tuple(map(str, row)) for row in ids.tolist())
    mask = inputs.kwargs.get(f"{given.removesuffix('input_ids')}attention_mask")
    fits = isinstance(mask, Tensor) and mask.shape == ids.shape and not bool(mask.bool().all())
    return words, mask.bool() if fits and isinstance(mask, Tensor) else None


def is_gradient(name: str) -> bool:
    """Whether a method reads gradients at the inputs alone."""
    return name in METHODS
