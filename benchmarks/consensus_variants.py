"""What `consensus.py` tries: ingredients, and recipes that make one map of them.

Letters: g `gae`; h the same weighed by TokenTM's lengths; a `attn_lrp`; l `le_grad` read where the model reads; F
`libra_grad`. A map that is made of the scores of patches is a `Recipe`, a map of pixels that follows the picture's
edges is a `Fine`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.methods.consensus import positive_unit, ranks, signed_unit
from vitrail.methods.options import min_max_over
from vitrail.methods.pixel_maps import calibrate

FAST = {"precision": "float32"}
BARE = {"direction": False, "ffn": False, "initial": "identity", "scalar": "logit"}
INGREDIENTS: dict[str, tuple[str, dict]] = {
    "g": ("gae", {}),
    "a": ("attn_lrp", FAST),
    "l": ("le_grad", {"tokens": "readout"}),
    "h": ("tokentm", BARE),
    "h_probability": ("tokentm", {**BARE, "scalar": "probability"}),
    "h_ffn": ("tokentm", {**BARE, "ffn": True}),
    "h_start": ("tokentm", {**BARE, "initial": "lengths"}),
    "tokentm": ("tokentm", {}),
    "transformer_attribution": ("transformer_attribution", FAST),
    "agcam": ("agcam", {}),
    "att_grads": ("att_grads", {}),
    "absolute_gradient": ("absolute_gradient", {}),
    "rollout": ("rollout", {}),
    "le_grad": ("le_grad", {}),
    "grad_eclip_heads": ("grad_eclip_heads", {}),
    "feature_grad_cam": ("feature_grad_cam", {}),
    "F": ("libra_grad", {}),
    "F_layers": ("libra_grad", {"maps": "layers"}),
    "F_input": ("libra_grad", {"maps": "input"}),
    "gim": ("gim", {}),
}
PUBLISHED = {
    "gae": "g",
    "attn_lrp": "a",
    "libra_grad": "F",
    "libra_grad(maps=layers)": "F_layers",
    "libra_grad(maps=input)": "F_input",
    **{
        name: name
        for name in (
            "le_grad", "tokentm", "transformer_attribution", "agcam", "att_grads", "absolute_gradient", "rollout",
            "grad_eclip_heads", "feature_grad_cam", "gim",
        )
    },
}  # fmt: skip
"""Published methods as they are, measured the same way; those that lead in docs/REPRODUCTION.md or come close."""


def everywhere(x: Tensor) -> Tensor:
    """All patches count."""
    return torch.ones_like(x, dtype=torch.bool)


def clipped(x: Tensor, share: float) -> Tensor:
    """The positive part, its highest share cut off."""
    x = x.clamp(min=0)
    return x.minimum(x.quantile(1 - share, dim=1, keepdim=True))


def over(x: Tensor, size: Tensor, power: float) -> Tensor:
    """The positive part in units of a size."""
    return (x.clamp(min=0) / size[:, None].clamp(min=torch.finfo(x.dtype).tiny)).pow(power)


SCALES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "positive": lambda x, p: positive_unit(x, everywhere(x), p),
    "signed": lambda x, p: signed_unit(x, everywhere(x), p),
    "whole": lambda x, p: min_max_over(x, everywhere(x)).pow(p),
    "max": lambda x, p: over(x, x.amax(dim=1), p),
    "sum": lambda x, p: over(x, x.clamp(min=0).mean(dim=1), p),
    "std": lambda x, p: over(x, x.clamp(min=0).std(dim=1), p),
    "clip 1 %": lambda x, p: positive_unit(clipped(x, 0.01), everywhere(x), p),
    "clip 5 %": lambda x, p: positive_unit(clipped(x, 0.05), everywhere(x), p),
    "rank": lambda x, p: (ranks(x[:, None], everywhere(x))[:, 0] / x.shape[1]).pow(p),
}
"""From scores `[b, t]` and a power to a part."""
JOINS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(dim=1),
    "product": lambda x: (x + 0.02).log().mean(dim=1).exp(),
    "max": lambda x: x.amax(dim=1),
    "median": lambda x: x.median(dim=1).values,
    "square": lambda x: x.square().mean(dim=1).sqrt(),
}
"""From parts `[b, p, t]` to scores `[b, t]`."""


def smoothed(maps: Tensor, sigma: float) -> Tensor:
    """A Gaussian over three by three patches; the border is repeated."""
    line = torch.exp(-torch.tensor([1.0, 0.0, 1.0]) / (2 * sigma**2)).to(maps)
    kernel = line[:, None] * line / line.sum() ** 2
    return F.conv2d(F.pad(maps[:, None], (1, 1, 1, 1), mode="replicate"), kernel[None, None])[:, 0]


def pixels_calibrated(maps: Tensor) -> Tensor:
    """Calibrated at the picture's size, sixteen pixels a patch: the order of the pixels stays as it is."""
    size = (16 * maps.shape[1], 16 * maps.shape[2])
    return calibrate(F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0])


