"""Parts of a report's page: escaped text, tables, charts as SVG, the style sheet and the script.

Plain text is escaped here; `Html` is HTML already. Without the script only sorting, filtering, enlarging and reading
numbers off curves are missing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from vitrail.plots.canvas import WHITE, ink, shade


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


@dataclass(frozen=True)
class Cell:
    """A cell that is sorted by a number.

    Args:
        tint: from 0 to 1, how strongly its ground is coloured.
    """

    shown: str
    value: int | float | None = None
    tint: float = 0.0


Content = str | Cell
CLASS, LONG = ' class="n"', 90


def plain(content: str) -> Html:
    """The text as HTML."""
    return content if isinstance(content, Html) else Html(escape(content))


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[Content]],
    *,
    sortable: bool = False,
    keys: Sequence[str] = (),
) -> Html:
    """A table that scrolls sideways where it is too wide; the first cell of a row is its heading.

    Args:
        caption: for those who hear the page, and for the scrolling region.
        keys: the ids of the parts of the page that the rows stand for.
    """
    rows = list(rows)
    numbers = [isinstance(one, Cell) for one in rows[0]] if rows else [False] * len(head)
    top = "".join(
        f'<th scope="col"{CLASS if n else ""}>{plain(name)}</th>' for name, n in zip(head, numbers, strict=True)
    )
    marks = [f' data-for="{escape(key)}"' for key in keys] or None
    lines = [
        f"<tr{marks[i] if marks else ''}>{_cell(row[0], 'th')}{''.join(_cell(one, 'td') for one in row[1:])}</tr>"
        for i, row in enumerate(rows)
    ]
    kind = ' class="sortable"' if sortable else ""
    return Html(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table{kind}>'
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(content: Content, tag: str) -> str:
    scope = ' scope="row"' if tag == "th" else ""
    if isinstance(content, Cell):
        value = "" if content.value is None else f' data-v="{content.value:.6g}"'
        tint = f' style="background:rgb(0 114 178/{content.tint:.2f})"' if content.tint > 0 else ""
        return f"<{tag}{scope}{CLASS}{value}{tint}>{plain(content.shown)}</{tag}>"
    long = ' class="long"' if len(content) > LONG else ""
    return f"<{tag}{scope}{long}>{plain(content)}</{tag}>"


def pairs(found: Mapping[str, str]) -> Html:
    """Names and what they stand for."""
    inside = "".join(f"<div><dt>{plain(name)}</dt><dd>{plain(value)}</dd></div>" for name, value in found.items())
    return Html(f"<dl>{inside}</dl>")


def section(name: str, title: str, *inside: str) -> Html:
    """A part of the page that can be linked to."""
    return Html(f'<section id="{escape(name)}"><h2>{plain(title)}</h2>{"".join(inside)}</section>')


def contents(parts: Mapping[str, str]) -> Html:
    """Links to the parts of the page: id -> title."""
    links = "".join(f'<a href="#{escape(name)}">{plain(title)}</a>' for name, title in parts.items())
    return Html(f'<nav aria-label="On this page">{links}</nav>')


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
        f'<polyline class="{line.look}" data-name="{escape(line.label)}" points="'
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
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" data-y="{low_y:g} {high_y:g}" '
        f'data-x="{low_x:g} {high_x:g}" aria-label="{escape(f"{up} by {across}: {told}")}">'
        f"{_grid((low_x, high_x), (low_y, high_y))}{''.join(drawn)}"
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" class="m">{escape(across)}</text>'
        f'<text transform="translate(11 {(TOP + HEIGHT - BOTTOM) / 2})rotate(-90)" class="m">{escape(up)}</text></svg>'
        f'{legend(lines)}<output class="small" aria-live="polite">\u00a0</output></figure>'
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


SHADES = 12
"""Steps from the page's colour to that of the strongest token."""
NIGHT = "#181818"
"""The page in the dark."""


def style() -> str:
    """The style sheet, with the colours of tokens and lines, in the light and in the dark."""
    dark = f"@media screen and (prefers-color-scheme:dark){{{_shades(NIGHT)}}}"
    return _read("report.css") + _shades(WHITE) + styles() + dark


def script() -> str:
    """What sorts, filters, enlarges pictures and reads curves."""
    return _read("report.js")


def _read(name: str) -> str:
    return files("vitrail.plots.report").joinpath("static", name).read_text("utf-8")


def _shades(page: str) -> str:
    return "".join(
        f".{sign}{step}{{background:{(colour := shade(way * step / SHADES, page=page))};color:{ink(colour)}}}"
        for sign, way in (("p", 1), ("q", -1))
        for step in range(1, SHADES + 1)
    )


def token_class(score: float) -> str:
    """The class of a token with a score from -1 to 1; none where it is white."""
    step = round(min(abs(score), 1.0) * SHADES)
    return f"{'p' if score > 0 else 'q'}{step}" if step else ""
