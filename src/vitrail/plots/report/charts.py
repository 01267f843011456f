"""Curves as SVG inside the page: sharp at any size, a few hundred bytes a line."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from vitrail.plots.report.markup import Html, plain

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 42
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8478f", "#b07800", "#2a9fd6", "#6a4c93", "#7a5c3a")
"""Told apart by those who do not see all colours; dashes tell the next eight from the first."""
CHANCE = "random"


@dataclass(frozen=True)
class Line:
    """A curve.

    Args:
        look: CSS classes, from `look_of`.
    """

    label: str
    look: str
    x: Sequence[float]
    y: Sequence[float]


def look_of(number: int) -> str:
    """The classes of a method's line, the same in every chart of a page."""
    return f"c{number % len(COLOURS)} d{number // len(COLOURS) % 3}"


def styles() -> str:
    """The style sheet of the lines."""
    colours = "".join(f".c{i}{{--c:{colour}}}" for i, colour in enumerate(COLOURS))
    return f"{colours}.{CHANCE}{{--c:#767676}}.d1,.{CHANCE}{{stroke-dasharray:6 3}}.d2{{stroke-dasharray:2 3}}"


def chart(lines: Sequence[Line], *, across: str, up: str, title: str = "") -> Html:
    """A figure with its legend; the words tell where every line begins and ends."""
    low_x, high_x = min(x for line in lines for x in line.x), max(x for line in lines for x in line.x)
    low_y, high_y = _range([y for line in lines for y in line.y])
    wide, high = (WIDTH - LEFT - RIGHT) / ((high_x - low_x) or 1), (HEIGHT - TOP - BOTTOM) / (high_y - low_y)
    drawn = [
        f'<polyline class="{line.look}" points="'
        + " ".join(
            f"{LEFT + (x - low_x) * wide:.1f},{HEIGHT - BOTTOM - (y - low_y) * high:.1f}"
            for x, y in zip(line.x, line.y, strict=True)
        )
        + f'"><title>{escape(line.label)}</title></polyline>'
        for line in lines
    ]
    told = "; ".join(f"{line.label} from {line.y[0]:.2f} to {line.y[-1]:.2f}" for line in lines)
    return Html(
        f'<figure class="chart">{f"<h4>{plain(title)}</h4>" if title else ""}'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"{up} by {across}: {told}")}">'
        f"{_grid((low_x, high_x), (low_y, high_y))}{''.join(drawn)}"
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" class="m">{escape(across)}</text>'
        f'<text transform="translate(11 {(TOP + HEIGHT - BOTTOM) / 2})rotate(-90)" class="m">{escape(up)}</text></svg>'
        f"{legend(lines)}</figure>"
    )


def legend(lines: Sequence[Line]) -> Html:
    """The names of the lines beside strokes of their colours."""
    inside = "".join(
        f'<li><svg viewBox="0 0 22 8" aria-hidden="true"><polyline class="{line.look}" points="1,4 21,4"/></svg>'
        f"{plain(line.label)}</li>"
        for line in lines
    )
    return Html(f'<ul class="legend">{inside}</ul>')


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From zero, or below the lowest, to a round number above the highest."""
    top = max(*values, 1e-3)
    unit = 10.0 ** math.floor(math.log10(top))
    high = next(unit * step for step in (1, 2, 2.5, 5, 10) if unit * step >= top * (1 - 1e-9))
    low = min(values)
    return (0.0 if low >= 0 else -high * math.ceil(-low / high)), high


def _grid(across: tuple[float, float], up: tuple[float, float]) -> str:
    found = []
    for share, value in _ticks(*up):
        height = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share
        found.append(f'<path d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}"/>')
        found.append(f'<text x="{LEFT - 6}" y="{height + 4:.1f}" class="e">{value}</text>')
    for share, value in _ticks(*across):
        place = LEFT + (WIDTH - LEFT - RIGHT) * share
        found.append(f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 15}" class="m">{value}</text>')
    return f"<g>{''.join(found)}</g>"


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Places from 0 to 1 and their numbers, divided so that the numbers are short."""
    options = [[(i / n, f"{low + (high - low) * i / n:.3g}") for i in range(n + 1)] for n in (4, 5, 3)]
    return min(options, key=lambda ticks: max(len(value) for _, value in ticks))