PIXELS = "otsu pixels"
AFTER: dict[str, Callable[[Tensor], Tensor]] = {
    "smooth 0.4": lambda x: smoothed(x, 0.4),
    "smooth 0.5": lambda x: smoothed(x, 0.5),
    "smooth 0.7": lambda x: smoothed(x, 0.7),
    "smooth 1": lambda x: smoothed(x, 1.0),
    "otsu patches": calibrate,
    PIXELS: pixels_calibrated,
}


@dataclass(frozen=True)
class Scalar:
    """One ingredient, brought to scale, to a power, with a weight."""

    name: str
    power: float = 0.5
    weight: float = 1.0
    scale: str = "positive"

    def __call__(self, found: Mapping[str, Tensor]) -> Tensor:
        """The part `[b, t]`."""
        return self.weight * SCALES[self.scale](found[self.name].flatten(1), self.power)


@dataclass(frozen=True)
class Recipe:
    """Parts, how they become one map, and what is done to it then."""

    parts: tuple[Scalar, ...]
    join: str = "sum"
    after: tuple[str, ...] = ()

    @property
    def needs(self) -> set[str]:
        """The ingredients."""
        return {part.name for part in self.parts}

    @property
    def order(self) -> "Recipe":
        """The recipe without what cannot change the order of pixels, and so no perturbation."""
        return replace(self, after=tuple(name for name in self.after if name != PIXELS))

    def then(self, *after: str) -> "Recipe":
        """The same with more done to it."""
        return replace(self, after=(*self.after, *after))

    def __call__(self, found: Mapping[str, Tensor]) -> Tensor:
        """The map `[b, y, x]`."""
        joined = JOINS[self.join](torch.stack([part(found) for part in self.parts], dim=1))
        maps = joined.view_as(found[self.parts[0].name])
        for name in self.after:
            maps = AFTER[name](maps)
        return maps


@dataclass(frozen=True)
class Raw:
    """One ingredient as it is."""

    name: str

    @property
    def needs(self) -> set[str]:
        """The ingredient."""
        return {self.name}

    @property
    def order(self) -> "Raw":
        """Itself."""
        return self

    def __call__(self, found: Mapping[str, Tensor]) -> Tensor:
        """The map `[b, y, x]`."""
        return found[self.name]


def of(*names: str, join: str = "sum", **same) -> Recipe:
    """Ingredients that are all treated alike."""
    return Recipe(tuple(Scalar(name, **same) for name in names), join)


def mixed(g: Scalar, a: Scalar, l: Scalar, *more: Scalar) -> Recipe:  # noqa: E741
    """The sum of three parts or more, each in its own way."""
    return Recipe((g, a, l, *more))


