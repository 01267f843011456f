"""Pieces of HTML. Whatever is handed over as plain text is escaped here; `Html` is what already is HTML."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape


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
