"""Parts of a report's page: escaped text, tables, charts as SVG, the style sheet and the script.

Plain text is escaped here; `Html` is HTML already. Without the script only sorting and filtering are missing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from vitrail.plots.canvas import ink, shade


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


SHADES = 12
"""Steps from white to the darkest token."""
STYLE = """
:root{color-scheme:light;--ink:#1c1c1c;--grey:#5f5f5f;--line:#dcdcdc;--soft:#f6f6f4}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink)}
main{max-width:78rem;margin:0 auto;padding:1.2rem 1.5rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:.4rem 0 .8rem;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:2.4rem 0 .6rem;border-bottom:1px solid var(--line);padding-bottom:.2rem}
h3{font-size:1.02rem;margin:0;overflow-wrap:anywhere}h4{font-size:.92rem;margin:.7rem 0 .2rem}
a{color:#0b5cad}:focus-visible{outline:2px solid #0b5cad}
nav{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:.8rem 0}
dl{display:flex;flex-wrap:wrap;gap:.35rem 1.6rem;margin:.6rem 0;font-size:.9rem}
dt{color:var(--grey);font-size:.78rem}dd{margin:0;overflow-wrap:anywhere}
.small{color:var(--grey);font-size:.86rem;margin:.35rem 0;max-width:60rem;overflow-wrap:anywhere}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.9rem;margin:.4rem 0}
th,td{padding:.28rem .8rem .28rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
tbody th{font-weight:400;min-width:8rem;max-width:26rem;overflow-wrap:break-word}tbody .long{min-width:16rem}
thead th{font-weight:600;vertical-align:bottom}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}thead .n{white-space:normal}
td small{color:var(--grey)}td[style]{padding-left:.8rem}
th button{font:inherit;color:inherit;background:none;border:0;padding:0;text-align:inherit;cursor:pointer;
text-decoration:underline dotted #8a8a8a;text-underline-offset:.2em}
th[aria-sort=ascending] button::after{content:" \\25b2"}
th[aria-sort=descending] button::after{content:" \\25bc"}
#controls input{font:inherit;padding:.25rem .5rem;width:18rem;max-width:100%;border:1px solid #8a8a8a}
article{border:1px solid var(--line);border-radius:.5rem;padding:.8rem 1rem;margin:0 0 1rem;scroll-margin-top:.5rem}
article:target{border-color:#0b5cad}
.row{display:flex;flex-wrap:wrap;gap:.4rem 1.6rem}.row>div{flex:1 1 26rem;min-width:0}.row>.chart{flex:0 1 19rem}
.maps{display:flex;flex-wrap:wrap;gap:.7rem;margin:.6rem 0}
.maps figure{margin:0;width:9.4rem}.maps img{display:block;width:100%;border-radius:.25rem}
figcaption{font-size:.82rem;overflow-wrap:anywhere}
.text{margin:.5rem 0}.text b{font-size:.82rem;font-weight:600;display:block}.text p{margin:.1rem 0;line-height:1.9}
.text span{padding:.1em .18em;border-radius:.2em}.text .o{color:#767676}
.scale{display:inline-block;width:7rem;height:.7rem;border:1px solid var(--line);vertical-align:-.05rem;margin:0 .4rem}
.charts{display:flex;flex-wrap:wrap;gap:1rem 1.6rem}.chart{margin:.4rem 0;width:24rem;max-width:100%}
.chart h4{margin:0}.chart>svg{display:block;width:100%}svg text{font-size:11px;fill:var(--grey)}.m{text-anchor:middle}
.e{text-anchor:end}svg path{stroke:var(--line)}polyline{fill:none;stroke:var(--c);stroke-width:1.8}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:.2rem 0 0;padding:0;font-size:.82rem}
.legend svg{width:1.5rem;height:.55rem;margin-right:.3rem}
summary{cursor:pointer;color:#0b5cad;font-size:.9rem}
@media (max-width:40rem){main{padding:.8rem .8rem 3rem}.maps figure{width:calc(50% - .35rem)}article{padding:.7rem}
h1{font-size:1.35rem}}
@media print{#controls,nav{display:none}article,.chart{break-inside:avoid}.scroll{overflow:visible}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}main{max-width:none;padding:0}}
"""
SCRIPT = """(() => {
const all = (where, what) => [...where.querySelectorAll(what)];
const part = row => document.getElementById(row.dataset.for);
const value = cell => cell.classList.contains('n') ? Number(cell.dataset.v ?? -Infinity) : cell.textContent;
const key = (row, at) => value(row.cells[at]);
const order = (a, b) => a === b ? 0 : typeof a === 'number' ? a - b : a.localeCompare(b, undefined, {numeric: true});
for (const table of all(document, 'table.sortable')) {
  all(table, 'thead th').forEach((head, at) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const down = head.getAttribute('aria-sort') === 'ascending';
      all(table, 'thead th').forEach(other => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const rows = all(table, 'tbody tr').sort((a, b) => order(key(a, at), key(b, at)) * (down ? -1 : 1));
      for (const row of rows) {
        row.parentNode.append(row);
        const shown = part(row);
        if (shown) shown.parentNode.append(shown);
      }
    });
  });
}
const controls = document.getElementById('controls');
if (controls) {
  controls.hidden = false;
  const field = controls.querySelector('input'), told = controls.querySelector('output');
  const rows = all(document, 'tr[data-for]');
  const filter = () => {
    const words = field.value.toLowerCase().split(/\\s+/).filter(Boolean);
    const kept = new Set();
    for (const row of rows) {
      const text = (row.textContent + ' ' + (part(row)?.querySelector('h3').textContent ?? '')).toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      if (!row.hidden) kept.add(row.dataset.for);
    }
    for (const shown of all(document, 'article')) shown.hidden = !kept.has(shown.id);
    told.textContent = words.length ? kept.size + ' of ' + new Set(rows.map(row => row.dataset.for)).size : '';
  };
  field.addEventListener('input', filter);
  filter();
}
})();"""


def style() -> str:
    """The style sheet, with the colours of tokens and lines."""
    shaded = (
        f".{sign}{step}{{background:{(colour := shade(way * step / SHADES))};color:{ink(colour)}}}"
        for sign, way in (("p", 1), ("q", -1))
        for step in range(1, SHADES + 1)
    )
    return STYLE + "".join(shaded) + styles()


def token_class(score: float) -> str:
    """The class of a token with a score from -1 to 1; none where it is white."""
    step = round(min(abs(score), 1.0) * SHADES)
    return f"{'p' if score > 0 else 'q'}{step}" if step else ""
