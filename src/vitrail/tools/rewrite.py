"""Class rewriting: an adversarial robustness audit of your own model.

Cui, Fan and Chen, arXiv:2605.11392, Sec. 4.5 and Fig. 11: pixels follow the gradient of logit_source - logit_target
until the model sees the target class, while a person sees no change. It is a targeted adversarial attack, without a
limit unless one is set; use it to learn how easily your own model is fooled. The paper leaves space, step size,
clipping and end open: here raw values from 0 to 1, clipped, until the target is top-1 with the wanted probability in
the 8-bit picture itself.

Likeness of two pictures by PSNR and SSIM: Wang, Bovik, Sheikh and Simoncelli, "Image Quality Assessment: From Error
Visibility to Structural Similarity", IEEE Transactions on Image Processing 13(4), 2004. Paper -> code: mu -> mean,
sigma -> variance, C1 and C2 -> STEADY, the 11 x 11 Gaussian window of standard deviation 1.5 -> SIGMA and REACH; only
windows inside the picture count.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.ndimage import gaussian_filter
from torch import Tensor

from vitrail.capture.provenance import provenance
from vitrail.capture.shadow import autograd, shadow
from vitrail.errors import InputError, OptionError, OutputError, TargetError, as_path
from vitrail.methods.options import check_count
from vitrail.plots.canvas import GREY, new_figure, panel, write
from vitrail.storage import finite, json_text, write_bytes
from vitrail.tools.pixels import Budget, Levels, PixelModel, View, pixel_model_of, shown_model_of, to_array, to_image

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

Pixels = Float[np.ndarray, "h w c"]
SIGMA, REACH = 1.5, 5
STEADY = (0.01**2, 0.03**2)


def psnr(first: Pixels, second: Pixels) -> float:
    """The peak signal-to-noise ratio in decibels of two pictures with values from 0 to 1; infinite for equal ones."""
    error = float(np.mean((np.asarray(first, np.float64) - second) ** 2))
    return math.inf if error == 0 else -10 * math.log10(error)


def ssim(first: Pixels, second: Pixels) -> float:
    """Eq. 13 and 17: the mean structural similarity of two pictures with values from 0 to 1, over channels too."""
    if min(first.shape[:2]) <= 2 * REACH:
        raise InputError(f"SSIM compares windows of 11 x 11, but the picture has {first.shape[0]} x {first.shape[1]}.")
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    mean_a, mean_b = local_mean(a), local_mean(b)
    variance_a, variance_b = local_mean(a * a) - mean_a**2, local_mean(b * b) - mean_b**2
    covariance = local_mean(a * b) - mean_a * mean_b
    light = (2 * mean_a * mean_b + STEADY[0]) / (mean_a**2 + mean_b**2 + STEADY[0])
    structure = (2 * covariance + STEADY[1]) / (variance_a + variance_b + STEADY[1])
    return float(np.mean(light * structure))


def local_mean(values: Pixels) -> Float[np.ndarray, "y x c"]:
    """Eq. 14: Gaussian-weighted means of all windows inside the picture."""
    blurred = gaussian_filter(values, (SIGMA, SIGMA, 0), radius=(REACH, REACH, 0))
    return blurred[REACH:-REACH, REACH:-REACH]


NOTICE = "adversarial robustness audit of your own model"
"""What every result, file and command says that it is."""


@dataclass(frozen=True, eq=False)
class Rewriting:
    """Adversarial robustness audit of your own model: one picture, rewritten from one class to another.

    Args:
        levels: the original and the new picture as the model sees them, values from 0 to 1 on 256 levels.
        classes: source and target.
        names: of source and target.
        logits: of the original and of the new picture, saved as PNG and loaded again.
        trace: the probabilities of source and target before the first step and after each, before rounding to 8 bits.
        reached: whether the new picture's top-1 class is the target with the probability wanted.
        settings: eta, steps, probability, l2, linf.
    """

    levels: tuple[Float[Tensor, "1 3 h w"], Float[Tensor, "1 3 h w"]]
    classes: tuple[int, int]
    names: tuple[str, str]
    logits: tuple[Float[Tensor, " c"], Float[Tensor, " c"]]
    trace: Float[Tensor, "s 2"]
    reached: bool
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def original(self) -> "Image":
        """The picture as the model saw it."""
        return to_image(self.levels[0])

    @property
    def picture(self) -> "Image":
        """The rewritten picture, 8 bits a channel, at the model's own size."""
        return to_image(self.levels[1])

    @property
    def change(self) -> Float[Tensor, "1 3 h w"]:
        """New minus old, in units of the range 0 to 1."""
        return self.levels[1] - self.levels[0]

    @property
    def amplification(self) -> int:
        """The factor by which `difference` enlarges the change, so that 99.5 % of the values fit."""
        usual = float(np.quantile(self.change.abs().cpu().numpy(), 0.995))
        return max(1, int(0.5 / max(usual, 1 / 255)))

    @property
    def difference(self) -> "Image":
        """The change, amplified around grey."""
        return to_image((0.5 + self.amplification * self.change).clamp(0, 1))

    @property
    def l2(self) -> float:
        """The Euclidean norm of the change."""
        return float(self.change.double().norm())

    @property
    def linf(self) -> float:
        """The largest change of any value."""
        return float(self.change.abs().max())

    @cached_property
    def psnr(self) -> float:
        """Decibels between the two pictures."""
        return psnr(*(to_array(x) / 255 for x in self.levels))

    @cached_property
    def ssim(self) -> float:
        """The structural similarity of the two pictures."""
        return ssim(*(to_array(x) / 255 for x in self.levels))

    @property
    def fooled(self) -> bool:
        """Return True if the target is the new picture's top-1 class, whatever its probability."""
        return int(self.logits[1].argmax()) == self.classes[1]

    @property
    def probabilities(self) -> Float[Tensor, "2 2"]:
        """Of source and target (columns) in the original and in the new picture (rows), as saved and loaded again."""
        return torch.stack([x.softmax(dim=0) for x in self.logits])[:, list(self.classes)]

    def to_dict(self) -> dict[str, Any]:
        """The numbers, as JSON holds them."""
        return finite(
            {
                "format": "vitrail.rewriting",
                "notice": NOTICE,
                "source": {"index": self.classes[0], "name": self.names[0]},
                "target": {"index": self.classes[1], "name": self.names[1]},
                **{name: getattr(self, name) for name in ("reached", "fooled")},
                "probabilities": {"before": self.probabilities[0].tolist(), "after": self.probabilities[1].tolist()},
                "logits": {"before": self.logits[0].tolist(), "after": self.logits[1].tolist()},
                "steps": len(self.trace) - 1,
                **{name: getattr(self, name) for name in ("psnr", "ssim", "l2", "linf")},
                "settings": dict(self.settings),
                "trace": self.trace.tolist(),
                "provenance": dict(self.provenance),
            }
        )

    def plot(self) -> "Figure":
        """A figure of the original, the new picture, their amplified difference and the probabilities on the way."""
        figure = new_figure(2 * MARGIN + 4 * SIDE + 3 * GAP + AXIS, TOP + SIDE + 0.45)
        source, target = self.names
        write(figure, f"{source} → {target}", MARGIN, MARGIN, fontsize=HEADING, weight="bold")
        before, after = self.probabilities.tolist()
        shown = (
            ("original", f"{source} {before[0]:.1%}, {target} {before[1]:.1%}", self.original),
            ("rewritten", f"{source} {after[0]:.1%}, {target} {after[1]:.1%}", self.picture),
            (f"difference × {self.amplification}", f"PSNR {self.psnr:.1f} dB, SSIM {self.ssim:.4f}", self.difference),
        )
        for number, (first, second, picture) in enumerate(shown):
            left = MARGIN + number * (SIDE + GAP)
            write(figure, f"{first}\n{second}", left, TOP - 0.08, fontsize=SMALL, va="bottom")
            panel(figure, left, TOP, SIDE, SIDE).imshow(np.asarray(picture), aspect="equal")
        left = MARGIN + 3 * (SIDE + GAP) + AXIS
        write(figure, "probability at each step\n ", left, TOP - 0.08, fontsize=SMALL, va="bottom")
        write(figure, source, left, TOP - 0.08, fontsize=SMALL, va="bottom", color=BLUE)
        write(figure, target, left + SIDE, TOP - 0.08, fontsize=SMALL, va="bottom", color=RED, ha="right")
        _trace(panel(figure, left, TOP, SIDE, SIDE), self)
        width = figure.get_size_inches()[0]
        write(figure, NOTICE, width / 2, TOP + SIDE + 0.22, fontsize=SMALL, color=GREY, ha="center")
        return figure

    def save(self, path: str | Path) -> Path:
        """Write the new picture as `.png`, with what it is and how it was made in it, or the numbers as `.json`."""
        path = as_path(path, "a picture")
        if path.suffix.lower() == ".png":
            return write_bytes(path, png(self.picture, self.to_dict()))
        if path.suffix.lower() == ".json":
            return write_bytes(path, json_text(self.to_dict()).encode())
        raise OutputError(f"{path} does not end in .png, which keeps every value as it is, or .json for the numbers.")


