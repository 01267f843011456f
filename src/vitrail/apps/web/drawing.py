"""Maps over pictures as small files inside the page, each with words for those who do not see it."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.errors import OptionError, suggest
from vitrail.plots.colours import stretched, symmetric
from vitrail.plots.document import image
from vitrail.plots.overlay import map_size, maps_of, sample_map
from vitrail.plots.picture import Picture

PALETTES = {
    "Fire": ("inferno", "RdBu_r"),
    "Sea": ("viridis", "PiYG"),
    "Safe for colour-blind eyes": ("cividis", "PuOr_r"),
    "Rainbow": ("turbo", "Spectral_r"),
    "Grey": ("gray", "PuOr_r"),
}
"""Colours by name: for maps of how much, and for maps of for and against."""
OPACITY, QUALITY, STOPS = 0.6, 90, 9
WIDEST, SMALL = 274, 164
"""Pixels of a figure with its margin."""
FAINT = 0.4
"""How much of the colour covers the picture where a signed map is zero."""


@dataclass(frozen=True)
class Look:
    """How maps are drawn: how much of the colour covers the picture, and which colours."""

    opacity: float = OPACITY
    palette: str = "Fire"

    def colours(self, *, signed: bool) -> str:
        """The name of the colour map."""
        if self.palette not in PALETTES:
            raise OptionError(f"there are no colours {self.palette!r}. {suggest(self.palette, PALETTES)}")
        return PALETTES[self.palette][signed]


def painted(values: Float[Tensor, "h w"], picture: Picture, look: Look, *, signed: bool) -> Picture:
    """The map's colours laid over the picture."""
    from matplotlib import colormaps

    place = (values.numpy() + 1) / 2 if signed else values.numpy()
    colour = colormaps[look.colours(signed=signed)](place)[..., :3]
    share = min(max(look.opacity, 0.0), 1.0)
    if signed:  # where nothing speaks for or against, the picture shines through
        share = share * (FAINT + (1 - FAINT) * values.abs().numpy()[..., None])
    return (1 - share) * picture + share * colour


def image_tag(picture: Picture, alt: str) -> str:
    """The picture inside the page, described by words."""
    from PIL import Image

    sink = BytesIO()
    Image.fromarray((picture * 255).round().clip(0, 255).astype(np.uint8)).save(
        sink, "JPEG", quality=QUALITY, subsampling=0
    )
    return image(sink.getvalue(), alt)


def figure(inside: str, title: str, words: str = "") -> str:
    """Something to look at, and what it is."""
    more = f"<span>{escape(words)}</span>" if words else ""
    return f"<figure>{inside}<figcaption><strong>{breakable(title)}</strong>{more}</figcaption></figure>"


def breakable(name: str) -> str:
    """A name as HTML that a narrow screen may break where its words end."""
    return escape(name).replace("_", "_<wbr>")


def blank(method: str, words: str) -> str:
    """A place for a map that is not there."""
    return figure('<div class="blank"></div>', method, words)


def gallery(figures: Sequence[str], *, small: bool = False) -> str:
    """Figures side by side, as many as fit."""
    room = len(figures) * (SMALL if small else WIDEST)
    name = "gallery small" if small else "gallery"
    return f'<div class="{name}" style="max-width:{room}px">{"".join(figures)}</div>'


def map_figure(
    attribution: Attribution, picture: Picture, look: Look, *, answer: str, words: str, name: str | None = None
) -> str:
    """One method's map, under this name or the method's."""
    values = sample_map(attribution, 0, picture)
    drawn = painted(values, picture, look, signed=attribution.signed)
    alt = f"Map of {attribution.method} for {answer}, strongest {_place(values)}"
    return figure(image_tag(drawn, alt), name or title(attribution), words)


def title(attribution: Attribution) -> str:
    """The method, and its preset where that is not the usual one."""
    usual = attribution.preset == "recommended"
    return attribution.method if usual else f"{attribution.method}, {attribution.preset}"


def part_figures(
    attribution: Attribution,
    rows: Float[Tensor, "r n"],
    picture: Picture,
    look: Look,
    names: Sequence[str],
    *,
    signed: bool,
) -> list[str]:
    """One figure for each layer or head, each on its own scale."""
    size = map_size(attribution, picture)
    scale = symmetric if signed else stretched
    found = []
    for name, values in zip(names, maps_of(attribution, rows, size), strict=True):
        drawn = painted(scale(values), picture, look, signed=signed)
        found.append(figure(image_tag(drawn, f"{attribution.method}, {name}: strongest {_place(values)}"), name))
    return found


def _place(values: Float[Tensor, "h w"]) -> str:
    """Where the strongest spot lies, in words."""
    height, width = values.shape
    row, column = divmod(int(values.argmax()), width)
    down, along = ("top", "middle", "bottom")[3 * row // height], ("left", "centre", "right")[3 * column // width]
    return f"at the {down} {along}"


def legend(look: Look, *, signed: bool, words: tuple[str, str] | None = None) -> str:
    """A bar of the colours with words at its ends."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    colours = colormaps[look.colours(signed=signed)]
    stops = ", ".join(to_hex(colours(i / (STOPS - 1))) for i in range(STOPS))
    low, high = words or (("speaks against it", "speaks for it") if signed else ("ignored", "looked at most"))
    return (
        f'<div class="legend"><span>{escape(low)}</span>'
        f'<span class="bar" style="background:linear-gradient(90deg, {stops})"></span><span>{escape(high)}</span></div>'
    )
