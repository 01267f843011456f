"""The report of a results file of the bench: tables with notes, curves, and what decided the numbers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from vitrail.attribution import versions
from vitrail.evaluate.bench.bootstrap import Estimate
from vitrail.evaluate.bench.forms import close, count, number
from vitrail.evaluate.bench.plot import PANELS, Panels, panels_of
from vitrail.evaluate.bench.table import Table, tables
from vitrail.plots.page import document
from vitrail.plots.report.markup import (
    Cell,
    Content,
    Html,
    Line,
    chart,
    look_of,
    pairs,
    plain,
    script,
    section,
    style,
    table,
)


@dataclass(frozen=True, eq=False)
class Measured:
    """The tables and curves of a results file.

    Args:
        source: the file's name.
        panels: for each model, data set and protocol, by its title: kind of curve -> methods and their curves.
    """

    source: str
    made: datetime
    tables: tuple[Table, ...]
    panels: dict[str, Panels]

    def to_html(self) -> str:
        """The page."""

        return to_page(self)

    def save(self, path: str | Path) -> Path:
        """Write the page; it needs no other file."""
        from vitrail.storage import write_bytes

        return write_bytes(Path(path), self.to_html().encode())


def of_results(path: str | Path, *, seed: int = 0) -> Measured:
    """A report of what `vitrail bench run` measured.

    Args:
        seed: of the bootstrap, as in `vitrail bench table`.
    """
    made = tables(path, seed=seed)
    return Measured(Path(path).name, datetime.now(UTC), tuple(made), dict(panels_of(path)))


LEGEND = "Bold is the best of its column, ~ is not significantly different from it; in brackets 95 % intervals."


def to_page(measured: Measured) -> str:
    """The whole document."""
    title = f"{measured.source}: {len(measured.tables)} table{'' if len(measured.tables) == 1 else 's'} of the bench"
    about = {"made": f"{measured.made:%Y-%m-%d %H:%M} UTC", "with": f"vitrail {versions().get('vitrail', '')}"}
    keys = [f"table-{place}" for place in range(1, len(measured.tables) + 1)]
    rows = [_contents(key, one) for key, one in zip(keys, measured.tables, strict=True)]
    first = table("Tables", ["table", "methods", "examples", "measures"], rows, sortable=True)
    drawn: set[str] = set()
    parts = [_part(key, one, measured.panels, drawn) for key, one in zip(keys, measured.tables, strict=True)]
    body = (
        f"<main><header><h1>{plain(title)}</h1>{pairs(about)}</header>"
        f"{section('summary', 'Summary', first, f'<p class=small>{LEGEND}</p>')}{''.join(parts)}</main>"
    )
    return document(title, body, style=style(), script=script())


def _contents(key: str, one: Table) -> list[Content]:
    examples = max((e.count for _, row in one.rows for e in row if e is not None), default=0)
    link = Html(f'<a href="#{escape(key)}">{plain(one.title)}</a>')
    return [link, *(Cell(str(n), n) for n in (len(one.rows), examples, len(one.columns)))]


def _part(key: str, one: Table, panels: Mapping[str, Panels], drawn: set[str]) -> Html:
    """A table with its notes; the curves of its model, data and protocol where they were not drawn before."""
    head = ["method", "n", *(column.title for column in one.columns)]
    rows = [[name, Cell(count(row), int(count(row))), *map(_cell, row)] for name, row in one.rows]
    notes = "".join(f'<p class="small">{plain(note)}</p>' for note in one.notes)
    curves = panels.get(one.title, {}) if one.title not in drawn else {}
    drawn.add(one.title)
    return section(key, one.title, table(one.title, head, rows, sortable=True), notes, _charts(curves), _origin(one))


def _cell(estimate: Estimate | None) -> Cell:
    """The number as the tables of `bench table` print it."""
    if estimate is None:
        return Cell("–")
    value = number(estimate.value)
    shown = f"<strong>{value}</strong>" if estimate.best else f"{value}{close(estimate)}"
    return Cell(Html(f"{shown} <small>[{number(estimate.low)}, {number(estimate.high)}]</small>"), estimate.value)


def _charts(panels: Panels) -> Html:
    labels = sorted({label for series in panels.values() for label, _ in series})
    looks = {label: look_of(place) for place, label in enumerate(labels)}
    drawn = []
    for name, series in panels.items():
        _, panel = PANELS[name]
        lines = [Line(label, looks[label], x.astype(float).tolist(), y.tolist()) for label, (x, y) in series]
        drawn.append(chart(lines, across=panel.across, up=panel.up, title=name))
    return Html(f'<div class="charts">{"".join(drawn)}</div>') if drawn else Html("")


def _origin(one: Table) -> Html:
    made = table(f"Origin of {one.title}", ["what", "value"], list(_flat(one.about)))
    return Html(f"<details><summary>All that decided these numbers</summary>{made}</details>")


def _flat(about: Mapping[str, Any], before: str = "") -> Iterator[list[str]]:
    for name, value in about.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield [f"{before}{name}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)]
