"""Reports and their pages: inputs with the model's answer and every method's map, or a results file of the bench."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup

from vitrail.attribution import versions
from vitrail.errors import as_path
from vitrail.evaluate.bench.forms import PANELS, Panels, close, count, number, panels_of
from vitrail.evaluate.bench.table import Estimate, Table, tables
from vitrail.evaluate.metrics import area
from vitrail.plots.canvas import AGAINST, FOR, SIGNED_MAP, UNSIGNED_MAP, WHITE
from vitrail.plots.page import render
from vitrail.plots.report.markup import (
    CHANCE,
    Cell,
    Content,
    Line,
    Section,
    chart,
    decimal,
    look_of,
    percent,
    report_page,
    small,
    table,
    token_class,
)
from vitrail.plots.tokens import Piece
from vitrail.storage import write_bytes

Curve = tuple[float, ...]
"""The probability of the explained class while 0, 10, ..., 100 % are removed, the highest scores first."""
LEVELS = tuple(k / 10 for k in range(11))
RANDOM = 3
"""Random orders whose mean is shown beside the methods."""


@dataclass(frozen=True)
class Map:
    """The map of one input by one method.

    Args:
        picture: of an image, the bytes of a file.
        pieces: of a text.
        curve: None where none was asked for.
    """

    label: str
    signed: bool
    picture: bytes = field(repr=False, default=b"")
    pieces: tuple[Piece, ...] = field(repr=False, default=())
    curve: Curve | None = None

    @property
    def area(self) -> float | None:
        """Under the curve, from 0 to 1; less is better."""
        return None if self.curve is None else area_under(self.curve)

    @property
    def strongest(self) -> list[Piece]:
        """The three pieces of a text with the largest scores, as words instead of colours."""
        return sorted((p for p in self.pieces if not p.left_out), key=lambda piece: -abs(piece.score))[:3]


@dataclass(frozen=True, eq=False)
class Row:
    """One target of an input, explained by every method.

    Args:
        target: in the names of the model's classes.
        probability: of the target's class.
        failed: methods that could not explain it, and why.
        agreement: rank correlation of every two maps.
        random: the curve of random orders, their mean.
        no_curve: why there is none, though it was asked for.
    """

    target: str
    probability: float | None
    maps: tuple[Map, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    agreement: Float[np.ndarray, "m m"] | None = None
    random: Curve | None = None
    no_curve: str = ""

    @property
    def mean_agreement(self) -> float | None:
        """The mean over all pairs of methods."""
        return None if self.agreement is None else float(self.agreement[np.triu_indices(len(self.maps), 1)].mean())


@dataclass(frozen=True, eq=False)
class Entry:
    """One input with the model's answer.

    Args:
        text: the sentence, for models of text.
        picture: what the model saw, for models of images.
    """

    name: str
    answer: str
    probability: float
    rows: tuple[Row, ...]
    text: str = ""
    picture: bytes = field(repr=False, default=b"")


@dataclass(frozen=True, eq=False)
class Report:
    """Inputs and their explanations.

    Args:
        source: the name of the folder or file.
        kind: `"image"` or `"text"`.
        about: where the results come from, in words: model, hash, versions, preset, options.
        methods: label -> preset and options, in words.
        broken: inputs that could not be explained, and why.
    """

    source: str
    kind: str
    made: datetime
    about: Mapping[str, str]
    methods: Mapping[str, str]
    entries: tuple[Entry, ...]
    broken: Mapping[str, str]

    @property
    def curves(self) -> bool:
        """Return True if any map has a curve."""
        return any(shown.curve is not None for row in self.rows() for shown in row.maps)

    def rows(self) -> Iterator[Row]:
        """Every target of every input."""
        return (row for entry in self.entries for row in entry.rows)

    def to_html(self) -> str:
        """The page."""
        one, many = KINDS[self.kind]
        counted = f"{len(self.entries)} {one if len(self.entries) == 1 else many}"
        methods = f"{len(self.methods)} method{'' if len(self.methods) == 1 else 's'}"
        parts = [Section("summary", "Summary", _summary(self)), Section("methods", "Methods", _methods(self))]
        if self.curves:
            parts.append(Section("curves", "Curves", _curves(self)))
        if any(row.agreement is not None for row in self.rows()):
            parts.append(Section("agreement", "Agreement between methods", _agreement(self)))
        inputs = Markup().join(_article(self, i) for i in range(len(self.entries)))
        parts.append(Section("inputs", many.capitalize(), _scales(self) + inputs))
        if self.broken:
            broken = table("Left out", ["input", "reason"], list(self.broken.items()))
            parts.append(Section("broken", f"Left out: {len(self.broken)}", broken))
        about = {"made": f"{self.made:%Y-%m-%d %H:%M} UTC", **self.about}
        return report_page(f"{self.source}: {counted} explained by {methods}", about, parts, contents=True)

    def save(self, path: str | Path) -> Path:
        """Write the page; it needs no other file."""
        return write_bytes(as_path(path, "a report"), self.to_html().encode(errors="backslashreplace"))


def area_under(curve: Curve) -> float:
    """The area under a curve, from 0 to 1."""
    return float(area(np.array(curve), rule="unit")) / 100


def key_of(place: int) -> str:
    """The id of an input's part of the page."""
    return f"input-{place + 1}"


