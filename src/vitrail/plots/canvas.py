"""Figures, colours and captions: the only file that builds parts of matplotlib figures.

Panels are placed in inches, and text is measured before it is drawn.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from vitrail.attribution import Attribution, sample_target, target_title
from vitrail.errors import MissingExtraError, OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

DPI = 150
INK, GREY, FAINT = "#1c1c1c", "#6b6b6b", "#e9e9e9"
POINTS = 72
Ticks = tuple[tuple[float, str], ...]
FALLBACKS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Devanagari", "Noto Emoji")


def require_matplotlib() -> None:
    """Raise an error that says what to install where matplotlib is absent."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("pictures are drawn with matplotlib: pip install 'vitrail[plots]'") from error


def new_figure(width: float, height: float) -> "Figure":
    """A white figure of this size in inches, outside pyplot's global list."""
    require_matplotlib()
    return _figure_class()(figsize=(width, height), dpi=DPI, facecolor="white")


@cache
def _figure_class() -> "type[Figure]":
    """A figure that a notebook shows as a picture, without any magic command."""
    from matplotlib.figure import Figure

    class Drawing(Figure):
        def _repr_png_(self) -> bytes:
            return rendered(self, dpi=DPI)

    return Drawing


def panel(figure: "Figure", left: float, top: float, width: float, height: float) -> "Axes":
    """Axes without ticks or frame, placed in inches from the upper left corner."""
    full_width, full_height = figure.get_size_inches()
    box = (left / full_width, 1 - (top + height) / full_height, width / full_width, height / full_height)
    axes = figure.add_axes(box)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return axes


def write(figure: "Figure", text: str, left: float, top: float, **style: Any) -> None:  # noqa: ANN401
    """Write text at a place in inches from the upper left corner; dollar signs stay dollar signs."""
    width, height = figure.get_size_inches()
    look = {"color": INK, "va": "top", "parse_math": False, **style}
    figure.text(left / width, 1 - top / height, text, **look)


def through(*colours: str) -> "Colormap":
    """A colour map that runs evenly through these colours."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("impact", colours)


def bar_ticks(least: str, largest: float | None = None, *, signed: bool) -> Ticks:
    """The words below a colour bar, and where it belongs to one map alone the scores that its ends stand for.

    Args:
        least: the word at the lower end where there is no sign.
    """
    words = ((-1.0, "against"), (0.0, "0"), (1.0, "for")) if signed else ((0.0, least), (1.0, "most"))
    if largest is None:
        return words
    return tuple((place, f"{word} {place * largest:.2g}" if place else word) for place, word in words)


def colour_bar(axes: "Axes", cmap: "str | Colormap", *, ticks: Ticks) -> None:
    """Draw a lying colour bar that covers the values from the first tick to the last, with a word at each."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    values = [value for value, _ in ticks]
    colours = ScalarMappable(Normalize(values[0], values[-1]), cmap)  # pyright: ignore[reportArgumentType]
    bar = axes.figure.colorbar(colours, cax=axes, orientation="horizontal")
    bar.set_ticks(values, labels=[word for _, word in ticks])
    words = bar.ax.get_xticklabels()  # centred on their ticks, the outer ones would reach beyond the bar
    words[0].set_horizontalalignment("left")
    words[-1].set_horizontalalignment("right")
    bar.ax.tick_params(length=2, width=0.5, labelsize=7, labelcolor=GREY, color=GREY, pad=2)
    bar.outline.set_linewidth(0.4)  # pyright: ignore[reportCallIssue]


@cache
def font(size: float, weight: str = "normal") -> "FontProperties":
    """The font for tokens: DejaVu Sans, then whichever fonts for other scripts are installed."""
    require_matplotlib()
    from matplotlib.font_manager import FontProperties, fontManager

    installed = set(fontManager.get_font_names())
    family = ["DejaVu Sans", *(name for name in FALLBACKS if name in installed)]
    return FontProperties(family=family, size=size, weight=weight)


