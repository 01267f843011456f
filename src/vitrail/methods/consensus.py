"""Consensus: explanations that err in different places, brought to one scale and added.

Our own method, see docs/CONSENSUS.md. Symbols: g -> `gae`, a -> `attn_lrp` at the embeddings, l -> `le_grad` read where
the model reads, s -> `att_grads`; n -> unit, from zero to one over the content of each sample. The sum is
`n(g)^p + n(a+)^p / 2 + n(l)^p + n(s)^p / 2`, lightly smoothed.
On text it is `attn_lrp` on copies with words blanked, see `consensus_blanked`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.capture.recording import own_dtypes
from vitrail.errors import MethodError, OptionError, VitrailError
from vitrail.methods.consensus_agreement import disagreement
from vitrail.methods.consensus_grid import off_grid, on_grid, smoothed_grid
from vitrail.methods.consensus_parts import PARTS
from vitrail.methods.consensus_pixels import Finish, to_pixels
from vitrail.methods.consensus_smooth import smoothed
from vitrail.methods.options import check_choice
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import Result, Walk
from vitrail.relevance.runner import RerunMethod, Runner

Scores = Float[Tensor, "b t"]
Parts = Float[Tensor, "b p t"]
Content = Bool[Tensor, "b t"]
Scale = Callable[[Scores, Content], Scores]
Apart = Float[Tensor, " b"] | None
Ask = Callable[[Runner], tuple[Parts, Apart]]


def unit(scores: Scores, content: Content) -> Scores:
    """n: from zero to one over the content of each sample, zero elsewhere; a constant becomes zero."""
    low = scores.masked_fill(~content, torch.inf).amin(dim=1, keepdim=True)
    high = scores.masked_fill(~content, -torch.inf).amax(dim=1, keepdim=True)
    return ((scores - low) / (high - low).clamp(min=torch.finfo(scores.dtype).tiny)).masked_fill(~content, 0.0)


def positive_unit(scores: Scores, content: Content, power: float) -> Scores:
    """`n(x+)^p`: evidence against the target counts as none."""
    return unit(scores.clamp(min=0), content).pow(power)


def signed_unit(scores: Scores, content: Content, power: float) -> Scores:
    """`sign(x) (|x| / max |x|)^p`: evidence against the target stays below zero."""
    size = scores.abs().masked_fill(~content, 0.0)
    largest = size.amax(dim=1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    return scores.sign() * (size / largest).pow(power)


SCALES: dict[str, Callable[[Scores, Content, float], Scores]] = {"drop": positive_unit, "keep": signed_unit}
"""What becomes of evidence against the target, and so how a part is brought to scale."""


def explain_parts(runner: Runner, weights: Mapping[str, float], scale: Scale) -> tuple[Parts, Apart]:
    """All parts, each brought to scale and weighed, and how little they agree."""
    dtype = runner.run.output.wide.dtype
    methods = {name: PARTS[name]("float64" if dtype is torch.float64 else "float32") for name in weights}
    walks = {name: method for name, method in methods.items() if isinstance(method, Walk)}
    results = dict(zip(walks, runner.walks(list(walks.values())), strict=True))
    for name, method in methods.items():
        if isinstance(method, RerunMethod):
            results[name] = runner.follow(method)
    content = runner.run.content
    scores = {name: _without_own(results[name]).to(dtype) for name in weights}
    found = torch.stack([weights[name] * scale(x, content) for name, x in scores.items()], dim=1)
    return found, disagreement(found, content) if len(weights) > 1 else results[next(iter(weights))].disagreement


def _without_own(result: Result) -> Scores:
    """Scores without what a token's score holds only for being read itself."""
    assert result.scores is not None
    return result.scores if result.own is None else result.scores - result.own


def of_picture(runner: Runner, picture: Tensor, ask: Ask, needs: frozenset[str]) -> tuple[Tensor, Apart]:
    """The parts of another picture on the grid of patches, and how little they agree."""
    with runner.looking_at(runner.inputs.showing(picture), needs) as other:
        found, apart = ask(other)
        return on_grid(other, found), apart


def spread(runner: Runner, found: Parts, width: float) -> Parts:
    """Every part spread over neighbouring patches or tokens."""
    if runner.inputs.kind != "image":
        return smoothed(found, runner.run.content, width)
    return off_grid(runner, smoothed_grid(on_grid(runner, found), width))