def _article(report: Report, place: int) -> Markup:
    """The part of the page of one input."""
    entry = report.entries[place]
    looks = {label: look_of(order) for order, label in enumerate(report.methods)}
    rows = []
    for row in entry.rows:
        lines = [Line(m.label, looks[m.label], LEVELS, m.curve) for m in row.maps if m.curve is not None]
        curves = Markup()
        if row.random is not None:
            lines.append(Line(CHANCE, CHANCE, LEVELS, row.random))
            curves = chart(lines, across="removed fraction", up="probability")
        rows.append((row, _alike(row), curves))
    values = {"key": key_of(place), "entry": entry, "rows": rows, "token_class": token_class}
    return render("plots/report/templates/input.html", **values)


def _alike(row: Row) -> str:
    if row.agreement is None or row.mean_agreement is None:
        return ""
    labels, matrix = [shown.label for shown in row.maps], row.agreement
    found = {(i, j): matrix[i, j] for i in range(len(labels)) for j in range(i)}
    words = [f"mean {row.mean_agreement:.2f}"]
    if len(found) > 1:
        ends = {"most": max(found, key=found.__getitem__), "least": min(found, key=found.__getitem__)}
        words += [f"{word} {labels[j]} and {labels[i]} {found[i, j]:.2f}" for word, (i, j) in ends.items()]
    return "; ".join(words)


SCALES: dict[tuple[str, bool], tuple[str, str | tuple[str, ...], str, str]] = {
    ("image", True): ("Maps with a sign", SIGNED_MAP, "against", "for the class"),
    ("image", False): ("Maps without a sign", UNSIGNED_MAP, "least", "most"),
    ("text", True): ("Scores with a sign", (AGAINST, WHITE, FOR), "against", "for the class"),
    ("text", False): ("Scores without a sign", (WHITE, FOR), "none", "most"),
}
"""Kind and sign -> what it is called, its colour map or its colours, and the words at their ends."""


def _scales(report: Report) -> Markup:
    """Return the colour scales, for the kinds of map that there are."""
    shown = Markup('{}: {}<span class="scale" style="background:linear-gradient(90deg,{})"></span>{}.')
    words = []
    for sign in sorted({shown.signed for row in report.rows() for shown in row.maps}):
        what, colours, low, high = SCALES[report.kind, sign]
        if isinstance(colours, str):
            from matplotlib import colormaps  # not needed for text
            from matplotlib.colors import to_hex

            colours = [to_hex(colormaps[colours](step / 8)) for step in range(9)]
        words.append(shown.format(what, low, ",".join(colours), high))
    seen = " The first picture is what the model saw of the input." if report.kind == "image" else ""
    return small(Markup("{} Every map is scaled by its own largest value.{}").format(Markup(" ").join(words), seen))


CUT = 90
KINDS = {"image": ("picture", "pictures"), "text": ("text", "texts")}


def _summary(report: Report) -> Markup:
    several = len(report.methods) > 1
    head = ["input", "prediction", "probability", "explained", "its probability", "methods"]
    head += ["agreement"] * several + [f"area, {label}" for label in report.methods] * report.curves
    head += [f"area, {CHANCE}"] * report.curves
    found = [(key_of(place), entry, row) for place, entry in enumerate(report.entries) for row in entry.rows]
    rows, keys = [list(_line(report, *one)) for one in found], [key for key, _, _ in found]
    made = table("Summary of the inputs", head, rows, sortable=True, keys=keys)
    return render("plots/report/templates/summary.html", table=made, left_out=len(report.broken))


def _line(report: Report, key: str, entry: Entry, row: Row) -> Iterator[Content]:
    text = entry.text if len(entry.text) <= CUT else f"{entry.text[: CUT - 1].rstrip()}…"
    yield Markup('<a href="#{}">{}</a>{}').format(key, entry.name, f" {text}" if text else "")
    yield entry.answer
    yield percent(entry.probability)
    yield row.target
    yield percent(row.probability)
    tried = len(row.maps) + len(row.failed)
    yield Cell(f"{len(row.maps)} of {tried}" if row.failed else str(tried), len(row.maps))
    if len(report.methods) > 1:
        yield decimal(row.mean_agreement)
    if report.curves:
        areas = {shown.label: shown.area for shown in row.maps}
        yield from (decimal(areas.get(label)) for label in report.methods)
        yield decimal(None if row.random is None else area_under(row.random))


