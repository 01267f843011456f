"""Attention transfer: the attention maps are the only parameters, and follow the gradient of the target.

Cui, Fan and Chen, arXiv:2605.11392, Sec. 4.4 and Fig. 6. Paper -> code: the updated attention maps -> maps (Theta),
learning rate 0.0004 -> eta, loss = logit of the target class -> the target. The loss is minimised, so attention moves
away from the target; the other direction is ours. `transfer` returns the prediction and its explanation
(`complete_gradient`) at each step. A film shows evenly spaced frames side by side, or all of them one after the other.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.api.attributions import attribution_of
from vitrail.api.requests import Request, read_request
from vitrail.attribution import Attribution
from vitrail.capture.outputs import Scalar
from vitrail.capture.provenance import provenance
from vitrail.capture.recording.events import Event, Events
from vitrail.capture.recording.forward import find_body, forward
from vitrail.capture.recording.layer import widen
from vitrail.capture.recording.pass_options import PLAIN, ComputeSettings, PassOptions, Wanted
from vitrail.capture.recording.passes import Pass
from vitrail.capture.seams.intercept import Override, in_place_of, on_top_of
from vitrail.capture.shadow import shadow
from vitrail.errors import OptionError, OutputError, TargetError, as_path, suggest
from vitrail.methods.options import check_blocks, check_choice, check_count, show_progress
from vitrail.models.anatomy import Anatomy, Body
from vitrail.models.inputs import Inputs, read_inputs
from vitrail.models.taking import prepared
from vitrail.plots.canvas import check_index, rendered, require_matplotlib
from vitrail.plots.pictures import Panel, as_picture, panel_figure, region_of, sample_map
from vitrail.plots.tokens import SentenceRow, pieces, sentence_figure
from vitrail.relevance.runner import RerunMethod
from vitrail.relevance.walk import walk_events
from vitrail.storage import finite, json_text, write_bytes
from vitrail.targets import AnyTarget, Target, as_target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAMES = 7


@dataclass(frozen=True, eq=False)
class Transfer:
    """One entry for the model as it is and one after each update of its attention maps.

    Args:
        target: one class for each sample, the same in all steps.
        logits: with the maps of each step put in place of the model's own.
        scalar: the target's value, which the updates follow.
        attributions: the explanation of each step.
        attention: the maps of every block after the last update, first block to last.
        clean: the logits of the model as it is, computed by its own attention.
        settings: eta, steps, direction, gradient, renormalise.
    """

    target: Target
    logits: Float[Tensor, "s b c"]
    scalar: Float[Tensor, "s b"]
    attributions: tuple[Attribution, ...]
    attention: tuple[Float[Tensor, "b h q k"], ...]
    clean: Float[Tensor, "b c"]
    settings: Mapping[str, Any]

    def __repr__(self) -> str:
        """One line: what is followed, and how far."""
        said = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"Transfer({self.target}, {len(self)} steps of {self.logits.shape[1]} samples, {said})"

    def __len__(self) -> int:
        """Return the number of pictures in the film: one more than updates."""
        return len(self.attributions)

    @property
    def maps(self) -> Float[Tensor, "s b n"]:
        """The scores of all steps."""
        return torch.stack([attribution.scores for attribution in self.attributions])

    @property
    def probabilities(self) -> Float[Tensor, "s b c"]:
        """The softmax over classes; of a single logit, its sigmoid."""
        return self.logits.sigmoid() if self.logits.shape[2] == 1 else self.logits.softmax(dim=2)

    @property
    def deviation(self) -> float:
        """The largest change of the logits when the model's own maps are put in unchanged: 0 if equal bit for bit."""
        return float((self.logits[0] - self.clean).abs().max())

    def plot(
        self,
        image: Any = None,  # noqa: ANN401
        *,
        index: int = 0,
        frames: int = FRAMES,
        title: str | None = None,
    ) -> "Figure":
        """A film strip of one sample: evenly spaced steps, first and last among them, each map on its own scale.

        Args:
            image: what to draw the maps over; a sentence needs none.
            title: in place of the target.
        """
        index = check_index(self.attributions[0], index)
        if frames < 2:
            raise OptionError(f"frames={frames}, but a strip shows at least the first step and the last.")
        last, count = len(self) - 1, min(frames, len(self))
        steps = sorted({round(i * last / max(count - 1, 1)) for i in range(count)})
        return _figure(self, steps, image, index, title, side=1.5)

    def gif(self, image: Any = None, *, index: int = 0, title: str | None = None) -> bytes:  # noqa: ANN401
        """All steps of one sample as an animated GIF that starts over after its last picture."""
        from PIL import Image

        index = check_index(self.attributions[0], index)
        pictures = []
        for step in range(len(self)):
            sink = BytesIO()
            _figure(self, [step], image, index, title, side=SIDE).savefig(sink, format="png", dpi=100)
            with Image.open(sink) as picture:
                pictures.append(picture.convert("RGB"))
        size = max(p.width for p in pictures), max(p.height for p in pictures)
        shown = [Image.new("RGB", size, "white") for _ in pictures]
        for canvas, picture in zip(shown, pictures, strict=True):
            canvas.paste(picture, (0, 0))
        # The 256 colours that reach furthest.
        first, *more = (canvas.quantize(256, Image.Quantize.MAXCOVERAGE) for canvas in shown)
        sink, durations = BytesIO(), [MILLISECONDS] * len(more) + [LAST]
        first.save(sink, "GIF", save_all=True, append_images=more, duration=durations, loop=0)
        return sink.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """The numbers of all steps, as JSON holds them."""
        return finite(
            {
                "format": "vitrail.transfer",
                "target": {"name": self.target.name, "first": self.target.first, "second": self.target.second},
                "settings": dict(self.settings),
                "deviation": self.deviation,
                "grid": self.attributions[0].grid,
                "tokens": self.attributions[0].tokens,
                "scalar": self.scalar.tolist(),
                "logits": self.logits.tolist(),
                "scores": self.maps.tolist(),
            }
        )

    def save(
        self,
        path: str | Path,
        image: Any = None,  # noqa: ANN401
        *,
        index: int = 0,
        title: str | None = None,
    ) -> Path:
        """Write the film strip as `.png`, `.pdf` or `.svg`, the film as `.gif`, the numbers as `.json`."""
        path = as_path(path, "a film")
        ending = path.suffix.lower()
        if ending not in ENDINGS:
            raise OutputError(f"{path} has no known ending. {suggest(path.suffix, ENDINGS)}")
        if ending == ".json":
            return write_bytes(path, json_text(self.to_dict()).encode())
        if ending == ".gif":
            return write_bytes(path, self.gif(image, index=index, title=title))
        return write_bytes(path, rendered(self.plot(image, index=index, title=title), ending[1:]))


