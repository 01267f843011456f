"""Parts of a report's page: tables, charts as SVG, the style sheet and the script.

Without the script only sorting, filtering, enlarging and reading numbers off curves are missing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from markupsafe import Markup

from vitrail.plots.canvas import WHITE, ink, shade
from vitrail.plots.page import document, render
from vitrail.plots.tokens import Piece


@dataclass(frozen=True)
class Section:
    """A part of the page that can be linked to."""

    key: str
    title: str
    body: Markup


def report_page(title: str, about: Mapping[str, str], parts: Sequence[Section], *, contents: bool) -> str:
    """The whole document.

    Args:
        about: names and values below the heading.
        contents: whether links to the parts stand at the top.
    """
    body = render("plots/report/templates/report.html", title=title, about=about, parts=parts, contents=contents)
    return document(title, body, style=style(), script=script())


@dataclass(frozen=True)
class Cell:
    """A cell that is sorted by a number; `tint` says how strongly its ground is coloured, from 0 to 1."""

    shown: str
    value: int | float | None = None
    tint: float = 0.0


Content = str | Cell


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[Content]],
    *,
    sortable: bool = False,
    keys: Sequence[str] = (),
) -> Markup:
    """A table that scrolls sideways where it is too wide; the first cell of a row is its heading.

    Args:
        caption: for screen readers, and for the scrolling region.
        keys: the ids of the parts of the page that the rows stand for.
    """
    rows = list(rows)
    numbers = [isinstance(one, Cell) for one in rows[0]] if rows else [False] * len(head)
    values = {"caption": caption, "head": list(zip(head, numbers, strict=True)), "sortable": sortable, "keys": keys}
    return render("plots/report/templates/table.html", rows=rows, **values)


def small(words: str) -> Markup:
    """A paragraph of small print."""
    return Markup('<p class="small">{}</p>').format(words)


def percent(value: float | None) -> Cell:
    """A probability."""
    return Cell("–") if value is None else Cell(f"{value:.1%}", value)


def decimal(value: float | None, *, tinted: bool = False) -> Cell:
    """A number with two decimals."""
    if value is None:
        return Cell("–")
    return Cell(f"{value:.2f}", value, tint=0.45 * min(max(value, 0.0), 1.0) if tinted else 0.0)


WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 42
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8478f", "#b07800", "#2a9fd6", "#6a4c93", "#7a5c3a")
"""Distinct also for colour-blind readers; the next eight lines are dashed."""
CHANCE = "random"


@dataclass(frozen=True)
class Line:
    """A curve, with the CSS classes that `look_of` gives."""

    label: str
    look: str
    x: Sequence[float]
    y: Sequence[float]


def look_of(number: int) -> str:
    """The classes of a method's line, the same in every chart of a page."""
    return f"c{number % len(COLOURS)} d{number // len(COLOURS) % 3}"


def chart(lines: Sequence[Line], *, across: str, up: str, title: str = "") -> Markup:
    """A figure with its legend; its label says where every line begins and ends."""
    low_x, high_x = min(x for line in lines for x in line.x), max(x for line in lines for x in line.x)
    low_y, high_y = _range([y for line in lines for y in line.y])
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    wide, high = (right - LEFT) / ((high_x - low_x) or 1), (bottom - TOP) / (high_y - low_y)
    drawn = [
        " ".join(
            f"{LEFT + (x - low_x) * wide:.1f},{bottom - (y - low_y) * high:.1f}"
            for x, y in zip(line.x, line.y, strict=True)
        )
        for line in lines
    ]
    return render(
        "plots/report/templates/chart.html",
        **{"title": title, "across": across, "up": up, "lines": lines, "points": drawn},
        **{"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": right, "top": TOP, "bottom": bottom},
        summary="; ".join(f"{line.label} from {line.y[0]:.2f} to {line.y[-1]:.2f}" for line in lines),
        data_x=f"{low_x:g} {high_x:g}",
        data_y=f"{low_y:g} {high_y:g}",
        rows=[(bottom - (bottom - TOP) * share, value) for share, value in _ticks(low_y, high_y)],
        columns=[(LEFT + (right - LEFT) * share, value) for share, value in _ticks(low_x, high_x)],
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From zero, or below the lowest, to a round number above the highest."""
    top = max(*values, 1e-3)
    unit = 10.0 ** math.floor(math.log10(top))
    high = next(unit * step for step in (1, 2, 2.5, 5, 10) if unit * step >= top * (1 - 1e-9))
    low = min(values)
    return (0.0 if low >= 0 else -high * math.ceil(-low / high)), high


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Places from 0 to 1 and their numbers, divided so that the numbers are short."""
    options = [[(i / n, f"{low + (high - low) * i / n:.3g}") for i in range(n + 1)] for n in (4, 5, 3)]
    return min(options, key=lambda ticks: max(len(value) for _, value in ticks))


SHADES = 12
"""Steps from the page's colour to that of the strongest token."""
NIGHT = "#181818"
"""The page in the dark."""


def style() -> str:
    """The style sheet, with the colours of tokens and lines, in the light and in the dark."""
    colours = "".join(f".c{i}{{--c:{colour}}}" for i, colour in enumerate(COLOURS))
    dashes = f".{CHANCE}{{--c:#767676}}.d1,.{CHANCE}{{stroke-dasharray:6 3}}.d2{{stroke-dasharray:2 3}}"
    dark = f"@media screen and (prefers-color-scheme:dark){{{_shades(NIGHT)}}}"
    return _read("report.css") + _shades(WHITE) + colours + dashes + dark


def script() -> str:
    """Return the script that sorts, filters, enlarges pictures and reads curves."""
    return _read("report.js")


def _read(name: str) -> str:
    return files("vitrail.plots.report").joinpath("static", name).read_text("utf-8")


def _shades(page: str) -> str:
    return "".join(
        f".{sign}{step}{{background:{(colour := shade(way * step / SHADES, page=page))};color:{ink(colour)}}}"
        for sign, way in (("p", 1), ("q", -1))
        for step in range(1, SHADES + 1)
    )


def token_class(piece: Piece) -> str:
    """The class of a shaded token; none where it is white."""
    step = round(min(abs(piece.score), 1.0) * SHADES)
    if piece.left_out:
        return "o"
    return f"{'p' if piece.score > 0 else 'q'}{step}" if step else ""
