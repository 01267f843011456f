"""External guidance and detail: what a picture shows of one class, beside another picture or against another class.

Cui, Fan and Chen, arXiv:2605.11392. Guidance: Sec. 4.4 and Fig. 8. Where a picture shows one class only, the complete
correction has no other class to contrast with, and its map is poor. A guide of another class, stitched to the picture,
provides one. The target stays that of the original, and only the original's part of the map is kept. With
`size="native"` the stitched picture is larger than the model was made for, where its positions can be interpolated.

Detail, Eq. 8: `(y_1 - y_2) / y_1`, explained by the complete correction; positive scores are evidence for the first
class, negative ones for the second. Its gradient is `(y_2/y_1²) ∇y_1 - (1/y_1) ∇y_2`: where a logit is negative one of
the signs turns, and near zero one class drops out. There the difference is the safe form.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail import targets
from vitrail.api import explain
from vitrail.attribution import Attribution
from vitrail.capture.recording.forward import PredictedLogits, predict
from vitrail.capture.shadow import shadow
from vitrail.errors import InputError, OptionError, TargetError, VitrailError, VitrailWarning, suggest
from vitrail.evaluate.stitch import Canvas, Images, crop, fitted, open_shipped, plan_canvas, stitch
from vitrail.models import PICTURES
from vitrail.models.anatomy import Anatomy
from vitrail.models.inputs import read_inputs
from vitrail.targets import AnyTarget, Index, Target, as_target

RECOGNISED = 0.5
"""The probability that the model has to give the class it sees in a guide, for the guide to count as recognised."""
Preprocess = Callable[..., Any]
"""From a PIL image to what the model takes: a tensor, a mapping with pixel_values, or a `Sample` of a loaded model."""


@dataclass(frozen=True, eq=False)
class Guide:
    """A picture for every sample, or one for all; the classes the model sees in it, and how sure it is."""

    images: Images
    classes: tuple[int, ...]
    likely: tuple[float, ...]


def find_preprocess(model: nn.Module) -> Preprocess:
    """Return the preprocessing of this model, if the model itself states it."""
    if getattr(getattr(model, "config", None), "name_or_path", "") == "vitrail.models.zoo:photo":
        from vitrail.models.zoo.photo import preprocess

        return preprocess
    if getattr(model, "pretrained_cfg", None):
        from vitrail.models.loading.vision import view_of

        return view_of(model)
    raise InputError(
        f"{type(model).__name__} does not say how pictures are scaled for it, so the guides that come with the package "
        "cannot be shown to it. Pass preprocess=, a function from a PIL image to the model's input, or guide_image=, a "
        "preprocessed tensor."
    )


def read_guide(guide: object, model: nn.Module, beside: PredictedLogits, setup: "Setup") -> Guide:
    """A guide of the size of the originals, preprocessed if it is no tensor yet, with what the model sees in it."""
    if not isinstance(guide, (Tensor, Mapping)):
        if not hasattr(guide, "convert"):
            raise InputError(
                f"a guide is a preprocessed tensor [b, 3, h, w] or a PIL image, not {type(guide).__name__}. "
                "Open a file with PIL.Image.open(path)."
            )
        guide = (setup.preprocess or find_preprocess(model))(guide)
        guide = getattr(guide, "inputs", guide)
    read = read_inputs(guide)
    if read.kind != "image":
        raise InputError(f"a guide is a picture [b, 3, h, w], but this one has the shape {tuple(read.shown.shape)}.")
    weight = next(model.parameters())
    images = fitted(read.shown.to(weight.device, weight.dtype), beside.size)
    classes, likely = zip(*predict(model, beside.showing(images), setup.anatomy).best, strict=True)
    return Guide(images, classes, likely)


def choose(guides: Sequence[Guide], targets: Sequence[int | None]) -> Guide:
    """For each sample, of the guides that show another class than its target, the one the model is surest of."""
    rows = [max(guides, key=lambda guide, c=target: (guide.classes[0] != c, guide.likely[0])) for target in targets]
    return Guide(
        torch.cat([guide.images for guide in rows]),
        tuple(guide.classes[0] for guide in rows),
        tuple(guide.likely[0] for guide in rows),
    )


def warn_of(guides: Sequence[Guide], targets: Sequence[int | None], named: Callable[[int], str]) -> None:
    """Warn if a guide is no contrast to the target: it shows the same class, or none that the model is sure of."""
    said: set[str] = set()
    for guide in guides:
        each = cycle(zip(guide.classes, guide.likely, strict=True))  # one guide may be that of all samples
        for target, (seen, likely) in zip(targets, each, strict=False):
            if seen == target:
                said.add(f"the guide shows the target itself, {named(seen)}: choose a picture of another class.")
            elif likely < RECOGNISED:
                said.add(
                    f"the model does not recognise the guide: {named(seen)} with probability {likely:.2f}, below "
                    f"{RECOGNISED}. Choose a picture it is sure of."
                )
    for message in sorted(said):
        warnings.warn(message, VitrailWarning, stacklevel=4)


DEFAULT_METHOD = "complete_gradient"


@dataclass(frozen=True)
class Setup:
    """The settings with which pictures are stitched and explained.

    Args:
        options: what `explain` takes beside the method.
        named: from a class index to what warnings call it.
    """

    layout: str = "beside"
    side: str | None = None
    size: str = "resize"
    method: str = DEFAULT_METHOD
    options: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Preprocess | None = None
    anatomy: Anatomy | None = None
    named: Callable[[int], str] = lambda index: f"class {index}"


@dataclass(frozen=True, eq=False)
class Guided:
    """One stitched picture as the model takes it, what was found on the whole of it, and the original's part."""

    stitched: Tensor
    whole: Attribution
    part: Attribution


