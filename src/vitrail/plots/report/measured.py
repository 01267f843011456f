"""The report of a results file of the bench: tables with notes, curves, and what decided the numbers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vitrail.attribution import versions
from vitrail.evaluate.bench.forms import PANELS, Panels, close, count, number, panels_of
from vitrail.evaluate.bench.table import Estimate, Table, tables
from vitrail.plots.report.markup import (
    Cell,
    Content,
    Line,
    Section,
    chart,
    look_of,
    report_page,
    small,
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
    parts = [
        Section("summary", "Summary", first + small(LEGEND)),
        *(_part(key, one, measured.panels, drawn) for key, one in zip(keys, measured.tables, strict=True)),
    ]
    return report_page(title, about, parts, contents=False)


def _contents(key: str, one: Table) -> list[Content]:
    examples = max((e.count for _, row in one.rows for e in row if e is not None), default=0)
    link = Markup('<a href="#{}">{}</a>').format(key, one.title)
    return [link, *(Cell(str(n), n) for n in (len(one.rows), examples, len(one.columns)))]


def _part(key: str, one: Table, panels: Mapping[str, Panels], drawn: set[str]) -> Section:
    """A table with its notes; the curves of its model, data and protocol where they were not drawn before."""
    head = ["method", "n", *(column.title for column in one.columns)]
    rows = [[name, Cell(count(row), int(count(row))), *map(_cell, row)] for name, row in one.rows]
    notes = Markup().join(small(note) for note in one.notes)
    curves = panels.get(one.title, {}) if one.title not in drawn else {}
    drawn.add(one.title)
    shown = table(one.title, head, rows, sortable=True)
    return Section(key, one.title, shown + notes + _charts(curves) + _origin(one))


def _cell(estimate: Estimate | None) -> Cell:
    """The number as the tables of `bench table` print it."""
    if estimate is None:
        return Cell("–")
    value = number(estimate.value)
    shown = Markup("<strong>{}</strong>").format(value) if estimate.best else f"{value}{close(estimate)}"
    between = Markup("{} <small>[{}, {}]</small>").format(shown, number(estimate.low), number(estimate.high))
    return Cell(between, estimate.value)


def _charts(panels: Panels) -> Markup:
    labels = sorted({label for series in panels.values() for label, _ in series})
    looks = {label: look_of(place) for place, label in enumerate(labels)}
    drawn = []
    for name, series in panels.items():
        _, panel = PANELS[name]
        lines = [Line(label, looks[label], x.astype(float).tolist(), y.tolist()) for label, (x, y) in series]
        drawn.append(chart(lines, across=panel.across, up=panel.up, title=name))
    return Markup('<div class="charts">{}</div>').format(Markup().join(drawn)) if drawn else Markup()


def _origin(one: Table) -> Markup:
    made = table(f"Origin of {one.title}", ["what", "value"], list(_flat(one.about)))
    return Markup("<details><summary>All that decided these numbers</summary>{}</details>").format(made)


def _flat(about: Mapping[str, Any], before: str = "") -> Iterator[list[str]]:
    for name, value in about.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield [f"{before}{name}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)]