ENDINGS = (".png", ".pdf", ".svg", ".gif", ".json")


METHOD = "complete_gradient"
WANTED = Wanted.of(frozenset({"output_grad"}))
Maps = dict[int, Tensor]
Put = Callable[[Tensor, Tensor], Tensor]


GRADIENTS: dict[str, Put] = {"full": on_top_of, "leaf": in_place_of}
"""How a map is put into the graph: on top of queries and keys, or as a leaf that nothing lies below."""
DIRECTIONS = {"away": -1.0, "toward": 1.0}
"""Whether the target is descended, as in the paper, or ascended."""


@dataclass(frozen=True)
class Rule:
    """The rule that updates maps."""

    eta: float
    sign: float
    renormalise: bool

    def step(self, maps: Maps, gradients: Maps, visible: Maps) -> Maps:
        """Theta <- Theta -+ eta ds/dTheta, where a query may look; rows made distributions again if asked for."""
        moved = {i: (x + self.sign * self.eta * gradients[i]) * visible[i] for i, x in maps.items()}
        return {i: distribution(x) for i, x in moved.items()} if self.renormalise else moved


def distribution(weights: Tensor) -> Tensor:
    """Rows without negative entries that add up to one; rows of zeros stay."""
    weights = weights.clamp(min=0)
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