INTERPOLATE = "interpolate_pos_encoding"
"""The keyword by which Hugging Face's models are asked to interpolate their positions."""


@contextmanager
def of_any_size(model: nn.Module) -> Iterator[None]:
    """Let a shadow of a timm model take pictures of any size, as if made with `dynamic_img_size=True`; then undo it."""
    patches = getattr(model, "patch_embed", None)
    if not hasattr(model, "dynamic_img_size") or not hasattr(patches, "strict_img_size") or model.dynamic_img_size:
        yield
        return
    from timm.layers.format import Format

    changes: list[tuple[Any, str, Any]] = [
        (model, "dynamic_img_size", True),
        (patches, "strict_img_size", False),
        (patches, "flatten", False),
        (patches, "output_fmt", Format.NHWC),
    ]
    with ExitStack() as undo:
        for owner, name, value in changes:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


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
    """Evidence for the target in the image, explained beside a picture of another class.

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
    """Return the result for every stitched picture; there is one for as many guides as it has room for."""
    with shadow(model) as own:  # its positions may be interpolated, which the model's own are not
        seen = predict(own, image, setup.anatomy)
        if seen.inputs.kind != "image":
            raise InputError("guidance stitches pictures, but the input is text. For text: vitrail.detail.")
        assert seen.grid is not None
        canvas = plan_canvas(setup.layout, setup.side, setup.size, (seen.size, seen.grid))
        wanted = as_target(target)
        wanted = wanted.of(seen.logits) if isinstance(wanted, Target) else wanted
        first = wanted.first if isinstance(wanted, Target) else None
        classes = list(first) if isinstance(first, tuple) else [None] * len(seen.logits)
        if isinstance(guide_image, Sequence) and not guide_image:
            raise InputError("the list of guides is empty: leave it out to use the guides that come with the package.")
        given = [open_shipped(name) for name in PICTURES] if guide_image is None else guide_image
        several = given if isinstance(given, Sequence) else [given]
        found = [read_guide(one, own, seen, setup) for one in several]
        found = [choose(found, classes)] if guide_image is None else found
        warn_of(found, classes, setup.named)
        free = canvas.arrangement.free
        groups = [tuple(found[i : i + free]) for i in range(0, len(found), free)]
        return [_explained(own, seen, group, wanted, canvas, setup) for group in groups]


def _explained(
    model: nn.Module,
    seen: PredictedLogits,
    guides: tuple[Guide, ...],
    target: Any,  # noqa: ANN401
    canvas: Canvas,
    setup: Setup,
) -> Guided:
    stitched = stitch(seen.inputs.shown, [guide.images for guide in guides], canvas)
    larger = setup.size == "native"
    asked = larger and INTERPOLATE in inspect.signature(model.forward).parameters
    inputs = seen.showing(stitched, **({INTERPOLATE: True} if asked else {}))
    with of_any_size(model) if larger else nullcontext():
        if larger:
            _check_size(model, inputs, canvas, setup.anatomy)
        whole = explain(model, inputs, setup.method, target, anatomy=setup.anatomy, **setup.options)
    part = crop(whole, canvas, seen.size)
    about = {
        **{name: getattr(setup, name) for name in ("layout", "side", "size")},
        "guides": [list(guide.classes) for guide in guides],
        "probabilities": [list(guide.likely) for guide in guides],
    }
    return Guided(stitched, whole, replace(part, provenance={**part.provenance, "guidance": about}))


def _check_size(model: nn.Module, inputs: Any, canvas: Canvas, anatomy: Anatomy | None) -> None:  # noqa: ANN401
    """Refuse a model that does not take pictures of the canvas's size."""
    size = f"{canvas.size[0]} x {canvas.size[1]} pixels"
    try:
        grid = predict(model, inputs, anatomy).grid
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


SMALL = 0.1
"""Logits below this share of the sample's largest magnitude count as near zero."""
AUTO = "auto"
FORMS = {name: getattr(targets, name) for name in ("relative_difference", "difference", "ratio")}


