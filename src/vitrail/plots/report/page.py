"""The page of a report of inputs: summary, methods, curves, agreement, and a part for each input."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape

import numpy as np

from vitrail.plots.canvas import AGAINST, FOR, SIGNED_MAP, UNSIGNED_MAP, WHITE
from vitrail.plots.page import document, embedded
from vitrail.plots.report.entries import Entry, Map, Report, Row, area_under
from vitrail.plots.report.explaining import LEVELS, RANDOM
from vitrail.plots.report.markup import (
    CHANCE,
    Cell,
    Content,
    Html,
    Line,
    chart,
    contents,
    decimal,
    look_of,
    pairs,
    percent,
    plain,
    script,
    section,
    style,
    table,
    token_class,
)

STRONGEST = 3


def key_of(number: int) -> str:
    """The id of an input's part of the page."""
    return f"input-{number + 1}"


def article(report: Report, number: int) -> Html:
    """The part of the page of one input."""
    entry = report.entries[number]
    said = f"Predicted <strong>{plain(entry.answer)}</strong> {entry.probability:.1%}"
    rows = "".join(_target_row(report, entry, row) for row in entry.rows)
    link = f'<a href="#{key_of(number)}" aria-label="Link to {escape(entry.name)}">#</a>'
    return Html(f'<article id="{key_of(number)}"><h3>{plain(entry.name)} {link}</h3><div>{said}</div>{rows}</article>')


def _target_row(report: Report, entry: Entry, row: Row) -> str:
    likely = "" if row.probability is None else f" {row.probability:.1%}"
    named = row.target != entry.answer or len(entry.rows) > 1
    head = f"<h4>Explained: {plain(row.target)}{likely}</h4>" if named else ""
    parts: list[str] = []
    if entry.picture:
        seen = _figure(entry.picture, f"{entry.name} as the model saw it", "input")
        aim = f"for {row.target} over {entry.name}"
        maps = (_figure(shown.picture, f"Map of {shown.label} {aim}", shown.label) for shown in row.maps)
        parts.append(f'<div class="maps">{seen}{"".join(maps)}</div>')
    else:
        parts += [_sentence(shown) for shown in row.maps]
    parts += [f'<p class="small">No map of {plain(name)}: {plain(why)}</p>' for name, why in row.failed.items()]
    if row.no_curve:
        parts.append(f'<p class="small">No curves: {plain(row.no_curve)}</p>')
    curves = "" if row.random is None else _curves_of(report, row)
    return f'{head}<div class="row"><div>{"".join(parts)}{_alike(row)}</div>{curves}</div>'


def _figure(data: bytes, alt: str, caption: str) -> str:
    button = f'<button type="button" class="zoom">{embedded(data, alt)}</button>'
    return f"<figure>{button}<figcaption>{plain(caption)}</figcaption></figure>"


def _sentence(shown: Map) -> str:
    """The tokens shaded, and the strongest in words for those who do not see the shades."""
    words = []
    for number, piece in enumerate(shown.pieces):
        kind = "o" if piece.left_out else token_class(piece.score)
        note = "the prediction is read here; its own score is left out" if piece.left_out else f"{piece.value:+.3g}"
        mark = f' class="{kind}"' if kind else ""
        space = "" if number == 0 or piece.glued else " "
        words.append(f'{space}<span{mark} title="{escape(note)}">{plain(piece.text)}</span>')
    ranked = sorted((p for p in shown.pieces if not p.left_out), key=lambda piece: -abs(piece.score))[:STRONGEST]
    told = ", ".join(f"{plain(piece.text)} {piece.value:+.2g}" for piece in ranked)
    return (
        f'<div class="text"><b>{plain(shown.label)}</b><p>{"".join(words)}</p>'
        f'<div class="small">strongest: {told}</div></div>'
    )


def _curves_of(report: Report, row: Row) -> str:
    assert row.random is not None
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
    told = [f"mean {row.mean_agreement:.2f}"]
    if len(found) > 1:
        told += [
            f"{word} {labels[j]} and {labels[i]} {found[i, j]:.2f}"
            for word, (i, j) in (("most", most), ("least", least))
        ]
    return f'<p class="small">Agreement: {plain("; ".join(told))}</p>'


def scales(report: Report) -> str:
    """What the colours mean, for the kinds of map that there are."""
    signs = sorted({shown.signed for row in report.rows() for shown in row.maps})
    told = " ".join(_scale(*SCALES[report.kind, sign]) for sign in signs)
    seen = " The first picture is what the model saw of the input." if report.kind == "image" else ""
    return f'<p class="small">{told} Every map is scaled by its own largest value.{seen}</p>'


def _scale(what: str, colours: Callable[[], Sequence[str]], low: str, high: str) -> str:
    look = f"background:linear-gradient(90deg,{','.join(colours())})"
    return f'{what}: {low}<span class="scale" style="{look}"></span>{high}.'


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
    return document(title, body, style=style(), script=script())


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