def _methods(report: Report) -> Markup:
    head = ["method", "made with", "maps", "sign"] + ["mean area"] * report.curves
    head += [f"below {CHANCE}"] * report.curves
    rows = []
    for label, options in report.methods.items():
        found = [(row, shown) for row in report.rows() for shown in row.maps if shown.label == label]
        pair = [(shown.area, area_under(row.random)) for row, shown in found if shown.area is not None and row.random]
        sign = "for and against" if found[0][1].signed else "how much"
        line: list[Content] = [label, options, Cell(str(len(found)), len(found)), sign]
        if report.curves:
            areas = [own for own, _ in pair if own is not None]
            below = sum(own < chance for own, chance in pair if own is not None)
            line += [decimal(float(np.mean(areas)) if areas else None), Cell(f"{below} of {len(pair)}", below)]
        rows.append(line)
    return table("Methods", head, rows)


def _curves(report: Report) -> Markup:
    """The mean over inputs, level by level."""
    lines = []
    for place, label in enumerate(report.methods):
        own = [shown.curve for row in report.rows() for shown in row.maps if shown.label == label and shown.curve]
        if own:
            lines.append(Line(label, look_of(place), LEVELS, np.mean(own, axis=0).tolist()))
    chance = [row.random for row in report.rows() if row.random]
    lines.append(Line(CHANCE, CHANCE, LEVELS, np.mean(chance, axis=0).tolist()))
    removed = "pixels are turned black" if report.kind == "image" else "tokens are deleted"
    said = (
        f"Mean over {len(chance)} explanations of the explained class's probability while the highest-scored "
        f"{removed}, from none to all. A curve that falls faster, with a smaller area, found what the model uses; "
        f"{CHANCE} is the mean of {RANDOM} random orders of each input."
    )
    return small(said) + chart(lines, across="removed fraction", up="probability")


def _agreement(report: Report) -> Markup:
    """The mean rank correlation of every two methods over the inputs that both explain."""
    labels = list(report.methods)
    total, count = np.zeros((len(labels),) * 2), np.zeros((len(labels),) * 2)
    for row in report.rows():
        if row.agreement is not None:
            where = np.ix_(*[[labels.index(shown.label) for shown in row.maps]] * 2)
            total[where] += row.agreement
            count[where] += 1
    rows = [
        [label, *(decimal(total[i, j] / count[i, j] if count[i, j] else None, tinted=True) for j in range(len(labels)))]
        for i, label in enumerate(labels)
    ]
    said = "Rank correlation (Spearman) of the scores of two methods, mean over the inputs: 1 the same order, 0 none."
    return small(said) + table("Agreement between methods", ["method", *labels], rows)


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
        title = f"{self.source}: {len(self.tables)} table{'' if len(self.tables) == 1 else 's'} of the bench"
        about = {"made": f"{self.made:%Y-%m-%d %H:%M} UTC", "with": f"vitrail {versions().get('vitrail', '')}"}
        rows, parts, drawn = [], [], set()
        for place, one in enumerate(self.tables, 1):
            examples = max((e.count for _, row in one.rows for e in row if e is not None), default=0)
            link = Markup('<a href="#table-{}">{}</a>').format(place, one.title)
            rows.append([link, *(Cell(str(n), n) for n in (len(one.rows), examples, len(one.columns)))])
            curves = {} if one.title in drawn else self.panels.get(one.title, {})  # those of a title are drawn once
            parts.append(Section(f"table-{place}", one.title, _measured_table(one) + _charts(curves) + _origin(one)))
            drawn.add(one.title)
        first = table("Tables", ["table", "methods", "examples", "measures"], rows, sortable=True)
        return report_page(title, about, [Section("summary", "Summary", first + small(LEGEND)), *parts], contents=False)

    def save(self, path: str | Path) -> Path:
        """Write the page; it needs no other file."""
        return write_bytes(as_path(path, "a report"), self.to_html().encode(errors="backslashreplace"))


def of_results(path: str | Path, *, seed: int = 0) -> Measured:
    """A report of what `vitrail bench run` measured; `seed` is that of the bootstrap, as in `vitrail bench table`."""
    made = tables(path, seed=seed)
    return Measured(Path(path).name, datetime.now(UTC), tuple(made), dict(panels_of(path)))


LEGEND = "Bold is the best of its column, ~ is not significantly different from it; in brackets 95 % intervals."


def _measured_table(one: Table) -> Markup:
    """A table with its notes."""
    head = ["method", "n", *(column.title for column in one.columns)]
    rows = [[name, Cell(count(row), int(count(row))), *map(_cell, row)] for name, row in one.rows]
    return table(one.title, head, rows, sortable=True) + Markup().join(small(note) for note in one.notes)


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
        lines = [Line(label, looks[label], c.places.astype(float).tolist(), c.mean.tolist()) for label, c in series]
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
