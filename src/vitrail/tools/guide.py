"""External guidance: a picture of one class is explained beside a picture of another.

Cui, Fan and Chen, arXiv:2605.11392, Sec. 4.4 and Fig. 8. Where a picture shows one class only, the complete correction
has nothing to lead attention away to, and its map is poor. A guide of another class, stitched to the picture, gives it
a direction; the target stays the original's, and only the original's part of the map is kept.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.api import explain
from vitrail.attribution import Attribution
from vitrail.capture.shadow import shadow
from vitrail.errors import InputError, OptionError, VitrailError
from vitrail.models.anatomy import Anatomy
from vitrail.targets import AnyTarget, Target, as_target
from vitrail.tools.guides import SHIPPED, Guide, Preprocess, as_images, choose, open_shipped, read_guide, warn_of
from vitrail.tools.looking import Seen, look
from vitrail.tools.positions import asked_to_interpolate, of_any_size
from vitrail.tools.setup import DEFAULT_METHOD, Guided, Setup
from vitrail.tools.stitch import Canvas, crop, stitch


def guide(  # noqa: PLR0913  (each is a choice of its own)
    model: nn.Module,
    image: Tensor | Mapping[str, Any],
    guide_image: Any = None,  # noqa: ANN401
    target: AnyTarget = None,
    *,
    method: str = DEFAULT_METHOD,
    layout: str = "beside",
    side: str | None = None,
    size: str = "resize",
    preprocess: Preprocess | None = None,
    anatomy: Anatomy | None = None,
    **options: Any,  # noqa: ANN401
) -> Attribution:
    """What in the image speaks for the target, with a picture of another class beside it.

    Args:
        model: any module that returns logits. It is not changed.
        image: a preprocessed batch `[b, 3, h, w]`, or a mapping with one.
        guide_image: a preprocessed picture of any size for all samples, or one for each; a PIL image; or a list of
            such, over which is averaged. None takes, of the pictures in the package, the one the model is surest of
            whose class is not the target.
        target: as for `explain`; None is the class the model predicts for the image alone.
        method: a name of `vitrail.METHODS`.
        layout: `beside`, `stacked` or `mosaic` (two by two; three guides find room in one picture).
        side: where the original stands: `left` or `right`, `top` or `bottom`, `top_left` and so on.
        size: `resize` fits all into the size of the image; `native` keeps its resolution and makes the picture larger,
            where the model's positions can be interpolated.
        preprocess: from a PIL image to the model's input, for guides that are none yet.
        anatomy: where the model's parts are, if it is of no known family.
        **options: what `explain` takes: `preset`, and the method's own options.
    """
    setup = Setup(layout, side, size, method, options, preprocess, anatomy)
    return average([one.part for one in guided(model, image, guide_image, target, setup)])


def guided(
    model: nn.Module,
    image: Tensor | Mapping[str, Any],
    guide_image: Any,  # noqa: ANN401
    target: AnyTarget,
    setup: Setup,
) -> list[Guided]:
    """What was found on every stitched picture; there is one for as many guides as it has room for."""
    with shadow(model) as own:  # its positions may be interpolated, which the model's own are not
        seen = look(own, image, setup.anatomy)
        if seen.inputs.kind != "image":
            raise InputError("guidance stitches pictures, but the input is text. For text: vitrail.detail.")
        canvas = setup.canvas(seen)
        wanted = as_target(target)
        wanted = wanted.of(seen.logits) if isinstance(wanted, Target) else wanted
        first = wanted.first if isinstance(wanted, Target) else None
        classes = list(first) if isinstance(first, tuple) else [None] * len(seen.logits)
        found = _guides(own, guide_image, setup, seen, classes)
        warn_of(found, classes, setup.named)
        free = canvas.arrangement.free
        groups = [tuple(found[i : i + free]) for i in range(0, len(found), free)]
        return [_explained(own, seen, group, wanted, canvas, setup) for group in groups]


def _guides(
    model: nn.Module,
    given: Any,  # noqa: ANN401
    setup: Setup,
    seen: Seen,
    classes: Sequence[int | None],
) -> list[Guide]:
    if isinstance(given, Sequence) and not given:
        raise InputError("the list of guides is empty: leave it out to use the guides that come with the package.")
    several = [open_shipped(n) for n in SHIPPED] if given is None else given if isinstance(given, Sequence) else [given]
    images = [as_images(one, model, setup.preprocess) for one in several]
    found = [read_guide(one, model, seen, setup.anatomy) for one in images]
    return [choose(found, classes)] if given is None else found


def _explained(
    model: nn.Module,
    seen: Seen,
    guides: tuple[Guide, ...],
    target: Any,  # noqa: ANN401
    canvas: Canvas,
    setup: Setup,
) -> Guided:
    stitched = stitch(seen.inputs.shown, [guide.images for guide in guides], canvas)
    larger = setup.size == "native"
    inputs = seen.showing(stitched, **(asked_to_interpolate(model) if larger else {}))
    with of_any_size(model) if larger else nullcontext():
        if larger:
            _check_size(model, inputs, canvas, setup.anatomy)
        whole = explain(model, inputs, setup.method, target, anatomy=setup.anatomy, **setup.options)
    part = crop(whole, canvas, seen.size)
    return Guided(stitched, whole, replace(part, provenance={**part.provenance, "guidance": setup.about(guides)}))


def _check_size(model: nn.Module, inputs: Any, canvas: Canvas, anatomy: Anatomy | None) -> None:  # noqa: ANN401
    """Refuse a model that does not take pictures of the canvas's size."""
    size = f"{canvas.size[0]} x {canvas.size[1]} pixels"
    try:
        grid = look(model, inputs, anatomy).grid
    except (AssertionError, RuntimeError, ValueError) as error:
        if isinstance(error, (VitrailError, torch.OutOfMemoryError)):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise OptionError(
            f"the positions of {type(model).__name__} cannot be interpolated to {size} ({reason}): use size='resize'."
        ) from error
    if grid != canvas.grid:
        raise OptionError(
            f"{type(model).__name__} divides {size} into {grid} patches instead of {canvas.grid}: use size='resize'."
        )


def average(parts: Sequence[Attribution]) -> Attribution:
    """One attribution, or the mean of several, each divided by its largest magnitude so that none outweighs another."""
    if len(parts) == 1:
        return parts[0]
    tiny = torch.finfo(parts[0].scores.dtype).tiny
    scales = [1 / part.scores.abs().amax(dim=1).clamp(min=tiny) for part in parts]
    about = [part.provenance["guidance"] for part in parts]
    joined = {**about[0], **{name: [x for one in about for x in one[name]] for name in ("guides", "probabilities")}}
    return replace(
        parts[0],
        **{n: _mean([getattr(p, n) for p in parts], scales) for n in ("scores", "own", "pixels", "layers", "heads")},
        provenance={**parts[0].provenance, "guidance": joined},
    )


def _mean(values: Sequence[Tensor | None], scales: Sequence[Tensor]) -> Any:  # noqa: ANN401
    known = [x * s.view(-1, *[1] * (x.ndim - 1)) for x, s in zip(values, scales, strict=True) if x is not None]
    return torch.stack(known).mean(dim=0) if known else None
