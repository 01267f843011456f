"""Each part of the page as HTML, from a case and its maps: plain functions, no server, no model."""

from collections.abc import Sequence
from html import escape

from vitrail.apps.web import charts, drawing, writing
from vitrail.apps.web.drawing import Look
from vitrail.apps.web.explaining import Found, Pending
from vitrail.apps.web.removing import Removal, picture_at
from vitrail.apps.web.rooms import Case
from vitrail.apps.web.words import LOOKED, percent, plain
from vitrail.attribution import Attribution
from vitrail.errors import OptionError
from vitrail.evaluate import metrics
from vitrail.plots.picture import Picture, as_picture

LAYERED = {"image": ("tokentm", "attcat", "cat"), "text": ("attcat", "cat", "tokentm")}
"""Methods that keep a map for each layer."""
HEADED = ("gradtoken", "grad_eclip_heads")
"""Methods that keep a map for each head."""


def answer(case: Case, target: int) -> str:
    """What the model says, in one line, and what is to be seen below."""
    best, likely = case.classes[0]
    said = f"The model says <strong>{escape(case.name(best))}</strong>, {percent(likely)} sure."
    asked = "" if target == best else f" Shown is what would speak for <strong>{escape(case.name(target))}</strong>."
    return f'<div class="answer"><p>{said}{asked}</p><p class="quiet">{LOOKED[case.opened.loaded.kind]}</p></div>'


def trouble(message: str) -> str:
    """Something that went wrong, in words; read aloud at once."""
    said = escape(message[:1].upper() + message[1:])
    return f'<div class="trouble" role="alert">{said}</div>' if message else ""


def picture_of(case: Case) -> Picture:
    """What the model saw."""
    return as_picture(case.sample.picture)


def maps(case: Case, target: int, found: Sequence[Found], look: Look, *, waiting: str = "still computing") -> str:
    """Every method side by side, and why one is missing.

    Args:
        waiting: what to say in place of a map that is still to come.
    """
    missing = "".join(f'<p class="quiet">{escape(one)}</p>' for one in found if isinstance(one, str))
    return MAPS[case.opened.loaded.kind](case, target, found, look, waiting) + missing


def _pictures(case: Case, target: int, found: Sequence[Found], look: Look, waiting: str) -> str:
    picture, name = picture_of(case), case.name(target)
    seen = drawing.image_tag(picture, "The picture as the model sees it")
    shown = [drawing.figure(seen, "picture", "as the model sees it")]
    for one in found:
        if isinstance(one, Attribution):
            shown.append(drawing.map_figure(one, picture, look, answer=name, words=plain(one.method)))
        elif isinstance(one, Pending):
            shown.append(drawing.blank(one.method, waiting))
    return drawing.gallery(shown) + "".join(drawing.legend(look, signed=signed) for signed in _signs(found))


def _sentences(case: Case, target: int, found: Sequence[Found], look: Look, waiting: str) -> str:
    shown = []
    for one in found:
        if isinstance(one, Attribution):
            shown.append(drawing.figure(writing.sentence(one), drawing.title(one), plain(one.method)))
        elif isinstance(one, Pending):
            shown.append(drawing.blank(one.method, waiting))
    bars = "".join(writing.LEGENDS[signed] for signed in _signs(found))
    return f'<div class="sentences">{"".join(shown)}</div>{bars}'


def _signs(found: Sequence[Found]) -> list[bool]:
    """Which legends are needed: for maps without a sign, with one, or both."""
    return sorted({one.signed for one in found if isinstance(one, Attribution)})


MAPS = {"image": _pictures, "text": _sentences}


def depth(attribution: Attribution) -> int:
    """How many layers it has maps of."""
    if attribution.layers is None:
        raise OptionError(
            f"{attribution.method} keeps no map for each layer. Choose {' or '.join(LAYERED[attribution.kind])}."
        )
    return attribution.layers.shape[1]