@dataclass(frozen=True)
class TransferPass:
    """The results of one pass with given maps."""

    logits: Tensor
    scalar: Tensor
    gradients: Maps
    attribution: Attribution


@dataclass(frozen=True)
class Scene:
    """One model, its inputs and the scalar that is followed."""

    model: nn.Module
    body: Body
    inputs: Inputs
    request: Request

    @contextmanager
    def run(self, pass_options: PassOptions) -> Iterator[tuple[Pass, Scalar]]:
        """One pass with these options, and the scalar in it."""
        with forward(self.model, self.inputs, self.body, WANTED, ComputeSettings("dense"), pass_options) as run:
            part, *more = run.parts(self.request.target)
            if more:
                raise TargetError("attention follows one scalar, but an answer has two: pass a function of its logits.")
            yield run, part

    def see(self, maps: Maps, put: Put) -> TransferPass:
        """Run with these maps in the blocks, differentiate by them, and explain."""
        assert not isinstance(self.request.plan, RerunMethod)
        gradients: Maps = {}
        override = Override(weights=lambda block, old: put(old, maps[block]), exact=True)
        with self.run(PassOptions(override=override)) as (run, part):

            def steps() -> Iterator[Event]:
                for event, layer in run.events(part, WANTED, again=False):
                    assert layer is not None
                    gradients[layer.index] = layer.probs_grad
                    yield event, layer

            (made,) = walk_events([self.request.plan], Events(steps()))
            found = attribution_of(self.request, [(part, made.result)], run)
            return TransferPass(answer(run, part), part.scalar.detach(), gradients, found)

    def start(self) -> tuple["Scene", Tensor, Maps]:
        """The scene with its target settled, the logits of the model as it is, and its own maps."""
        maps: Maps = {}

        def keep(block: int, weights: Tensor) -> Tensor:
            """Note a block's own map as `[b, h, q, k]`; half precision is too coarse for small steps."""
            found = weights.detach()
            maps[block] = widen(found if found.ndim == 4 else found.view(self.inputs.batch, -1, *found.shape[1:]))
            return weights

        with self.run(PLAIN) as (run, part):
            clean = answer(run, part)
        with self.run(PassOptions(override=Override(keep, exact=True))) as (_, part):
            pass
        settled = part.target if isinstance(self.request.target, Target) else self.request.target
        return replace(self, request=replace(self.request, target=settled)), clean, maps


def answer(run: Pass, part: Scalar) -> Tensor:
    """The logits of each sample, where the scalar is read."""
    logits = run.output.wide.detach()
    if part.position is None or logits.ndim == 2:
        return logits.flatten(1) if logits.ndim == 3 else logits
    return logits[torch.arange(logits.shape[0], device=logits.device), part.position]


