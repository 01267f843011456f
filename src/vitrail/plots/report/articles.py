"""One input of a report: what the model said, every method's map, curves and agreement."""

from collections.abc import Callable, Sequence
from functools import partial
from html import escape

from vitrail.plots.colours import GREEN, RED, SIGNED_MAP, UNSIGNED_MAP, WHITE
from vitrail.plots.document import image
from vitrail.plots.report.charts import CHANCE, Line, chart, look_of
from vitrail.plots.report.entries import Entry, Map, Report, Row
from vitrail.plots.report.look import token_class
from vitrail.plots.report.markup import Html, plain
from vitrail.plots.report.perturbing import LEVELS

STRONGEST = 3


def key_of(number: int) -> str:
    """The id of an input's part of the page."""
    return f"input-{number + 1}"


def article(report: Report, number: int) -> Html:
    """The part of the page of one input."""
    entry = report.entries[number]
    said = f"Predicted <strong>{plain(entry.answer)}</strong> {entry.probability:.1%}"
    rows = "".join(_row(report, entry, row) for row in entry.rows)
    link = f'<a href="#{key_of(number)}" aria-label="Link to {escape(entry.name)}">#</a>'
    return Html(f'<article id="{key_of(number)}"><h3>{plain(entry.name)} {link}</h3><div>{said}</div>{rows}</article>')


def _row(report: Report, entry: Entry, row: Row) -> str:
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
    curves = "" if row.random is None else _curves(report, row)
    return f'{head}<div class="row"><div>{"".join(parts)}{_alike(row)}</div>{curves}</div>'


def _figure(data: bytes, alt: str, caption: str) -> str:
    return f"<figure>{image(data, alt)}<figcaption>{plain(caption)}</figcaption></figure>"


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


def _curves(report: Report, row: Row) -> str:
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
    ("text", True): ("Scores with a sign", lambda: (RED, WHITE, GREEN), "against", "for the class"),
    ("text", False): ("Scores without a sign", lambda: (WHITE, GREEN), "none", "most"),
}
"""Kind and sign -> what it is called, its colours, and the words at their ends."""
