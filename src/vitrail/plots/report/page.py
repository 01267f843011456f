"""The page of a report of inputs."""

from collections.abc import Iterator

import numpy as np

from vitrail.plots.document import document
from vitrail.plots.report.articles import article, key_of, scales
from vitrail.plots.report.charts import CHANCE, Line, chart, look_of
from vitrail.plots.report.entries import Entry, Report, Row, area_under
from vitrail.plots.report.look import SCRIPT, style
from vitrail.plots.report.markup import Cell, Content, Html, contents, decimal, pairs, percent, plain, section, table
from vitrail.plots.report.perturbing import LEVELS, RANDOM

CUT = 90
KINDS = {"image": ("picture", "pictures"), "text": ("text", "texts")}
CONTROLS = """<p id="controls" hidden><label>Show only <input type="search" placeholder="a name or class"></label>
<output></output></p>"""


def to_page(report: Report) -> str:
    """The whole document."""
    one, many = KINDS[report.kind]
    counted = f"{len(report.entries)} {one if len(report.entries) == 1 else many}"
    methods = f"{len(report.methods)} method{'' if len(report.methods) == 1 else 's'}"
    title = f"{report.source}: {counted} explained by {methods}"
    about = {"made": f"{report.made:%Y-%m-%d %H:%M} UTC", **report.about}
    parts: dict[str, tuple[str, str]] = {
        "summary": ("Summary", _summary(report)),
        "methods": ("Methods", _methods(report)),
    }
    if report.curves:
        parts["curves"] = ("Curves", _curves(report))
    if any(row.agreement is not None for row in report.rows()):
        parts["agreement"] = ("Agreement between methods", _agreement(report))
    parts["inputs"] = (
        many.capitalize(),
        scales(report) + "".join(article(report, i) for i in range(len(report.entries))),
    )
    if report.broken:
        broken = table("Left out", ["input", "reason"], list(report.broken.items()))
        parts["broken"] = (f"Left out: {len(report.broken)}", broken)
    inside = "".join(section(name, head, body) for name, (head, body) in parts.items())
    links = contents({name: head for name, (head, _) in parts.items()})
    body = f"<main><header><h1>{plain(title)}</h1>{pairs(about)}{links}</header>{inside}</main>"
    return document(title, body, style=style(), script=SCRIPT)


def _summary(report: Report) -> Html:
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
    left_out = f'<p class="small"><a href="#broken">{len(report.broken)} left out.</a></p>' if report.broken else ""
    return Html(f"{CONTROLS}{made}{left_out}")


def _line(report: Report, number: int, entry: Entry, row: Row) -> Iterator[Content]:
    yield Html(f'<a href="#{key_of(number)}">{plain(entry.name)}</a>{_cut(entry.text)}')
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
    return f" {plain(short)}" if text else ""


def _methods(report: Report) -> Html:
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


def _curves(report: Report) -> Html:
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
    return Html(f'<p class="small">{said}</p>{chart(lines, across="removed fraction", up="probability")}')


def _agreement(report: Report) -> Html:
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
    return Html(f'<p class="small">{said}</p>{table("Agreement between methods", ["method", *labels], rows)}')