def png(picture: "Image", about: Mapping[str, Any]) -> bytes:
    """The picture as a PNG file that says what it is."""
    from PIL.PngImagePlugin import PngInfo

    info, sink = PngInfo(), BytesIO()
    info.add_text("Title", f"rewritten picture: {NOTICE}")
    info.add_text("Description", json_text({key: x for key, x in about.items() if key not in ("trace", "logits")}))
    picture.save(sink, "PNG", pnginfo=info)
    return sink.getvalue()


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
    """The step size, the largest number of steps, and the probability at which the target counts as reached."""

    eta: float | None = None
    steps: int = STEPS
    probability: float = PROBABILITY

    def __post_init__(self) -> None:
        """Refuse settings that lead nowhere."""
        check_count("steps", self.steps)
        if self.eta is not None and not (math.isfinite(self.eta) and self.eta > 0):
            raise OptionError(f"eta={self.eta}, but a step size is a number above 0.")
        if not 0 <= self.probability < 1:
            raise OptionError(f"probability={self.probability}, but it must be at least 0 and below 1.")


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
        """Return True if the target is the first class, with the probability wanted."""
        likely = float(logits.softmax(dim=0)[self.target])
        return int(logits.argmax()) == self.target and likely >= self.way.probability


@dataclass
class PixelPath:
    """The pixels on their path, and the probabilities of source and target on the way."""

    pixels: Levels
    eta: float | None
    trace: list[Tensor] = field(default_factory=list)

    def step(self, gradient: Tensor, original: Levels, budget: Budget) -> None:
        """x <- x - eta d(y_source - y_target)/dx, within the budget and within 0 and 1."""
        if self.eta is None:
            size = float(gradient.double().square().mean().sqrt())
            if size == 0:
                raise InputError("the gradient at the pixels is zero, so it gives no step size. Pass eta=.")
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
    shown_model = shown_model_of(model, preprocess, squash=squash)
    with shadow(shown_model.model) as own, autograd(gradients=True):
        pixel_model, original = pixel_model_of(replace(shown_model, model=own), image)
        return rewrite_levels(pixel_model, original, target, source, budget, way)


