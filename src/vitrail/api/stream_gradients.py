"""Gradient methods on models with several streams: one attribution for each of the model's inputs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.api.attributions import TokenLabels, build_attribution, timed
from vitrail.api.bounds import with_zeros
from vitrail.api.requests import Request
from vitrail.attribution import Attribution
from vitrail.capture.outputs import Scalar
from vitrail.capture.recording.input_gradients import (
    PICTURE,
    InputAttribution,
    converged_gradients,
    input_x_gradient,
    integrated_gradients,
    texts_of,
)
from vitrail.capture.recording.pass_options import ComputeSettings
from vitrail.capture.residuals import MORE
from vitrail.capture.structure.stream_checks import measured_streams
from vitrail.capture.structure.stream_origins import LEFT_OUT, ShownStream, one_of_each, text_rows
from vitrail.errors import CutGraphError, OptionError, SeamError
from vitrail.models.inputs import Inputs, patch_sums

SQUARE = 16
ASSUMED = f"pixels are summed over squares of at most {SQUARE} pixels: which of them make a token was not measured"


CANCELLED = 1e-3
CANCELS = (
    "the scores of pixels cancel in every patch, as where a model norms each patch first (Pixtral): what is left of "
    "their sums is rounding. Read the pixels, or take attn_lrp"
)


def _by_rules(model: nn.Module, request: Request) -> InputAttribution:
    return input_x_gradient(model, request.inputs, request.target, request.plan.pass_options)  # pyright: ignore[reportAttributeAccessIssue]


def _integrated(model: nn.Module, request: Request) -> InputAttribution:
    """Return the scores with the steps that were named; where the method stands in for another, those that converge."""
    run = integrated_gradients if request.reason is None else converged_gradients
    return run(model, request.inputs, request.target, steps=request.options["steps"])


METHODS: dict[str, Callable[[nn.Module, Request], InputAttribution]] = {
    "input_x_gradient": _by_rules,
    "integrated_gradients": _integrated,
    "conservative_lrp": _by_rules,
    "attn_lrp": _by_rules,
    "libra_grad": _by_rules,
    "gim": _by_rules,
}
"""Methods that read gradients at the inputs alone, some of them by rules of their own."""
NAMES = {
    **dict.fromkeys(("input_ids", "inputs_embeds"), "text"),
    **dict.fromkeys(("decoder_input_ids", "decoder_inputs_embeds", "tgt"), "decoder"),
    **dict.fromkeys(("pixel_values", "visual_embeds", "visual_feats", "image_patches"), "image"),
    **dict.fromkeys(("input_features", "input_values"), "audio"),
    "qformer_input_ids": "text_2",
    "src": "encoder",
}
"""What the stream of an input is called."""
LEVELS = {"pixel_values": "pixels", "pixel_values_videos": "pixels", "image_patches": "pixels"}
"""The levels of inputs that are pictures."""
BY_PATCH = ("attn_lrp", "conservative_lrp", "libra_grad", "gim")
"""Methods whose maps of single pixels are too grainy to read."""


def explain_inputs(model: nn.Module, request: Request, shown: Sequence[ShownStream]) -> Attribution:
    """One gradient method: the attribution of the input that is looked at, with those of all inputs.

    Args:
        shown: the streams that were measured; none where they cannot be.
    """
    check_level_at_inputs(request)
    check_options_at_inputs(request)
    made = METHODS[request.entry.name](model, request)
    pictures = _each_picture(shown)
    streams: dict[str, Attribution] = {}
    left_out: list[str] = []
    for given, every in made.found.items():
        rows = _rows_of(model, request.inputs, given, every, made.part)
        if rows is None:
            left_out.append(LEFT_OUT)
            continue
        values, name = every[rows], NAMES.get(given, given)
        # Streams are called as a walk calls them, where their tokens are known.
        names = [one.name for one in shown if one.given == given]
        parts = _pictures(values, pictures) if given == PICTURE else [values]
        for i, one in enumerate(parts):
            channels = _channels(model, given, one)
            summed = one if channels is None else one.sum(dim=channels)
            picture = pictures[i] if name == "image" and i < len(pictures) else None
            usual = name if i == 0 else f"{name}_{i + 1}"
            streams[names[i] if i < len(names) else usual] = _one(request, made, given, summed, picture, rows)
    left_out += [UNREAD.format(name) for name in texts_of(request.inputs) if name not in made.found]
    if left_out:
        said = {name: [*one.provenance.get("assumed", []), *left_out] for name, one in streams.items()}
        streams = {n: replace(x, provenance={**x.provenance, "assumed": said[n]}) for n, x in streams.items()}
    if "decoder" in streams and "encoder" not in streams and not any(one.name == "decoder" for one in shown):
        first = next((name for name in ("text", "image", "audio") if name in streams), None)
        streams = {"encoder" if name == first else name: one for name, one in streams.items()}
    order = ("image", "text") if hasattr(model, "logit_scale") else ("text", "image")  # two towers, or one text
    streams = with_zeros(streams, signed=request.signed)
    main = next(name for name in ("encoder", *order, *streams) if name in streams)
    return replace(streams[main], streams=streams if len(streams) > 1 else {})


UNREAD = (
    "no nn.Embedding was asked for the whole numbers of {0} as they were given, so what they bring to the answer has "
    "no score"
)


def _each_picture(shown: Sequence[ShownStream]) -> list[ShownStream]:
    """The streams of pictures that were given, each picture once: CrossViT cuts one into patches of two sizes."""
    found: list[ShownStream] = []
    for one in shown:
        numbers = one.pictures
        same = numbers is not None and any(x.pictures is not None and torch.equal(x.pictures, numbers) for x in found)
        if one.kind == "image" and one.given and not same:
            found.append(one)
    return found


def level_of(given: str) -> str:
    """The level at which the relevance of an input is read: where words become vectors, or at the numbers given."""
    return "inputs_embeds" if given.endswith(("input_ids", "inputs_embeds")) else LEVELS.get(given, "inputs")


def check_level_at_inputs(request: Request) -> None:
    """Refuse a level that the caller named and that no input has."""
    inputs = request.inputs
    names = {inputs.main or ("input_ids" if inputs.ids is not None else PICTURE), *inputs.kwargs}
    names = {PICTURE if name == inputs.main and inputs.kind == "image" else name for name in names}
    offered = sorted({level_of(name) for name in names} - {"inputs"})
    if request.level in (None, *offered):
        return
    why = request.at_inputs or "this model has several streams of tokens, or changes its tokens between blocks."
    raise OptionError(
        f"{request.entry.name} cannot be read at level={request.level!r} here, but only at the inputs: {why} "
        f"Leave level out{' or name ' if offered else ''}{' or '.join(map(repr, offered))}."
    )


AT_INPUTS: dict[str, dict[str, Any]] = {"libra_grad": {"maps": "input"}, "gim": {"baseline": "zero"}}
"""The values of options that a method has where it is read at the inputs."""


def check_options_at_inputs(request: Request) -> None:
    """Refuse an option that the caller named and that means nothing at the inputs."""
    for option, value in AT_INPUTS.get(request.entry.name, {}).items():
        named = request.options[option]
        if option in request.named and named != value:
            why = request.at_inputs or "this model has several streams of tokens, or changes its tokens between blocks."
            raise OptionError(
                f"{request.entry.name}({option}={named!r}) reads what enters the blocks of one stream of tokens, and "
                f"here gradients are read at the inputs: {why} Leave {option} out, or name {option}={value!r}."
            )


def _rows_of(model: nn.Module, inputs: Inputs, given: str, values: Tensor, part: Scalar) -> slice | Tensor | None:
    """Return the rows of an input that belong to the samples: all, except of texts that pictures are compared with."""
    if given != "input_ids" or given not in inputs.shared:
        return slice(None)
    compares = hasattr(model, "logit_scale")
    rows = text_rows(len(values), inputs.batch, part.target, compares=compares)
    if rows is not None or compares:
        return rows
    return one_of_each((values != 0).flatten(1).any(dim=1), inputs.batch)  # each sample has texts of its own


def explain_at_inputs(
    model: nn.Module,
    requests: list[Request],
    settings: ComputeSettings | None = None,
    shown: Sequence[ShownStream] | None = None,
) -> tuple[None, list[Attribution]]:
    """Explain by gradient methods at the inputs of the model, whatever is inside it.

    Args:
        settings: those of passes over blocks, of which there are none.
        shown: the streams where they have been measured already.
    """
    found = []
    for request in requests:
        begun = time.perf_counter()
        shown = shown_streams(model, request.inputs) if shown is None else shown
        found.append(timed(explain_inputs(model, request, shown), time.perf_counter() - begun))
    return None, found


def shown_streams(model: nn.Module, inputs: Inputs) -> list[ShownStream]:
    """The streams of a model, or none where its attention cannot be followed."""
    try:
        with measured_streams(model, inputs) as found:
            return found.shown
    except CutGraphError:  # gradients would leave that attention out
        raise
    except SeamError:
        return []


def _channels(model: nn.Module, given: str, values: Tensor) -> int | None:
    """The axis of channels: none of a wave, that before the frames of a sound where the model says so; else the last.

    Of pictures it is the one before rows and columns.
    """
    if values.ndim == 2:
        return None
    configs = [vars(module).get("config") for module in model.modules()]
    bins = {getattr(config, "num_mel_bins", None) for config in configs if config is not None}
    frames_last = given == "input_features" and values.ndim == 3 and values.shape[1] in bins
    return 1 if values.ndim == 4 or frames_last else -1


def _pictures(x: Tensor, shown: Sequence[ShownStream]) -> list[Tensor]:
    """The pictures of a sample one by one, where it has several; patches that stand in one row are summed.

    Args:
        shown: the streams of pictures that were measured.
    """
    packed = [one.parts for one in shown if one.parts is not None]
    if packed:
        summed = x.sum(dim=-1)
        return [summed[places.clamp(min=0).to(x.device)] * (places >= 0).to(x.device) for places in packed]
    numbers = [one.pictures for one in shown if one.pictures is not None]
    if x.ndim > 3 and numbers and len(numbers) == len(shown):
        every = x.flatten(0, -4)
        real = [(number >= 0).view(-1, 1, 1, 1).to(x.device) for number in numbers]
        return [every[n.clamp(min=0).to(x.device)] * r for n, r in zip(numbers, real, strict=True)]
    if x.ndim != 5:
        return [x]
    colours_first = x.shape[1] in COLOURS and x.shape[2] not in COLOURS
    return list(x.unbind(dim=2 if colours_first else 1))


COLOURS = (1, 3)
"""How many colours pictures and films have."""


def _one(
    request: Request,
    made: InputAttribution,
    given: str,
    values: Tensor,
    picture: ShownStream | None,
    rows: slice | Tensor,
) -> Attribution:
    """The attribution of one input."""
    options: dict[str, Any] = {"level": level_of(given)} if "level" in request.entry.options else {}
    options |= {} if made.steps is None else {"steps": made.steps}
    options |= AT_INPUTS.get(request.entry.name, {})
    known: dict[str, Any] = {"level": "inputs"}
    known |= {} if made.residual is None else {"residual": made.residual.tolist()}
    known |= {} if request.reason is None else {"default": request.reason}
    lacks = [] if made.lacks is None else [f"{made.lacks} {MORE}"]
    known |= {"assumed": lacks} if lacks else {}
    known |= {} if made.power == 1 else {"path": f"points at powers of {made.power}, which lie closer to zero"}
    if request.at_inputs is not None:
        why = f"relevance is read at the inputs, because attention cannot be followed: {request.at_inputs}"
        known["assumed"] = [why, *lacks]
    if given == PICTURE and values.ndim == 3:
        grid, squares = _grid(values, picture)
        size = (values.shape[1], values.shape[2])
        summed = patch_sums(values, grid, (size[0] // grid[0], size[1] // grid[1]))
        cancels = bool((summed.abs().sum(dim=1) < CANCELLED * values.abs().sum(dim=(1, 2))).any())
        if squares or cancels:
            known["assumed"] = [*known.get("assumed", []), *[ASSUMED] * squares, *[CANCELS] * cancels]
        # By rules, sums over patches alone are given, as where there is one stream whose attention is followed. Single
        # pixels are given where the caller asks for them, and where they stand in for a level that cannot be read.
        by_patch = request.entry.name in BY_PATCH and request.level is None and request.at_inputs is None
        pixels = None if by_patch and not squares else values
        labels = TokenLabels("image", grid, size)
        return build_attribution(
            request, made.part.target, summed, labels, known, options=options, maps={"pixels": pixels}
        )
    scores = values if values.ndim == 2 else values.reshape(values.shape[0], -1)
    if picture is not None and picture.grid is not None and (patches := picture.tokens.shape[1]) <= scores.shape[1]:
        scores, labels = scores[:, :patches], TokenLabels("image", picture.grid)
    else:
        tokens, valid = _labels(request.inputs, given, scores, rows)
        labels = TokenLabels("text", tokens=tokens, valid=valid)
    return build_attribution(request, made.part.target, scores, labels, known, options=options)


def _grid(pixels: Tensor, picture: ShownStream | None) -> tuple[tuple[int, int], bool]:
    """Rows and columns of patches as they were measured, or squares, and whether these are assumed."""
    height, width = pixels.shape[1:]
    if picture is not None and picture.grid is not None and not (height % picture.grid[0] or width % picture.grid[1]):
        return picture.grid, False
    tall, wide = (next(n for n in range(SQUARE, 0, -1) if side % n == 0) for side in (height, width))
    return (height // tall, width // wide), True


def _labels(
    inputs: Inputs, given: str, scores: Tensor, rows: slice | Tensor
) -> tuple[tuple[tuple[str, ...], ...] | None, Tensor | None]:
    """The tokens of a text, and which of them are real."""
    ids = inputs.kwargs.get(given, inputs.args[0] if inputs.args else None)
    if isinstance(ids, Tensor) and inputs.signal and ids is inputs.shown and ids.ndim == 2:
        return (tuple(f"place {i}" for i in range(scores.shape[1])),) * len(scores), None
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids[rows].shape != scores.shape:
        return None, None
    ids = ids[rows]
    own = inputs.tokens is not None and given == "input_ids" and inputs.kind == "text"
    words = inputs.tokens if own else tuple(tuple(map(str, row)) for row in ids.tolist())
    mask = inputs.kwargs.get(f"{given.removesuffix('input_ids')}attention_mask")
    valid = mask[rows].bool() if isinstance(mask, Tensor) else None
    hides = valid is not None and valid.shape == ids.shape and not bool(valid.all())
    return words, valid if hides else None


def is_gradient(name: str) -> bool:
    """Return True if a method reads gradients at the inputs alone."""
    return name in METHODS