def transfer(  # noqa: PLR0913  (each is a choice of its own)
    model: nn.Module,
    inputs: Any,  # noqa: ANN401  (see `vitrail.models.taking`)
    target: AnyTarget = None,
    *,
    eta: float = 4e-4,
    steps: int = 10,
    direction: str = "away",
    gradient: str = "full",
    renormalise: bool = False,
    anatomy: Anatomy | None = None,
) -> Transfer:
    """Follow the target's gradient with the attention maps; return the predictions and explanations on the way.

    Args:
        model: any module that returns logits and whose blocks are known. It is not changed.
        inputs: as for `explain`.
        target: as for `explain`; None is the class predicted at the start, in all steps.
        eta: the learning rate; the paper's is 0.0004.
        steps: how many updates.
        direction: `away` descends the target as the paper does, so attention leaves it; `toward` ascends it.
        gradient: what the explanation of each step differentiates: the `full` graph, or maps as the `leaf` tensors they
            are in the updates, without the way through the queries and keys of later blocks.
        renormalise: after each update cut negative attention off and divide rows by their sums; the paper does not.
        anatomy: where the model's parts are, if it is of no known family.
    """
    put, sign = check_choice("gradient", gradient, GRADIENTS), check_choice("direction", direction, DIRECTIONS)
    check_count("steps", steps)
    if not (math.isfinite(eta) and eta > 0):
        raise OptionError(f"eta={eta}, but a learning rate is above 0; direction='toward' reverses the direction.")
    started = time.perf_counter()
    read = read_inputs(prepared(model, inputs).inputs)
    with shadow(model) as own:
        body = find_body(own, anatomy, read)
        check_blocks("transfer")(own, body, read)
        scene = Scene(own, body, read, read_request(METHOD, "recommended", read, as_target(target)))
        scene, clean, maps = scene.start()
        seen, maps = _film(scene, maps, put, Rule(eta, sign, renormalise), steps)
    settings = dict(eta=eta, steps=steps, direction=direction, gradient=gradient, renormalise=renormalise)
    spent = {"backend": "dense", "seconds": time.perf_counter() - started}
    origin = {**provenance(model, samples=read.batch), **spent}
    abouts = [{**origin, "transfer": {**settings, "step": number}} for number in range(len(seen))]
    return Transfer(
        target=seen[0].attribution.target,
        logits=torch.stack([one.logits for one in seen]),
        scalar=torch.stack([one.scalar for one in seen]),
        attributions=tuple(replace(one.attribution, provenance=about) for one, about in zip(seen, abouts, strict=True)),
        attention=tuple(maps[i] for i in sorted(maps)),
        clean=clean,
        settings=settings,
    )


def _film(scene: Scene, maps: Maps, put: Put, rule: Rule, steps: int) -> tuple[list[TransferPass], Maps]:
    """Return the passes before the first update and after each, and the maps at the end."""
    # A key that gets nothing at the start is masked, and would be given attention by its gradient.
    visible = {i: (x != 0).to(x.dtype) for i, x in maps.items()}
    seen: list[TransferPass] = []
    for number in show_progress(range(steps + 1), "attention transfer"):
        shown = scene.see(maps, put)
        seen.append(replace(shown, gradients={}))
        if number < steps:
            leaves = shown if put is in_place_of else scene.see(maps, in_place_of)
            maps = rule.step(maps, leaves.gradients, visible)
    return seen, maps


LINE, SIDE = 4, 2.2
"""Pictures in a line of the strip; inches of a frame of the film."""
MILLISECONDS, LAST = 160, 1600


def _figure(film: Transfer, steps: list[int], image: Any, index: int, title: str | None, *, side: float) -> "Figure":  # noqa: ANN401
    require_matplotlib()
    heading = film.attributions[0].title(index, probable=False) if title is None else title
    if film.attributions[0].kind == "text":
        rows = [SentenceRow(_caption(film, step, index), pieces(film.attributions[step], index)) for step in steps]
        return sentence_figure([(heading, rows)])
    picture = None if image is None else as_picture(image, index)
    panels = [Panel("input", picture=picture)] if picture is not None and len(steps) > 1 else []
    for step in steps:
        one = film.attributions[step]
        shown = sample_map(one, index, picture, region_of(one, image, index))
        panels.append(Panel(_caption(film, step, index), shown, signed=True))
    lines = [panels[i : i + LINE] for i in range(0, len(panels), LINE)]
    return panel_figure(lines, picture, heading=heading, side=side)


def _caption(film: Transfer, step: int, index: int) -> str:
    """The step, the value that is followed, and the probability where the target is one class."""
    value, first = float(film.scalar[step, index]), film.target.first
    said = f"step {step}: {value:.2f}"
    if film.target.second is not None or not isinstance(first, tuple):
        return said
    return f"{said}, {float(film.probabilities[step, index, first[index]]):.1%}"
