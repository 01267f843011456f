"""Consensus: a weighted sum of several explanations, each on the same scale.

Our own method, see docs/CONSENSUS.md. Symbols: g -> `gae`, a -> `attn_lrp` at the embeddings, l -> `le_grad` at the
readout, s -> `att_grads`; n -> `min_max_over`, from zero to one over the content of each sample. The sum is
`n(g)^p + n(a+)^p / 2 + n(l)^p + n(s)^p / 2`, slightly smoothed. On text it is `attn_lrp` on copies with words blanked.

All parts of a picture share one forward pass. It is differentiated once for each kind of backward pass: by the chain
rule (g and s), by AttnLRP's rules (a), and inside each block alone (l).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.capture.recording.layer import own_dtypes
from vitrail.capture.recording.pass_options import PLAIN, PassOptions
from vitrail.errors import MethodError, OptionError, VitrailError
from vitrail.methods import agcam, attn_lrp, gae, grad_cam, le_grad, tokentm
from vitrail.methods.integrated_gradients import few_steps
from vitrail.methods.options import check_choice, min_max_over, special_tokens, without_own
from vitrail.methods.pixel_maps import Finish, at_pixels, moved
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.models.readouts import last_position
from vitrail.relevance import LayerReader, Result, Walk
from vitrail.relevance.lrp import propagating
from vitrail.relevance.lrp.operation import Flow
from vitrail.relevance.runner import RerunMethod, Runner

Scores = Float[Tensor, "b t"]
Parts = Float[Tensor, "b p t"]
Grid = Float[Tensor, "b p y x"]
Content = Bool[Tensor, "b t"]
Scale = Callable[[Scores, Content], Scores]
Disagreement = Float[Tensor, " b"] | None

LEVEL = "embedding_output"
COPIES = 3
"""How many copies of a text are explained, each without another third of its words."""
MOST_SAMPLES = {"cuda": 256}
"""Samples of moved pictures that run at once; elsewhere `FEW_SAMPLES`."""
FEW_SAMPLES = 32


# One scale for all parts


def positive_unit(scores: Scores, content: Content, power: float) -> Scores:
    """`n(x+)^p`: evidence against the target counts as none."""
    return min_max_over(scores.clamp(min=0), content).pow(power)


def signed_unit(scores: Scores, content: Content, power: float) -> Scores:
    """`sign(x) (|x| / max |x|)^p`: evidence against the target stays below zero."""
    size = scores.abs().masked_fill(~content, 0.0)
    largest = size.amax(dim=1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    return scores.sign() * (size / largest).pow(power)


SCALES: dict[str, Callable[[Scores, Content, float], Scores]] = {"drop": positive_unit, "keep": signed_unit}
"""How a part is scaled: with evidence against the target dropped or kept."""


# Disagreement of the parts


def ranks(scores: Parts, content: Content) -> Parts:
    """The rank of each score among the content of its sample, equal scores sharing theirs; zero elsewhere."""
    hidden = ~content[:, None].expand_as(scores)
    values = scores.masked_fill(hidden, torch.inf).contiguous()
    ordered = values.sort(dim=2).values
    low, high = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return ((low + high) / 2).to(scores.dtype).masked_fill(hidden, 0.0)


def disagreement(parts: Parts, content: Content) -> Disagreement:
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


# Scores spread over their neighbours


def bell(width: float, *, like: Tensor) -> Float[Tensor, " k"]:
    """A Gaussian of this standard deviation in tokens, cut at three of them; its entries sum to one."""
    reach = math.ceil(3 * width)
    places = torch.arange(-reach, reach + 1, device=like.device, dtype=like.dtype)
    weights = torch.exp(-0.5 * (places / width) ** 2)
    return weights / weights.sum()


def smoothed(parts: Parts, content: Content, width: float) -> Parts:
    """Every score shared among the tokens around it, within the content; a width of zero leaves them.

    People mark phrases as reasons; models react to single words.
    """
    if width == 0:
        return parts
    kernel, hidden = bell(width, like=parts), ~content[:, None]
    rows = parts.masked_fill(hidden, 0.0).flatten(0, 1)[:, None]
    spread = F.conv1d(rows, kernel[None, None], padding=len(kernel) // 2)
    return spread[:, 0].unflatten(0, parts.shape[:2]).masked_fill(hidden, 0.0)


def smoothed_grid(maps: Grid, width: float) -> Grid:
    """Every score shared among the patches around it; the patches at the border are repeated beyond it."""
    kernel = bell(width, like=maps)
    reach = len(kernel) // 2
    padded = F.pad(maps.flatten(0, 1)[:, None], (reach,) * 4, mode="replicate")
    spread = F.conv2d(F.conv2d(padded, kernel[None, None, None]), kernel[None, None, :, None])
    return spread[:, 0].unflatten(0, maps.shape[:2])


def on_grid(runner: Runner, found: Parts) -> Grid:
    """The parts of the patches alone, on the grid of patches."""
    assert runner.run.origin.grid is not None
    y, x = runner.run.origin.grid
    return rearrange(runner.run.patches(found), "b p (y x) -> b p y x", y=y, x=x)


def spread(runner: Runner, found: Parts, width: float) -> Parts:
    """Every part spread over neighbouring patches or tokens."""
    if runner.inputs.kind != "image":
        return smoothed(found, runner.run.content, width)
    return runner.run.among_tokens(smoothed_grid(on_grid(runner, found), width).flatten(2))


# AttnLRP on copies of a text in which words are blanked


def blank_of(model: nn.Module) -> int:
    """The id that replaces a blanked word: padding, else the end of a text, else 0.

    Where positions skip the padding, as in RoBERTa, padding would shift the positions of all words after it.
    """
    tables = (m for n, m in model.named_modules() if n.endswith("position_embeddings") and isinstance(m, nn.Embedding))
    names = ["pad_token_id", "eos_token_id"]
    if any(table.padding_idx is not None for table in tables):
        names.reverse()
    config = getattr(model, "config", None)
    for name in names:
        found = getattr(config, name, None)
        first = found[0] if isinstance(found, Sequence) and found else found
        if isinstance(first, int) and first >= 0:
            return first
    return 0


def words_of(runner: Runner) -> Content:
    """The tokens that may be blanked: not special ones, not where the answer is read, not the first and the last."""
    valid = runner.run.patches(runner.run.valid)
    words = valid & ~special_tokens(runner.inputs) if runner.inputs.ids is not None else valid
    places = [valid.to(torch.int64).argmax(dim=1), last_position(valid)]
    padding = getattr(getattr(runner.model, "config", None), "pad_token_id", None)
    if runner.inputs.ids is not None and padding is not None:  # classifiers read the last token that is not this
        places.append(last_position(valid & (runner.inputs.ids.to(valid.device) != padding)))
    if runner.part.position is not None and runner.part.position.max() < words.shape[1]:
        places.append(runner.part.position)
    for place in places:
        words = words.scatter(1, place[:, None], value=False)
    return words


def kept(words: Content, copies: int) -> Bool[Tensor, "c b t"]:
    """Return the tokens that each copy holds: the j-th lacks the words j, j + c, j + 2c, ... of every text."""
    number = words.cumsum(dim=1) - 1
    return torch.stack([~words | (number % copies != copy) for copy in range(copies)])


def blanked(inputs: Inputs, keep: Content, blank: int) -> Inputs:
    """The same call with an id for no word, or an embedding of zeros, in the place of tokens that are not kept."""
    if inputs.shown.is_floating_point():
        return inputs.showing(inputs.shown * keep[:, :, None])
    ids = inputs.shown.masked_fill(~keep.to(inputs.shown.device), blank)
    return replace(inputs.showing(ids), ids=ids)


def copies_disagree(found: Tensor, keep: Bool[Tensor, "c b t"], words: Content) -> Tensor:
    """One minus the mean over pairs of copies of Spearman's correlation, over the words that both hold.

    Pairs that share fewer than two words are left out. If none remains, the text is too short, and the result is one.
    """
    differ, counts = [], []
    for pair in combinations(range(len(keep)), 2):
        shared = words & keep[list(pair)].all(dim=0)
        one = disagreement(found[list(pair)].transpose(0, 1), shared)
        assert one is not None
        differ.append(one)
        counts.append(shared.sum(dim=1) > 1)
    weights = torch.stack(counts).to(found.dtype)
    mean = (torch.stack(differ) * weights).sum(dim=0) / weights.sum(dim=0).clamp(min=1)
    return torch.where(weights.sum(dim=0) > 0, mean, torch.ones_like(mean))


def at_once(runner: Runner) -> int:
    """Return the number of copies that run together: one for a single text if the model names no padding token."""
    config = getattr(runner.model, "config", None)
    unpadded = config is not None and getattr(config, "pad_token_id", None) is None
    return 1 if unpadded and runner.inputs.batch == 1 else COPIES


def scores_of(runner: Runner, method: RerunMethod, keep: Bool[Tensor, "c b t"]) -> Float[Tensor, "c b t"]:
    """The scores of a method on copies with blanked words that run together."""
    inputs = blanked(runner.repeated(len(keep)), keep.flatten(0, 1), blank_of(runner.model))
    with runner.again(method.needs, method.pass_options, inputs=inputs, copies=len(keep)) as (run, part):
        result = method.explain(replace(runner, inputs=inputs, run=run, part=part))
    assert result.scores is not None
    return run.patches(result.scores).unflatten(0, (len(keep), -1)) * keep


def on_copies(method: RerunMethod) -> RerunMethod:
    """A method on a text, its scores averaged over copies with words blanked.

    Every copy lacks each third word, another third in each. A token's score is its mean over the copies that hold it.
    This includes the effect of a token in copies where others with the same evidence are missing.
    """

    def explain(runner: Runner) -> Result:
        words = words_of(runner)
        keep = kept(words, COPIES)
        found = torch.cat([scores_of(runner, method, some) for some in keep.split(at_once(runner))])
        mean = runner.run.among_tokens(found.sum(dim=0) / keep.sum(dim=0))
        return Result(mean, disagreement=copies_disagree(found, keep, words))

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if inputs.kind != "text" or inputs.signal:
            given = "a signal" if inputs.signal else inputs.kind
            raise OptionError(f"words are blanked in text only, but these inputs are {given}.")
        method.check(model, body, inputs)

    return RerunMethod(explain, check=check)


# The parts, and the pass they share


@dataclass(frozen=True)
class Part:
    """One explanation that takes part.

    Args:
        build: makes the method.
        flow: the backward pass of the shared forward pass that it reads; None for a method that makes its own passes.
    """

    build: Callable[[], Walk | LayerReader | RerunMethod]
    flow: str | None = "gradient"


PARTS: dict[str, Part] = {
    "gae": Part(lambda: gae.build()),
    "lengths": Part(lambda: tokentm.build(direction=False, ffn=False, initial="identity", scalar="logit")),
    "att_grads": Part(lambda: grad_cam.build_att_grads()),
    "agcam": Part(lambda: agcam.build()),
    "attn_lrp": Part(lambda: attn_lrp.build(), "relevance"),
    "le_grad": Part(lambda: le_grad.build(tokens="readout"), "block"),
    "integrated_gradients": Part(lambda: few_steps("inputs_embeds", 3), None),
    "blanked_lrp": Part(lambda: on_copies(attn_lrp.build()), None),
}


@dataclass(frozen=True)
class Pooled:
    """The parts of one consensus with their weights and methods, and how their passes are shared."""

    weights: Mapping[str, float]
    methods: Mapping[str, Walk | LayerReader | RerunMethod]
    scale: Scale
    flow: Flow = field(default_factory=Flow)

    @property
    def shares(self) -> bool:
        """Return True if one forward pass under AttnLRP's rules serves all parts that read one."""
        return "attn_lrp" in self.weights

    @property
    def pass_options(self) -> PassOptions:
        """The options of the shared pass."""
        rules = partial(propagating, attn_lrp.ATTN, flow=self.flow)
        return PassOptions(level=LEVEL, within=rules) if self.shares else PLAIN

    @property
    def needs(self) -> frozenset[str]:
        """The tensors that the shared pass keeps."""
        read = (
            method.needs
            for name, method in self.methods.items()
            if not isinstance(method, RerunMethod) or (self.shares and PARTS[name].flow)
        )
        return frozenset[str]().union(*read)

    def results(self, runner: Runner) -> dict[str, Result]:
        """The result of every part, from as few passes as they need."""
        readers = {name: method for name, method in self.methods.items() if not isinstance(method, RerunMethod)}
        self.flow.kind = "gradient"
        results = dict(zip(readers, runner.read_by(*readers.values()), strict=True))
        for name, method in self.methods.items():
            flow = PARTS[name].flow if self.shares else None
            if not isinstance(method, RerunMethod):
                continue
            if flow is None:
                results[name] = runner.follow(method)
            else:
                self.flow.kind = flow
                results[name] = method.explain(runner)
        return results

    def explain(self, runner: Runner) -> tuple[Parts, Disagreement]:
        """All parts, scaled and weighted, and their disagreement."""
        results, content, dtype = self.results(runner), runner.run.content, runner.run.output.wide.dtype
        scores = {name: without_own(results[name]).to(dtype) for name in self.weights}
        found = torch.stack([self.weights[name] * self.scale(x, content) for name, x in scores.items()], dim=1)
        if len(self.weights) > 1:
            return found, disagreement(found, content)
        return found, next(iter(results.values())).disagreement

    def of_pictures(self, runner: Runner, pictures: Float[Tensor, "m b c h w"]) -> tuple[Tensor, Tensor | None]:
        """The parts of other pictures of the same samples on the grid of patches, and their disagreement."""
        limit = MOST_SAMPLES.get(pictures.device.type, FEW_SAMPLES)
        found, disagreements = [], []
        for some in pictures.split(max(1, limit // pictures.shape[1])):
            inputs = runner.repeated(len(some)).showing(some.flatten(0, 1))
            with runner.again(self.needs, self.pass_options, inputs=inputs, copies=len(some)) as (run, part):
                other = replace(runner, inputs=inputs, run=run, part=part)
                parts, differ = self.explain(other)
                found.append(on_grid(other, parts).unflatten(0, (len(some), -1)))
                disagreements += [] if differ is None else [differ.unflatten(0, (len(some), -1))]
        return torch.cat(found), torch.cat(disagreements) if disagreements else None

    def check(self, model: nn.Module, body: Body, inputs: Inputs) -> None:
        """Raise if one of the parts does not apply, naming it."""
        for name, method in self.methods.items():
            try:
                if isinstance(method, RerunMethod):
                    method.check(model, body, inputs)
            except VitrailError as error:
                raise MethodError(f"consensus does not apply, because its part {name} does not: {error}") from error


# Options


def read_parts(text: str) -> dict[str, float]:
    """The names of the parts, each once, with their weights: `gae+0.5*attn_lrp`."""
    weights: dict[str, float] = {}
    for term in text.split("+"):
        factor, _, name = term.rpartition("*")
        name = name.strip()
        check_choice("parts", name, PARTS)
        if name in weights:
            raise OptionError(f"parts={text!r} names a part twice.")
        try:
            weights[name] = float(factor or 1)
        except ValueError:
            weights[name] = math.nan
        if not 0 < weights[name] < math.inf:
            raise OptionError(f"parts={text!r} has the weight {factor.strip()!r}, but a weight is a number above zero.")
    return weights


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
            maps of pixels are not smoothed.
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
        raise OptionError(
            f"power={power} and smooth={smooth}, but power must be above 0, smooth a finite number of at least 0."
        )
    finish = Finish.of(shift=shift, radius=radius, eps=eps, calibration=calibration)
    methods = {name: PARTS[name].build() for name in weights}
    pooled = Pooled(weights, methods, lambda scores, content: bring(scores, content, power))

    def patches(runner: Runner) -> Result:
        found, differ = pooled.explain(runner)
        with own_dtypes(found.device.type):
            found = spread(runner, found, smooth) if smooth else found
        return Result(found.sum(dim=1), layers=found, parts=tuple(weights), disagreement=differ)

    def pixels(runner: Runner) -> Result:
        picture = runner.inputs.shown
        found, differ = pooled.of_pictures(runner, torch.stack([moved(picture, *move) for move in finish.moves]))
        patch, fine = at_pixels(picture, found, finish)
        differ = None if differ is None else differ.mean(dim=0)
        found = runner.run.among_tokens(patch.flatten(2))
        return Result(layers=found, pixels=fine, parts=tuple(weights), disagreement=differ)

    # For pixels, the pass that was made is used only to choose the class.
    plans = {"patches": (patches, pooled.pass_options, pooled.needs), "pixels": (pixels, PLAIN, frozenset[str]())}
    explain, options, needs = check_choice("detail", detail, plans)

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if detail == "pixels" and inputs.kind != "image":
            raise OptionError(f"detail='pixels' is for images, but these inputs are {inputs.kind}.")
        pooled.check(model, body, inputs)

    return RerunMethod(explain, options, needs, check=check)