@cache
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return the width of a line of text, in inches."""
    require_matplotlib()
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, font(size, weight), ismath=False)
    return float(width) / POINTS


def rendered(
    figure: "Figure", form: str = "png", *, metadata: Mapping[str, str] | None = None, dpi: float | int | None = None
) -> bytes:
    """The figure as the bytes of a file.

    Args:
        form: `png`, `pdf` or `svg`.
        metadata: text kept in the file; a PDF knows Title and Subject.
        dpi: dots per inch, in place of the figure's own.
    """
    sink = BytesIO()
    figure.savefig(sink, format=form, metadata=dict(metadata or {}), dpi=dpi or "figure")
    return sink.getvalue()


WHITE = "#ffffff"
VIOLET = "#5b2a86"
"""The largest impact on text where a method does not say whether it is for or against the target."""
FOR, AGAINST = "#b2182b", "#2166ac"
"""The largest impact for and against the target on text: warm and cool as in pictures, safe for colour-blind eyes."""
SIGNED_MAP, UNSIGNED_MAP = "RdBu_r", "inferno"
DARK = 0.45
Values = Float[Tensor, " *shape"]


def symmetric(values: Values) -> Values:
    """S / max|S| (Cui et al., Sec. 4.2): zero stays zero, and so do maps of zeros."""
    largest = values.abs().max()
    return values / largest if largest > 0 else values


def stretched(values: Values) -> Values:
    """The values moved and scaled to fill the range from 0 to 1; zeros where all are the same."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else values * 0


def scaled(values: Values, *, signed: bool) -> Values:
    """The values within [-1, 1] where they are signed, else within [0, 1]."""
    return symmetric(values) if signed else stretched(values)


@dataclass(frozen=True)
class Ends:
    """The colours of the largest scores: for the target, against it, and where there is no sign."""

    positive: str = FOR
    negative: str = AGAINST
    unsigned: str = VIOLET


ENDS = Ends()


def token_colours(ends: Ends = ENDS, *, signed: bool) -> "Colormap":
    """The colour map that `shade` takes its colours from."""
    return through(ends.negative, WHITE, ends.positive) if signed else through(WHITE, ends.unsigned)


def shade(score: float, *, signed: bool = True, ends: Ends = ENDS, page: str = WHITE) -> str:
    """The colour of a token with a score from -1 to 1: white to dark red for the target, white to dark blue against it.

    Scores that say how much, but not whether for or against the target, run from white to violet.

    Args:
        page: the colour of a score of zero, in place of white.
    """
    end = ends.unsigned if not signed else ends.positive if score > 0 else ends.negative
    amount = min(abs(score), 1.0)
    mixed = (round(ground + (part - ground) * amount) for ground, part in zip(_rgb(page), _rgb(end), strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def ink(background: str) -> str:
    """Black or white, whichever is read more easily on this colour."""
    red, green, blue = _rgb(background)
    return WHITE if (0.299 * red + 0.587 * green + 0.114 * blue) / 255 < DARK else "#1c1c1c"


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


def check_index(attribution: Attribution, index: int) -> int:
    """The index counted from the front, after checking that there is such a sample."""
    batch = len(attribution)
    if not isinstance(index, int) or not -batch <= index < batch:
        raise OptionError(f"there is no sample {index}: the attribution holds {batch}, counted from 0 to {batch - 1}.")
    return index % batch


def common_target(attributions: Sequence[Attribution], index: int) -> str:
    """Return the target of all attributions of a row, without the names of classes; different targets are all named."""
    return " / ".join(sorted({target_title(sample_target(attribution, index)) for attribution in attributions}))


def wrap(text: str, width: int) -> str:
    """The text in lines of at most this many characters, broken after spaces, commas, brackets and underscores."""
    lines = [""]
    for part in re.findall(r"[^\s,(_]*[\s,(_]?", text):
        for chunk in (part[i : i + width] for i in range(0, len(part), width)):
            if lines[-1] and len(lines[-1]) + len(chunk.rstrip()) > width:
                lines.append("")
            lines[-1] += chunk
    return "\n".join(line.rstrip() for line in lines)