def rewrite_levels(
    pixel_model: PixelModel, original: Levels, target: int | str, source: int | str | None, budget: Budget, way: Way
) -> Rewriting:
    """The rewriting of a picture on 256 levels, inside a prepared model."""
    started = time.perf_counter()
    before = pixel_model.reload(original)
    first = int(before.argmax()) if source is None else pixel_model.find(source)
    aim = Aim(first, pixel_model.find(target), way, named=source is not None)
    if aim.source == aim.target:
        seen = "the model already sees" if source is None else "source and target are both"
        raise TargetError(
            f"{seen} {pixel_model.name(aim.target)!r} ({aim.target}): name another class to rewrite it to."
        )
    walk = PixelPath(original.clone(), way.eta)
    levels, after = _follow(pixel_model, original, aim, budget, walk)
    settings = {**vars(replace(way, eta=walk.eta)), "l2": budget.l2, "linf": budget.linf}
    spent = {"backend": "dense", "seconds": time.perf_counter() - started}
    return Rewriting(
        levels=(original, levels),
        classes=(aim.source, aim.target),
        names=(pixel_model.name(aim.source), pixel_model.name(aim.target)),
        logits=(before, after),
        trace=torch.stack(walk.trace),
        reached=aim.reached(after),
        settings=settings,
        provenance={"notice": NOTICE, **provenance(pixel_model.shown_model.model, samples=1), **spent},
    )


def _follow(
    pixel_model: PixelModel, original: Levels, aim: Aim, budget: Budget, walk: PixelPath
) -> tuple[Levels, Tensor]:
    """The 8-bit picture at the end of the way, and what the model says of it; rounding may ask for more steps."""
    while True:
        pixels = walk.pixels.detach().requires_grad_()
        logits = pixel_model.logits(pixels)
        (gradient,) = torch.autograd.grad(aim.loss(logits), pixels)
        logits = logits.detach()
        walk.trace.append(logits.softmax(dim=0)[[aim.source, aim.target]])
        over = len(walk.trace) > aim.way.steps
        if over or aim.reached(logits):
            levels = budget.quantise(walk.pixels, original)
            after = pixel_model.reload(levels)
            if over or aim.reached(after):
                return levels, after
        walk.step(gradient, original, budget)


SIDE, MARGIN, GAP, TOP = 2.0, 0.15, 0.15, 0.75
AXIS = 0.32
SMALL, HEADING = 7.5, 10.0
BLUE, RED = "#2b6cb0", "#b8112a"
"""Of the source and of the target."""


def _trace(axes: "Axes", rewriting: Rewriting) -> None:
    values = rewriting.trace.cpu().numpy()
    for column, colour in enumerate((BLUE, RED)):
        axes.plot(values[:, column], color=colour, linewidth=1.2)
    axes.axhline(rewriting.settings["probability"], color=GREY, linewidth=0.6, linestyle=":")
    axes.set(ylim=(-0.02, 1.02), xlim=(0, max(1, len(values) - 1)))
    axes.set_yticks([0, 0.5, 1])
    axes.set_xticks([0, max(1, len(values) - 1)])
    axes.tick_params(labelsize=6.5, colors=GREY, length=2)
    axes.spines[["left", "bottom"]].set(visible=True, color=GREY, linewidth=0.6)