def layer(case: Case, attribution: Attribution, number: int, look: Look) -> str:
    """One layer's part; for text also all layers over the tokens."""
    count = depth(attribution)
    assert attribution.layers is not None
    number = min(max(number, 1), count)
    rows, name = attribution.layers[0], f"layer {number} of {count}"
    if attribution.kind == "image":
        signed = attribution.signed or bool((rows < 0).any())
        row = rows[number - 1 : number]
        one = drawing.part_figures(attribution, row, picture_of(case), look, [name], signed=signed)
        every = drawing.map_figure(attribution, picture_of(case), look, answer="this answer", words="all layers")
        return drawing.gallery([*one, every]) + drawing.legend(look, signed=signed)
    names = [f"layer {i + 1}" for i in range(count)]
    return writing.heat_map(attribution, rows, names, number - 1) + writing.LEGENDS[attribution.signed]


def heads(case: Case, attribution: Attribution, look: Look) -> str:
    """What every head of the last layer says by itself."""
    if attribution.heads is None:
        raise OptionError(f"{attribution.method} keeps no map for each head. Choose {' or '.join(HEADED)}.")
    rows = attribution.heads[0]
    names = [f"head {i + 1}" for i in range(len(rows))]
    if attribution.kind == "text":
        return writing.heat_map(attribution, rows, names) + writing.LEGENDS[True]
    signed = attribution.signed or bool((rows < 0).any())
    shown = drawing.part_figures(attribution, rows, picture_of(case), look, names, signed=signed)
    return drawing.gallery(shown, small=True) + drawing.legend(look, signed=signed)


def removal(case: Case, target: int, attribution: Attribution, found: Removal, percents: float) -> str:
    """What is left at this point of the slider, the probability there, and the curve."""
    level, name = found.at(percents), case.name(target)
    share = f"{found.levels[level]:.0%}".replace("%", "\u00a0%")
    if attribution.kind == "image":
        left = drawing.image_tag(picture_at(case, found, level), f"The picture with {share} of it removed")
    else:
        left = writing.sentence(attribution, gone=found.removed[level])
    now = float(found.by_map[level])
    said = (
        f'<p class="reading"><strong>{percent(now)}</strong> {escape(name)} '
        f'<span class="quiet">with {share} removed; {percent(float(found.by_chance[level]))} '
        "if removed at random</span></p>"
    )
    drawn = f"<div>{charts.curve(found, level, name)}</div>"
    return f'<div class="removal {attribution.kind}"><div>{left}{said}</div>{drawn}</div>'


def detail(case: Case, found: Sequence[Attribution], classes: tuple[int, int], look: Look) -> str:
    """Two classes, each by itself and the first rather than the second."""
    first, second = (case.name(index) for index in classes)
    titles = (first, second, f"{first} rather than {second}")
    words = ("by itself", "by itself", "what tells them apart")
    ends = f"against it (last: for {second})", f"for it (last: for {first})"
    if case.opened.loaded.kind == "text":
        shown = [drawing.figure(writing.sentence(one), *told) for one, *told in zip(found, titles, words, strict=True)]
        key = (
            f'<div class="legend"><span>{escape(ends[0])}</span><span class="bar signed"></span>'
            f"<span>{escape(ends[1])}</span></div>"
        )
        return f'<div class="sentences">{"".join(shown)}</div>{key}'
    shown = [
        drawing.map_figure(one, picture_of(case), look, answer=title, words=said, name=title)
        for one, title, said in zip(found, titles, words, strict=True)
    ]
    return drawing.gallery(shown) + drawing.legend(look, signed=True, words=ends)


def agreement(found: Sequence[Attribution | str]) -> str:
    """How alike the methods rank the parts of this input."""
    drawn = {one.method: one.shown for one in found if isinstance(one, Attribution)}
    if len(drawn) < 2:
        raise OptionError("agreement needs two methods at least: choose more ways to explain.")
    note = '<p class="quiet">1 means the same order of importance, 0 means none in common, -1 the reverse.</p>'
    return charts.matrix(metrics.agreement({name: one.detach().double().cpu() for name, one in drawn.items()})) + note
