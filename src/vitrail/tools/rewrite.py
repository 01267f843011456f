"""Class rewriting: an adversarial robustness audit of your own model.

Cui, Fan and Chen, arXiv:2605.11392, Sec. 4.5 and Fig. 11: pixels follow the gradient of logit_source - logit_target
until the model sees the target class, while a person sees no change. It is a targeted adversarial attack, without a
limit unless one is set; use it to learn how easily a model of yours is fooled. The paper leaves space, step size,
clipping and end open: here raw values from 0 to 1, clipped, until the target is top-1 with the wanted probability in
the 8-bit picture itself.
"""

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitrail.attribution import provenance
from vitrail.capture.shadow import autograd, shadow
from vitrail.errors import InputError, OptionError, TargetError
from vitrail.methods.options import check_count
from vitrail.tools.budget import Budget
from vitrail.tools.lens import Lens, Levels, View, focus, sight_of
from vitrail.tools.rewriting import NOTICE, Rewriting

if TYPE_CHECKING:
    from PIL.Image import Image

FIRST_STEP = 0.1 / 255
"""Without a step size of one's own: the root mean square of the first step, a tenth of a level, but not less than a
quarter of the budget, which raw gradients fill slowly."""
STEPS, PROBABILITY = 400, 0.9


def strongest(logits: Tensor, target: int) -> int:
    """The first class beside the target."""
    best = logits.topk(2).indices.tolist()
    return best[1] if best[0] == target else best[0]


@dataclass(frozen=True)
class Way:
    """How the pixels go: step size, how many steps at most, and when the target counts as reached."""

    eta: float | None = None
    steps: int = STEPS
    probability: float = PROBABILITY

    def __post_init__(self) -> None:
        """Refuse settings that lead nowhere."""
        check_count("steps", self.steps)
        if self.eta is not None and not (math.isfinite(self.eta) and self.eta > 0):
            raise OptionError(f"eta={self.eta}, but a step size is a number above 0.")
        if not 0 <= self.probability < 1:
            raise OptionError(f"probability={self.probability}, but it has to be from 0 to below 1.")


@dataclass(frozen=True)
class Aim:
    """From which class to which, and the way there.

    Args:
        named: whether the source was asked for; if not, it is whatever is ahead beside the target.
    """

    source: int
    target: int
    way: Way
    named: bool

    def loss(self, logits: Tensor) -> Tensor:
        """y_source - y_target."""
        source = self.source if self.named else strongest(logits.detach(), self.target)
        return logits[source] - logits[self.target]

    def reached(self, logits: Tensor) -> bool:
        """Whether the target is the first class, with the probability wanted."""
        likely = float(logits.softmax(dim=0)[self.target])
        return int(logits.argmax()) == self.target and likely >= self.way.probability


@dataclass
class Walk:
    """Where the pixels are, and the probabilities of source and target on the way there."""

    pixels: Levels
    eta: float | None
    trace: list[Tensor] = field(default_factory=list)

    def step(self, gradient: Tensor, original: Levels, budget: Budget) -> None:
        """x <- x - eta d(y_source - y_target)/dx, within the budget and within 0 and 1."""
        if self.eta is None:
            size = float(gradient.double().square().mean().sqrt())
            if size == 0:
                raise InputError("the gradient at the pixels is zero, so they have no way to go. Give eta.")
            self.eta = max(FIRST_STEP, budget.typical(gradient.numel()) / 4) / size
        change = budget.project(self.pixels - self.eta * gradient - original)
        self.pixels = (original + change).clamp(0, 1)


def rewrite(  # noqa: PLR0913  (each is a choice of its own)
    model: object,
    image: "Image",
    target: int | str,
    *,
    source: int | str | None = None,
    eta: float | None = None,
    steps: int = STEPS,
    probability: float = PROBABILITY,
    l2: float | None = None,
    linf: float | None = None,
    preprocess: View | None = None,
    squash: bool = False,
) -> Rewriting:
    """Adversarial robustness audit of your own model: the picture changed until the model sees another class.

    Args:
        model: what `vitrail.zoo.load` gives, or any module with `preprocess`. It is not changed.
        image: a PIL image. What is rewritten is the part of it that the model sees, at the model's own size.
        target: the class the model shall see, by number, or by name where the model's classes have names.
        source: the class it shall no longer see, in all steps. None starts from the class it predicts and goes on with
            the first class beside the target, which takes smaller changes where a third class comes in between.
        eta: the step size; None chooses it so that the first step changes values by a tenth of an 8-bit level (root
            mean square), or by a quarter of the budget where that is more.
        steps: how many at most.
        probability: stop when the target is top-1 with this probability in the picture as saved and loaded again.
        l2: the largest Euclidean norm of the change, in units of the range 0 to 1.
        linf: the largest change of any value, in the same units: 2/255 is two levels.
        preprocess: from a PIL image to the model's input; not needed for what `vitrail.zoo.load` gives.
        squash: for a model that was loaded by name: resize without cropping.
    """
    budget, way = Budget(l2, linf), Way(eta, steps, probability)
    sight = sight_of(model, preprocess, squash=squash)
    with shadow(sight.model) as own, autograd(gradients=True):
        lens, original = focus(replace(sight, model=own), image)
        return rewrite_levels(lens, original, target, source, budget, way)


def rewrite_levels(
    lens: Lens, original: Levels, target: int | str, source: int | str | None, budget: Budget, way: Way
) -> Rewriting:
    """The rewriting of a picture on 256 levels, inside a prepared model."""
    started = time.perf_counter()
    before = lens.reload(original)
    first = int(before.argmax()) if source is None else lens.find(source)
    aim = Aim(first, lens.find(target), way, named=source is not None)
    if aim.source == aim.target:
        seen = "the model already sees" if source is None else "source and target are both"
        raise TargetError(f"{seen} {lens.name(aim.target)!r} ({aim.target}): name another class to rewrite it to.")
    walk = Walk(original.clone(), way.eta)
    levels, after = _follow(lens, original, aim, budget, walk)
    settings = {**vars(replace(way, eta=walk.eta)), "l2": budget.l2, "linf": budget.linf}
    origin = provenance(lens.sight.model, seconds=time.perf_counter() - started, backend="dense", samples=1)
    return Rewriting(
        levels=(original, levels),
        classes=(aim.source, aim.target),
        names=(lens.name(aim.source), lens.name(aim.target)),
        logits=(before, after),
        trace=torch.stack(walk.trace),
        reached=aim.reached(after),
        settings=settings,
        provenance={"notice": NOTICE, **origin},
    )


def _follow(lens: Lens, original: Levels, aim: Aim, budget: Budget, walk: Walk) -> tuple[Levels, Tensor]:
    """The 8-bit picture at the end of the way, and what the model says of it; rounding may ask for more steps."""
    while True:
        logits, gradient = _look(lens, walk.pixels, aim)
        walk.trace.append(logits.softmax(dim=0)[[aim.source, aim.target]])
        over = len(walk.trace) > aim.way.steps
        if over or aim.reached(logits):
            levels = budget.quantise(walk.pixels, original)
            after = lens.reload(levels)
            if over or aim.reached(after):
                return levels, after
        walk.step(gradient, original, budget)


def _look(lens: Lens, pixels: Levels, aim: Aim) -> tuple[Tensor, Tensor]:
    """The logits of these pixels, and the gradient of the loss there."""
    pixels = pixels.detach().requires_grad_()
    logits = lens.logits(pixels)
    (gradient,) = torch.autograd.grad(aim.loss(logits), pixels)
    return logits.detach(), gradient