def read_parts(text: str) -> dict[str, float]:
    """The names of the parts, each once, with their weights: `gae+0.5*attn_lrp`."""
    weights: dict[str, float] = {}
    for term in text.split("+"):
        factor, _, name = term.rpartition("*")
        name = name.strip()
        check_choice("parts", name, PARTS)
        if name in weights:
            raise OptionError(f"parts={text!r} names a part twice.")
        weights[name] = _weight(factor, text)
    return weights


def _weight(factor: str, text: str) -> float:
    try:
        weight = float(factor or 1)
    except ValueError:
        weight = 0.0
    if not 0 < weight < float("inf"):
        raise OptionError(f"parts={text!r} has the weight {factor.strip()!r}, but a weight is a number above zero.")
    return weight


def check_parts(names: Iterable[str], model: nn.Module, body: Body, inputs: Inputs) -> None:
    """Raise if one of the parts does not apply, naming it."""
    for name in names:
        method = PARTS[name]("float32")
        try:
            if isinstance(method, RerunMethod):
                method.check(model, body, inputs)
        except VitrailError as error:
            raise MethodError(f"consensus does not apply, because its part {name} does not: {error}") from error


def build(  # noqa: PLR0913  (one option for each step of the recipe)
    *,
    parts: str = "gae+0.5*attn_lrp+le_grad+0.5*att_grads",
    power: float = 0.5,
    negative: str = "drop",
    smooth: float = 0.4,
    detail: str = "patches",
    shift: int = 4,
    radius: int = 16,
    eps: float = 0.001,
    calibration: str = "otsu",
) -> RerunMethod:
    """Several explanations, each brought to one scale and raised to a power, added.

    Args:
        parts: which explanations are added, joined by `+`, each with a weight if it is not one (`0.5*attn_lrp`): `gae`,
            `lengths`, `attn_lrp`, `le_grad`, `att_grads`, `agcam`, and for text `blanked_lrp` and
            `integrated_gradients`.
        power: what each of them is raised to; below one, weak evidence counts for more.
        negative: `drop` evidence against the target, or `keep` it below zero.
        smooth: how far scores are spread over their neighbours, the deviation of a Gaussian in patches or tokens;
            maps of pixels have their own ways.
        detail: one score for each of the `patches` or tokens, or a map of `pixels` that follows the picture's edges.
            All that follows is for `pixels`.
        shift: explain the picture moved by so many pixels along both diagonals, and average; 0 leaves it in place.
        radius: of the guided filter's window, in pixels.
        eps: how much the picture, from zero to one, has to vary for its edges to be followed.
        calibration: `otsu`: a power for each map, such that as many pixels lie above its mean as above Otsu's
            threshold; or `none`.
    """
    weights, bring = read_parts(parts), check_choice("negative", negative, SCALES)
    if not 0 < power < math.inf or not 0 <= smooth < math.inf:
        raise OptionError(f"power={power} and smooth={smooth}, but power has to be above zero and smooth not below.")
    walks = [method for name in weights if isinstance(method := PARTS[name]("float32"), Walk)]
    needs = frozenset[str]().union(*(walk.needs for walk in walks))
    finish = Finish.of(shift=shift, radius=radius, eps=eps, calibration=calibration)
    ask = partial(explain_parts, weights=weights, scale=lambda scores, content: bring(scores, content, power))

    def patches(runner: Runner) -> Result:
        found, apart = ask(runner)
        with own_dtypes(found.device.type):
            found = spread(runner, found, smooth) if smooth else found
        return Result(found.sum(dim=1), layers=found, parts=tuple(weights), disagreement=apart)

    def pixels(runner: Runner) -> Result:
        explain = lambda picture: of_picture(runner, picture, ask, needs)  # noqa: E731
        found, apart, fine = to_pixels(runner.inputs.shown, explain, finish)
        return Result(layers=off_grid(runner, found), pixels=fine, parts=tuple(weights), disagreement=apart)

    # For pixels, the pass that has been made only says which class is explained.
    explain, first = check_choice("detail", detail, {"patches": (patches, needs), "pixels": (pixels, frozenset())})

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if detail == "pixels" and inputs.kind != "image":
            raise OptionError(f"detail='pixels' is for images, but these inputs are {inputs.kind}.")
        check_parts(weights, model, body, inputs)

    return RerunMethod(explain, needs=first, check=check)
