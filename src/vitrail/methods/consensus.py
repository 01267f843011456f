"""Consensus: three explanations that err in different places, brought to one scale and added.

Our own method, see docs/CONSENSUS.md. Symbols: g -> `gae`, a -> `attn_lrp` at the embeddings, l -> `le_grad` read where
the model reads; n -> unit, from zero to one over the content of each sample. The sum is `n(g)^p + n(a+)^p + n(l)^p`.
"""

from collections.abc import Callable
from functools import partial
from itertools import combinations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.anatomy import Body
from vitrail.errors import MethodError, OptionError, VitrailError
from vitrail.grids import grid_of
from vitrail.inputs import Inputs
from vitrail.methods.consensus_parts import PARTS
from vitrail.methods.consensus_pixels import Finish, to_pixels
from vitrail.methods.options import check_choice
from vitrail.relevance import Result, Walk
from vitrail.subject import Procedure, Subject

Scores = Float[Tensor, "b t"]
Parts = Float[Tensor, "b p t"]
Content = Bool[Tensor, "b t"]
Scale = Callable[[Scores, Content], Scores]
Apart = Float[Tensor, " b"] | None
Ask = Callable[[Subject], tuple[Parts, Apart]]


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


def ranks(scores: Parts, content: Content) -> Parts:
    """The rank of each score among the content of its sample, equal scores sharing theirs; zero elsewhere."""
    hidden = ~content[:, None].expand_as(scores)
    values = scores.masked_fill(hidden, torch.inf).contiguous()
    ordered = values.sort(dim=2).values
    low, high = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return ((low + high) / 2).to(scores.dtype).masked_fill(hidden, 0.0)


def disagreement(parts: Parts, content: Content) -> Apart:
    """One minus the mean of Spearman's correlation over pairs of parts; a constant part agrees with none."""
    if parts.shape[1] < 2:
        return None
    count = content.sum(dim=1)[:, None, None]
    ranked = ranks(parts, content)
    centred = (ranked - ranked.sum(dim=2, keepdim=True) / count).masked_fill(~content[:, None], 0.0)
    length = centred.norm(dim=2, keepdim=True)
    shape = centred / length.clamp(min=1e-6)  # lengths of ranks are zero or at least about one
    pairs = [(shape[:, i] * shape[:, j]).sum(dim=1) for i, j in combinations(range(parts.shape[1]), 2)]
    return 1 - torch.stack(pairs).mean(dim=0)


def content_of(valid: Content, prefix: int) -> Content:
    """The patches, or the real tokens of a text; not the class token and its like, which stand before them."""
    return valid & (torch.arange(valid.shape[1], device=valid.device) >= prefix)


def explain_part(subject: Subject, name: str) -> Scores:
    """The scores of one part, without what a token's score holds only for being read itself."""
    dtype = subject.run.output.wide.dtype
    method = PARTS[name]("float64" if dtype is torch.float64 else "float32")
    result = subject.walk(method) if isinstance(method, Walk) else subject.follow(method)
    assert result.scores is not None
    scores = result.scores if result.own is None else result.scores - result.own
    return scores.to(dtype)


def explain_parts(subject: Subject, names: tuple[str, ...], scale: Scale) -> tuple[Parts, Apart]:
    """All parts, each brought to scale, and how little they agree."""
    content = content_of(subject.run.valid, subject.run.prefix)
    found = torch.stack([scale(explain_part(subject, name), content) for name in names], dim=1)
    return found, disagreement(found, content)


def on_grid(subject: Subject, picture: Tensor, ask: Ask, needs: frozenset[str]) -> tuple[Tensor, Apart]:
    """The parts of another picture, laid out on the grid of patches, and how little they agree."""
    with subject.looking_at(subject.inputs.showing(picture), needs) as other:
        found, apart = ask(other)
        patches = found[:, :, other.run.prefix :]
        y, x = grid_of(patches.shape[2], (picture.shape[2], picture.shape[3]))
        return rearrange(patches, "b p (y x) -> b p y x", y=y, x=x), apart


def read_parts(text: str) -> tuple[str, ...]:
    """The names of the parts, each once."""
    names = tuple(name.strip() for name in text.split("+"))
    for name in names:
        check_choice("parts", name, PARTS)
    if len(set(names)) < len(names):
        raise OptionError(f"parts={text!r} names a part twice.")
    return names


def check_parts(names: tuple[str, ...], model: nn.Module, body: Body, inputs: Inputs) -> None:
    """Raise if one of the parts does not apply, naming it."""
    for name in names:
        method = PARTS[name]("float32")
        try:
            if isinstance(method, Procedure):
                method.check(model, body, inputs)
        except VitrailError as error:
            raise MethodError(f"consensus does not apply, because its part {name} does not: {error}") from error


def build(
    *,
    parts: str = "gae+attn_lrp+le_grad",
    power: float = 0.5,
    negative: str = "drop",
    detail: str = "patches",
    shift: int = 4,
    radius: int = 16,
    eps: float = 0.001,
    calibration: str = "otsu",
) -> Procedure:
    """Several explanations, each brought to one scale and raised to a power, added.

    Args:
        parts: which explanations are added, joined by `+`: `gae`, `attn_lrp`, `le_grad`, `integrated_gradients` (text).
        power: what each of them is raised to; below one, weak evidence counts for more.
        negative: `drop` evidence against the target, or `keep` it below zero.
        detail: one score for each of the `patches` or tokens, or a map of `pixels` that follows the picture's edges.
            All that follows is for `pixels`.
        shift: explain the picture moved by so many pixels along both diagonals, and average; 0 leaves it in place.
        radius: of the guided filter's window, in pixels.
        eps: how much the picture, from zero to one, has to vary for its edges to be followed.
        calibration: `otsu`: a power for each map, such that as many pixels lie above its mean as above Otsu's
            threshold; or `none`.
    """
    names, bring = read_parts(parts), check_choice("negative", negative, SCALES)
    if power <= 0:
        raise OptionError(f"power={power}, but it has to be above zero.")
    walks = [method for name in names if isinstance(method := PARTS[name]("float32"), Walk)]
    needs = frozenset[str]().union(*(walk.needs for walk in walks))
    finish = Finish.of(shift=shift, radius=radius, eps=eps, calibration=calibration)
    ask = partial(explain_parts, names=names, scale=lambda scores, content: bring(scores, content, power))

    def patches(subject: Subject) -> Result:
        found, apart = ask(subject)
        return Result(found.sum(dim=1), layers=found, parts=names, disagreement=apart)

    def pixels(subject: Subject) -> Result:
        explain = lambda picture: on_grid(subject, picture, ask, needs)  # noqa: E731
        found, apart, fine = to_pixels(subject.inputs.shown, explain, finish)
        layers = F.pad(found.flatten(2), (subject.run.prefix, 0))
        return Result(layers=layers, pixels=fine, parts=names, disagreement=apart)

    # For pixels, the pass that has been made only says which class is explained.
    explain, first = check_choice("detail", detail, {"patches": (patches, needs), "pixels": (pixels, frozenset())})

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if detail == "pixels" and inputs.kind != "image":
            raise OptionError(f"detail='pixels' is for images, but these inputs are {inputs.kind}.")
        check_parts(names, model, body, inputs)

    return Procedure(explain, needs=first, check=check)
