"""A curve and a matrix, drawn as SVG and as a table, so that they stay sharp and can be read aloud."""

from html import escape

import numpy as np
from jaxtyping import Float

from vitrail.apps.web.drawing import breakable
from vitrail.apps.web.removing import Removal
from vitrail.evaluate.metrics.correlation import Agreement

WIDTH, HEIGHT, LEFT, BOTTOM, MARGIN = 420, 250, 44, 38, 12
MAP_LINE, CHANCE_LINE = "#c2410c", "#6b7280"


def curve(removed: Removal, level: int, answer: str) -> str:
    """The two curves, with a dot where the slider stands."""
    alt = (
        f"Probability of {answer} while parts are removed. At {removed.levels[level]:.0%} removed it is "
        f"{removed.by_map[level]:.0%} in the order of the map and {removed.by_chance[level]:.0%} in random order."
    )
    x, y = _x(removed.levels[level]), _y(float(removed.by_map[level]))
    inside = [
        *(_tick(share) for share in (0.0, 0.5, 1.0)),
        _line(removed, removed.by_chance, CHANCE_LINE, dashed=True),
        _line(removed, removed.by_map, MAP_LINE, dashed=False),
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{MARGIN}" y2="{_y(0.0):.1f}" stroke="#9ca3af" stroke-dasharray="2 3"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{MAP_LINE}" stroke="white" stroke-width="1.5"/>',
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 4}" text-anchor="middle">removed</text>',
    ]
    return (
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(alt)}">{"".join(inside)}'
        f'</svg><p class="key"><span style="color:{MAP_LINE}">━ in the order of the map</span> '
        f'<span style="color:{CHANCE_LINE}">╌ in random order</span></p>'
    )


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - MARGIN)


def _y(probability: float) -> float:
    return MARGIN + (1 - probability) * (HEIGHT - BOTTOM - MARGIN)


def _tick(share: float) -> str:
    """A grid line with its number, and a number on the axis below."""
    high, along = _y(share), _x(share)
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - MARGIN}" y1="{high:.1f}" y2="{high:.1f}" stroke="#e5e7eb"/>'
        f'<text x="{LEFT - 6}" y="{high + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        f'<text x="{along:.1f}" y="{HEIGHT - 20}" text-anchor="{"end" if share == 1 else "middle"}">{share:.0%}</text>'
    )


def _line(removed: Removal, values: Float[np.ndarray, " l"], colour: str, *, dashed: bool) -> str:
    points = " ".join(f"{_x(a):.1f},{_y(float(b)):.1f}" for a, b in zip(removed.levels, values, strict=True))
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.2"{dash}/>'


def matrix(found: Agreement) -> str:
    """How alike the orders of every two methods are, from -1 to 1."""
    head = "".join(f'<th scope="col"><span>{breakable(name)}</span></th>' for name in found.names)
    body = "".join(
        f'<tr><th scope="row">{breakable(name)}</th>{"".join(_cell(float(value)) for value in row)}</tr>'
        for name, row in zip(found.names, found.matrix, strict=True)
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="agreement between methods">'
        f'<table class="matrix"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(value: float) -> str:
    share = min(abs(value), 1.0)
    base = (0, 112, 60) if value >= 0 else (184, 17, 42)
    red, green, blue = (round(255 + (part - 255) * share * 0.75) for part in base)
    ink = "#fff" if share > 0.7 else "#1c1c1c"
    return f'<td style="background:rgb({red},{green},{blue});color:{ink}">{value:+.2f}</td>'
