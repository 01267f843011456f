"""The report of inputs: the model's answer to each, every method's map, and the page that shows them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float
from markupsafe import Markup

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

Curve = tuple[float, ...]
"""The probability of the explained class while 0, 10, ..., 100 % are removed, the highest scores first."""
LEVELS = tuple(k / 10 for k in range(11))
RANDOM = 3
"""Random orders whose mean is shown beside the methods."""


@dataclass(frozen=True)
class Map:
    """What one method shows of one input.

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
        """Whether any map has a curve."""
        return any(shown.curve is not None for row in self.rows() for shown in row.maps)

    def rows(self) -> Iterator[Row]:
        """Every target of every input."""
        return (row for entry in self.entries for row in entry.rows)

    def to_html(self) -> str:
        """The page."""
        return to_page(self)

    def save(self, path: str | Path) -> Path:
        """Write the page; it needs no other file."""
        from vitrail.storage import write_bytes

        return write_bytes(Path(path), self.to_html().encode())


def area_under(curve: Curve) -> float:
    """The area under a curve, from 0 to 1."""
    return float(area(np.array(curve), rule="unit")) / 100


def key_of(number: int) -> str:
    """The id of an input's part of the page."""
    return f"input-{number + 1}"


def article(report: Report, number: int) -> Markup:
    """The part of the page of one input."""
    entry = report.entries[number]
    rows = [(row, _alike(row), _curves_of(report, row)) for row in entry.rows]
    values = {"key": key_of(number), "entry": entry, "rows": rows, "token_class": token_class}
    return render("plots/report/templates/input.html", **values)


def _curves_of(report: Report, row: Row) -> Markup:
    if row.random is None:
        return Markup()
    numbers = {label: number for number, label in enumerate(report.methods)}
    lines = [Line(m.label, look_of(numbers[m.label]), LEVELS, m.curve) for m in row.maps if m.curve is not None]
    lines.append(Line(CHANCE, CHANCE, LEVELS, row.random))
    return chart(lines, across="removed fraction", up="probability")


def _alike(row: Row) -> str:
    if row.agreement is None or row.mean_agreement is None:
        return ""
    labels, matrix = [shown.label for shown in row.maps], row.agreement
    found = {(i, j): matrix[i, j] for i in range(len(labels)) for j in range(i)}
    least, most = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
    words = [f"mean {row.mean_agreement:.2f}"]
    if len(found) > 1:
        words += [
            f"{word} {labels[j]} and {labels[i]} {found[i, j]:.2f}"
            for word, (i, j) in (("most", most), ("least", least))
        ]
    return "; ".join(words)


def scales(report: Report) -> Markup:
    """What the colours mean, for the kinds of map that there are."""
    signs = sorted({shown.signed for row in report.rows() for shown in row.maps})
    words = Markup(" ").join(_scale(*SCALES[report.kind, sign]) for sign in signs)
    seen = " The first picture is what the model saw of the input." if report.kind == "image" else ""
    return small(Markup("{} Every map is scaled by its own largest value.{}").format(words, seen))


def _scale(what: str, colours: Callable[[], Sequence[str]], low: str, high: str) -> Markup:
    shown = Markup('{}: {}<span class="scale" style="background:linear-gradient(90deg,{})"></span>{}.')
    return shown.format(what, low, ",".join(colours()), high)


def _stops(name: str) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps[name](step / 8)) for step in range(9)]


SCALES: dict[tuple[str, bool], tuple[str, Callable[[], Sequence[str]], str, str]] = {
    ("image", True): ("Maps with a sign", partial(_stops, SIGNED_MAP), "against", "for the class"),
    ("image", False): ("Maps without a sign", partial(_stops, UNSIGNED_MAP), "least", "most"),
    ("text", True): ("Scores with a sign", lambda: (AGAINST, WHITE, FOR), "against", "for the class"),
    ("text", False): ("Scores without a sign", lambda: (WHITE, FOR), "none", "most"),
}
"""Kind and sign -> what it is called, its colours, and the words at their ends."""


CUT = 90
KINDS = {"image": ("picture", "pictures"), "text": ("text", "texts")}


def to_page(report: Report) -> str:
    """The whole document."""
    one, many = KINDS[report.kind]
    counted = f"{len(report.entries)} {one if len(report.entries) == 1 else many}"
    methods = f"{len(report.methods)} method{'' if len(report.methods) == 1 else 's'}"
    title = f"{report.source}: {counted} explained by {methods}"
    about = {"made": f"{report.made:%Y-%m-%d %H:%M} UTC", **report.about}
    parts = [
        Section("summary", "Summary", _summary(report)),
        Section("methods", "Methods", _methods(report)),
    ]
    if report.curves:
        parts.append(Section("curves", "Curves", _curves(report)))
    if any(row.agreement is not None for row in report.rows()):
        parts.append(Section("agreement", "Agreement between methods", _agreement(report)))
    inputs = Markup().join(article(report, i) for i in range(len(report.entries)))
    parts.append(Section("inputs", many.capitalize(), scales(report) + inputs))
    if report.broken:
        broken = table("Left out", ["input", "reason"], list(report.broken.items()))
        parts.append(Section("broken", f"Left out: {len(report.broken)}", broken))
    return report_page(title, about, parts, contents=True)


def _summary(report: Report) -> Markup:
    several = len(report.methods) > 1
    head = ["input", "prediction", "probability", "explained", "its probability", "methods"]
    head += ["agreement"] * several + [f"area, {label}" for label in report.methods] * report.curves
    head += [f"area, {CHANCE}"] * report.curves
    rows, keys = [], []
    for number, entry in enumerate(report.entries):
        for row in entry.rows:
            rows.append(list(_line(report, number, entry, row)))
            keys.append(key_of(number))
    made = table("Summary of the inputs", head, rows, sortable=True, keys=keys)
    return render("plots/report/templates/summary.html", table=made, left_out=len(report.broken))


def _line(report: Report, number: int, entry: Entry, row: Row) -> Iterator[Content]:
    yield Markup('<a href="#{}">{}</a>{}').format(key_of(number), entry.name, _cut(entry.text))
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


def _cut(text: str) -> str:
    short = text if len(text) <= CUT else f"{text[: CUT - 1].rstrip()}…"
    return f" {short}" if text else ""


def _methods(report: Report) -> Markup:
    head = ["method", "made with", "maps", "sign"] + ["mean area"] * report.curves
    head += [f"below {CHANCE}"] * report.curves
    rows = []
    for label, options in report.methods.items():
        found = [(row, shown) for row in report.rows() for shown in row.maps if shown.label == label]
        pair = [(shown.area, area_under(row.random)) for row, shown in found if shown.area is not None and row.random]
        line: list[Content] = [
            label,
            options,
            Cell(str(len(found)), len(found)),
            "for and against" if found[0][1].signed else "how much",
        ]
        if report.curves:
            areas = [own for own, _ in pair if own is not None]
            below = sum(own < chance for own, chance in pair if own is not None)
            line += [decimal(float(np.mean(areas)) if areas else None), Cell(f"{below} of {len(pair)}", below)]
        rows.append(line)
    return table("Methods", head, rows)


def _curves(report: Report) -> Markup:
    """The mean over inputs, level by level."""
    lines = []
    for number, label in enumerate(report.methods):
        own = [shown.curve for row in report.rows() for shown in row.maps if shown.label == label and shown.curve]
        if own:
            lines.append(Line(label, look_of(number), LEVELS, np.mean(own, axis=0).tolist()))
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
