"""Each part of the page as HTML, from a case and its maps: plain functions, no server, no model."""

from collections.abc import Sequence
from html import escape

from vitrail import metrics
from vitrail.app import charts, drawing, writing
from vitrail.app.drawing import Look
from vitrail.app.removing import Removal, picture_at
from vitrail.app.rooms import Case
from vitrail.app.words import LOOKED, percent, plain
from vitrail.attribution import Attribution
from vitrail.errors import OptionError
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
    return f'<div class="trouble" role="alert">{escape(message)}</div>' if message else ""


def picture_of(case: Case) -> Picture:
    """What the model saw."""
    return as_picture(case.sample.picture)


def maps(case: Case, target: int, found: Sequence[Attribution | str], look: Look) -> str:
    """Every method side by side, and why one is missing."""
    drawn = [one for one in found if isinstance(one, Attribution)]
    missing = "".join(f'<p class="quiet">{escape(one)}</p>' for one in found if isinstance(one, str))
    return MAPS[case.opened.loaded.kind](case, target, drawn, look) + missing


def _pictures(case: Case, target: int, found: Sequence[Attribution], look: Look) -> str:
    picture, name = picture_of(case), case.name(target)
    shown = [
        drawing.figure(
            drawing.image_tag(picture, "The picture as the model sees it"), "picture", "as the model sees it"
        )
    ]
    shown += [drawing.map_figure(one, picture, look, answer=name, words=plain(one.method)) for one in found]
    bars = "".join(drawing.legend(look, signed=signed) for signed in sorted({one.signed for one in found}))
    return drawing.gallery(shown) + bars


def _sentences(case: Case, target: int, found: Sequence[Attribution], look: Look) -> str:
    shown = [drawing.figure(writing.sentence(one), drawing.title(one), plain(one.method)) for one in found]
    bars = "".join(writing.LEGENDS[signed] for signed in sorted({one.signed for one in found}))
    return f'<div class="sentences">{"".join(shown)}</div>{bars}'


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
        row = rows[number - 1 : number]
        one = drawing.part_figures(attribution, row, picture_of(case), look, [name])
        every = drawing.map_figure(attribution, picture_of(case), look, answer="this answer", words="all layers")
        return drawing.gallery([*one, every])
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
    return drawing.gallery(drawing.part_figures(attribution, rows, picture_of(case), look, names), small=True)


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


def detail(case: Case, attribution: Attribution, first: int, second: int, look: Look) -> str:
    """What speaks for one class rather than another."""
    names = case.name(first), case.name(second)
    words = f"for {names[0]}", f"for {names[1]}"
    if attribution.kind == "text":
        key = (
            f'<div class="legend"><span>{escape(words[1])}</span><span class="bar signed"></span>'
            f"<span>{escape(words[0])}</span></div>"
        )
        return writing.sentence(attribution) + key
    one = drawing.map_figure(
        attribution,
        picture_of(case),
        look,
        answer=f"{names[0]} rather than {names[1]}",
        words=" rather than ".join(names),
    )
    return drawing.gallery([one]) + drawing.legend(look, signed=True, words=(words[1], words[0]))


def agreement(found: Sequence[Attribution | str]) -> str:
    """How alike the methods rank the parts of this input."""
    drawn = {one.method: one.shown for one in found if isinstance(one, Attribution)}
    if len(drawn) < 2:
        raise OptionError("agreement needs two methods at least: choose more ways to explain.")
    note = '<p class="quiet">1 means the same order of importance, 0 means none in common, -1 the reverse.</p>'
    return charts.matrix(metrics.agreement({name: one.detach().double().cpu() for name, one in drawn.items()})) + note