G, A, L, H = Scalar("g"), Scalar("a"), Scalar("l"), Scalar("h")
WHOLE = Scalar("a", 1.0, scale="whole")
USUAL = of("g", "a", "l")
LENGTHS = mixed(H, WHOLE, L)
OTHERS = ("att_grads", "agcam", "rollout", "grad_eclip_heads", "tokentm", "transformer_attribution", "le_grad", "h")
RECIPES: dict[str, Recipe] = {
    "consensus": USUAL,
    **{f"power {p}": of("g", "a", "l", power=p) for p in (0.25, 0.33, 0.4, 0.6, 0.75, 1.0)},
    "√g + a + √l": mixed(G, Scalar("a", 1.0), L),
    "√g + signed a + √l": mixed(G, Scalar("a", 1.0, scale="signed"), L),
    "√g + signed √a + √l": mixed(G, Scalar("a", scale="signed"), L),
    "√g + n(a) + √l": mixed(G, WHOLE, L),
    "g + √a + √l": mixed(Scalar("g", 1.0), A, L),
    "√g + √a + l": mixed(G, A, Scalar("l", 1.0)),
    "∛g + √a + √l": mixed(Scalar("g", 0.33), A, L),
    **{f"√{x} + √{y}": of(x, y) for x, y in (("g", "a"), ("g", "l"), ("a", "l"))},
    **{f"{x} for g": of(x, "a", "l") for x in ("h", "h_probability", "h_ffn", "h_start", *OTHERS[:6])},
    "le_grad for l": of("g", "a", "le_grad"),
    "grad_eclip_heads for a": of("g", "grad_eclip_heads", "l"),
    "√h + a + √l": mixed(H, Scalar("a", 1.0), L),
    "√h + n(a) + √l": LENGTHS,
    "√h + signed √a + √l": mixed(H, Scalar("a", scale="signed"), L),
    **{f"and {x}": of("g", "a", "l", x) for x in (*OTHERS, "absolute_gradient", "feature_grad_cam")},
    "and half att_grads": mixed(G, A, L, Scalar("att_grads", weight=0.5)),
    "and half agcam": mixed(G, A, L, Scalar("agcam", weight=0.5)),
    "and att_grads and agcam": of("g", "a", "l", "att_grads", "agcam"),
    "h, n(a), l and att_grads": mixed(H, WHOLE, L, Scalar("att_grads")),
    **{f"{w:g} g": mixed(Scalar("g", weight=w), A, L) for w in (0.5, 1.5, 2.0)},
    **{f"{w:g} a": mixed(G, Scalar("a", weight=w), L) for w in (0.25, 0.5, 0.75, 2.0)},
    **{f"{w:g} l": mixed(G, A, Scalar("l", weight=w)) for w in (0.5, 1.5, 2.0)},
    **{f"join {join}": of("g", "a", "l", join=join) for join in JOINS if join != "sum"},
    **{f"scale {scale}": of("g", "a", "l", scale=scale) for scale in ("max", "sum", "std", "clip 1 %", "clip 5 %")},
    "ranks": of("g", "a", "l", scale="rank", power=1.0),
    "ranks squared": of("g", "a", "l", scale="rank", power=2.0),
    **{name: USUAL.then(name) for name in AFTER},
    "smooth 0.4, otsu pixels": USUAL.then("smooth 0.4", PIXELS),
    "smooth 0.5, otsu pixels": USUAL.then("smooth 0.5", PIXELS),
    "smooth 0.7, otsu pixels": USUAL.then("smooth 0.7", PIXELS),
    "ranks, otsu pixels": of("g", "a", "l", scale="rank", power=1.0).then(PIXELS),
    "√h + n(a) + √l, otsu pixels": LENGTHS.then(PIXELS),
    "√h + n(a) + √l, smooth 0.5, otsu pixels": LENGTHS.then("smooth 0.5", PIXELS),
    "and att_grads, otsu pixels": of("g", "a", "l", "att_grads").then(PIXELS),
    "and att_grads, smooth 0.5, otsu pixels": of("g", "a", "l", "att_grads").then("smooth 0.5", PIXELS),
    "and agcam, otsu pixels": of("g", "a", "l", "agcam").then(PIXELS),
    "√g + n(a) + √l, otsu pixels": mixed(G, WHOLE, L).then(PIXELS),
}


def second_round() -> dict[str, Recipe]:
    """What the first round suggests: less of a, one more walk, light smoothing; with g or h, a clamped or whole."""
    more = {
        "": (),
        " + √absolute": (Scalar("absolute_gradient"),),
        " + ½√att_grads": (Scalar("att_grads", weight=0.5),),
    }
    found = {}
    for first in (G, H):
        for second in (A, WHOLE):
            for weight in (0.5, 1.0):
                for name, parts in more.items():
                    recipe = mixed(first, replace(second, weight=weight), L, *parts)
                    a = "√a" if second is A else "n(a)"
                    title = f"2: √{first.name} + {weight:g} {a} + √l{name}"
                    found[f"{title}, smooth 0.4"] = recipe.then("smooth 0.4")
                    if weight == 0.5:
                        found[title] = recipe
    return found


RECIPES |= second_round()
VARIANTS: dict[str, Recipe | Raw] = {**{f"`{name}`": Raw(x) for name, x in PUBLISHED.items()}, **RECIPES}
"""Everything that is made of patches, by name; published methods in backticks."""