def detail(
    model: nn.Module,
    input: Tensor | Mapping[str, Any],
    target1: Index | None = None,
    target2: Index | None = None,
    *,
    form: str = AUTO,
    method: str = DEFAULT_METHOD,
    anatomy: Anatomy | None = None,
    **options: Any,  # noqa: ANN401
) -> Attribution:
    """Evidence for one class against another: above zero for the first, below zero for the second.

    The form that was used stands in `.target`, and why in `.provenance["detail"]`.

    Args:
        model: any module that returns logits. It is not changed.
        input: pictures or texts, as for `explain`.
        target1: a class index, or one for each sample; None is the most likely class other than `target2`.
        target2: the same for the other class; None is the most likely class other than `target1`.
        form: `relative_difference` (Eq. 8), `difference`, `ratio`, or `auto`: Eq. 8 where both logits of every sample
            lie clearly above zero, else the difference.
        method: a name of `vitrail.METHODS`; signed ones tell the two classes apart.
        anatomy: where the model's parts are, if it is of no known family.
        **options: what `explain` takes: `preset`, and the method's own options.
    """
    check_form(form)
    logits = predict(model, input, anatomy).logits
    first, second = contrast(logits, target1, target2)
    chosen, why = choose_form(logits, first, second) if form == AUTO else (form, "asked for")
    found = explain(model, input, method, FORMS[chosen](first, second), anatomy=anatomy, **options)
    return replace(found, provenance={**found.provenance, "detail": {"form": chosen, "why": why}})


def check_form(form: str) -> None:
    """Refuse a form that does not exist."""
    if form not in {AUTO, *FORMS}:
        raise OptionError(f"there is no form {form!r}. {suggest(form, [AUTO, *FORMS])}")


def contrast(
    logits: Float[Tensor, "b c"], target1: Index | None, target2: Index | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two classes of each sample; where one is not named, the most likely that is not the other."""
    if logits.shape[1] < 2:
        raise TargetError("a contrast needs two classes, but the model has a single logit.")
    named: list[Any] = [None if c is None else targets.logit(c).of(logits).first for c in (target1, target2)]
    first = named[0] or _best_beside(logits, named[1])
    second = named[1] or _best_beside(logits, first)
    for a, b in zip(first, second, strict=True):
        if a == b:
            raise TargetError(f"both classes are {a}, but a contrast needs two: name another one, or only one of them.")
    return first, second


def _best_beside(logits: Float[Tensor, "b c"], other: Any) -> tuple[int, ...]:  # noqa: ANN401
    if other is None:
        return tuple(logits.argmax(dim=1).tolist())
    taken = torch.tensor(other, device=logits.device)[:, None]
    return tuple(logits.scatter(1, taken, -torch.inf).argmax(dim=1).tolist())


def choose_form(logits: Float[Tensor, "b c"], first: Sequence[int], second: Sequence[int]) -> tuple[str, str]:
    """Eq. 8 where it is safe for every sample, else the difference; and the reason in words."""
    chosen = torch.tensor([first, second], device=logits.device).T
    pair = logits.gather(1, chosen)
    if bool((pair < 0).any()):
        return "difference", "a logit is negative, and Eq. 8 would turn its sign"
    if bool((pair < SMALL * logits.abs().amax(dim=1, keepdim=True)).any()):
        return "difference", "a logit is near zero, and Eq. 8 would leave one class out"
    return "relative_difference", "both logits are clearly above zero"


def detail_matrix(
    model: nn.Module,
    input: Tensor | Mapping[str, Any],
    *,
    top: int = 3,
    form: str = AUTO,
    method: str = DEFAULT_METHOD,
    anatomy: Anatomy | None = None,
    **options: Any,  # noqa: ANN401
) -> list[list[Attribution]]:
    """Every one of the most likely classes against every other, row against column; on the diagonal the class itself.

    Args:
        model: any module that returns logits. It is not changed.
        input: one picture or text, as for `explain`.
        top: how many classes.
        form: as for `detail`, and so are all the others.
    """
    check_form(form)
    seen = predict(model, input, anatomy)
    if seen.inputs.batch != 1:
        raise OptionError(f"a matrix shows the classes of one input, but {seen.inputs.batch} were given.")
    if not 2 <= top <= seen.logits.shape[1]:
        raise OptionError(f"top={top}, but a matrix takes 2 to {seen.logits.shape[1]} classes, as many as there are.")
    best = seen.logits[0].topk(top).indices.tolist()
    targeted = [[_cell(seen.logits, row, column, form) for column in best] for row in best]
    return [[explain(model, input, method, cell, anatomy=anatomy, **options) for cell in row] for row in targeted]


def _cell(logits: Tensor, row: int, column: int, form: str) -> Target:
    if row == column:
        return targets.logit(row)
    name = choose_form(logits, (row,), (column,))[0] if form == AUTO else form
    return FORMS[name](row, column)
