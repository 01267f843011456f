"""The actions of a visitor, as plain generators: no browser and no server is needed to call them.

Each action takes what all visitors share, the session, the request as its type, and the job. It yields events for the
page, and names of queues (see `workers`).
"""

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import vitrail
from vitrail.apps.web import downloads, explaining, guard, payload, questions, removing, workers
from vitrail.apps.web.explaining import Case, Explorer, Steps, case_of, input_of, map_of, maps_of
from vitrail.apps.web.model_cache import OpenModel, running
from vitrail.apps.web.payload import case_json, class_json, map_json
from vitrail.apps.web.sessions import Session
from vitrail.apps.web.workers import Job
from vitrail.attribution import Attribution
from vitrail.errors import OptionError, suggest
from vitrail.evaluate import metrics
from vitrail.evaluate.metrics.fills import FILLS, filled

FIRST = "photo"
"""The model that is opened at the start. Others are opened when first asked for: each keeps 20 to 100 MB."""
FOUND = 40
"""Classes that one search lists."""


def start(explorer: Explorer) -> dict[str, Any]:
    """Return what the page needs once: models, methods and fills; open the model of the first example."""
    explorer.models.open(FIRST, "image")
    return {
        "models": {kind: explorer.models.names(kind) for kind in ("image", "text")},
        "any_model": explorer.models.any_model,
        "methods": {kind: payload.method_cards(kind) for kind in ("image", "text")},
        "chosen": payload.DEFAULT_METHODS,
        "fills": list(FILLS),
        "palettes": list(downloads.PALETTES),
        "forms": list(downloads.FORMS),
    }


def take_picture(explorer: Explorer, session: Session, data: bytes) -> Steps:
    """Check a picture and keep it."""
    yield workers.DECODE
    small, size = _checked(data, explorer)  # a function of its own, so that the decoded picture ends with it
    yield {"input": explorer.sessions.add_picture(session, data), "kind": "image", "thumbnail": small, "size": size}


def _checked(data: bytes, explorer: Explorer) -> tuple[str, list[int]]:
    picture = explaining.read_picture(data, explorer.limits)
    return explaining.thumbnail(picture), [picture.height, picture.width]


def take_text(explorer: Explorer, session: Session, text: str) -> Steps:
    """Check a text and keep it."""
    yield workers.QUICK
    plain = explaining.read_text(text, explorer.limits)
    yield {"input": explorer.sessions.add_text(session, plain), "kind": "text", "text": plain}


def explain(explorer: Explorer, session: Session, ask: guard.ExplainAsk, job: Job) -> Steps:
    """The answer of the model, then each map as it becomes known."""
    given = input_of(session, ask.input)
    methods = explaining.check_methods(ask.methods, given.kind, explorer.limits)
    opened: OpenModel = yield from explaining.opened_for(explorer, given, ask.model)
    if opened.asks:
        yield from questions.shown(explorer, given, opened)
        return
    case, target = yield from _situation(explorer, session, ask, job)
    said = {"card": payload.model_card(case.opened.loaded), "cautions": payload.cautions(case)}
    like = yield from _like(explorer, case, job)  # one recording for all classes
    yield {"case": {**case_json(case, target), **said, "tokens": payload.token_json(like), "grid": like.grid}}
    for step in maps_of(explorer, case, target, methods, ask.preset, job):
        if not isinstance(step, tuple):
            yield step
            continue
        method, found = step
        yield {"map": map_json(found)} if isinstance(found, Attribution) else {"missing": method, "why": found}
    yield {"done": True}


def _situation(explorer: Explorer, session: Session, ask: guard.Ask, job: Job) -> Steps:
    case: Case = yield from case_of(explorer, input_of(session, ask.input), ask.model, job)
    return case, case.target(ask.target)


def _like(explorer: Explorer, case: Case, job: Job) -> Steps:
    """Any map of this input, for its grid and its tokens: the first quick method that the model allows.

    The class plays no part in them. Maps of the most probable one are there once the input was explained.
    """
    quick = [name for name in explaining.offered(case.kind) if explaining.is_quick(name)]
    reason = ""
    for step in maps_of(explorer, case, case.best, quick, "recommended", job):
        if not isinstance(step, tuple):
            yield step
        elif isinstance(step[1], Attribution):
            return step[1]
        else:
            reason = reason or step[1]
    raise OptionError(f"this model cannot be explained: {reason}")


def _drawn(explorer: Explorer, case: Case, target: int, methods: list[str], preset: str, job: Job) -> Steps:
    """The maps by method, as the generator's return value; methods that give none are left out."""
    found = {}
    for step in maps_of(explorer, case, target, methods, preset, job):
        if not isinstance(step, tuple):
            yield step
        elif isinstance(step[1], Attribution):
            found[step[0]] = step[1]
    return found


def remove(explorer: Explorer, session: Session, ask: guard.RemoveAsk, job: Job) -> Steps:
    """The probability while parts are removed in the order of a map, at random and from the centre."""
    case, target = yield from _situation(explorer, session, ask, job)
    removing.check_fill(ask.fill, case.kind)
    found = yield from map_of(explorer, case, target, ask.method, ask.preset, job)
    yield workers.SLOW
    fill = removing.fill_of(explorer, case, target, ask.fill, job)
    random, centre = removing.baselines(explorer, case, target, found, fill, job)
    made = removing.removal(explorer, case, target, found, fill, job)
    yield {
        "levels": list(removing.LEVELS),
        "curve": made.curve.tolist(),
        "random": random.tolist(),
        "centre": centre.tolist(),
        "ends": removing.ends_of(explorer, case, target, job),
        "fill": fill,
        "advantage": removing.advantage(made.curve, random),
        "removed_at": payload.packed(made.removed_at),
        "shape": made.shape,
        "background": _background(case, fill) if fill else None,
    }


def fills(explorer: Explorer, session: Session, ask: guard.MethodAsk, job: Job) -> Steps:
    """The probability while parts are removed in the order of a map, with every fill; text has none."""
    case, target = yield from _situation(explorer, session, ask, job)
    if case.kind == "text":
        raise OptionError("tokens of a text are cut out, so there are no fills to compare.")
    found = yield from map_of(explorer, case, target, ask.method, ask.preset, job)
    for fill in FILLS:
        yield workers.SLOW
        curve = removing.removal(explorer, case, target, found, fill, job).curve
        yield {"fill": fill, "levels": list(removing.LEVELS), "curve": curve.tolist()}


def _background(case: Case, fill: str) -> str:
    """The picture with everything removed."""
    from PIL import Image

    whole = filled(removing.pixels_of(case), fill)[0].permute(1, 2, 0)
    return explaining.data_url(Image.fromarray((whole * 255).round().clamp(0, 255).byte().numpy()))


def what_if(explorer: Explorer, session: Session, ask: guard.WhatIfAsk, job: Job) -> Steps:
    """The probabilities without some patches or tokens, beside those of the whole input."""
    case, target = yield from _situation(explorer, session, ask, job)
    removing.check_fill(ask.fill, case.kind)
    yield workers.SLOW
    fill = removing.fill_of(explorer, case, target, ask.fill, job)
    yield workers.QUICK
    probs = removing.without(case, ask.cells, fill, job)
    top = dict.fromkeys([target, *case.probs.topk(min(3, len(probs))).indices.tolist(), int(probs.argmax())])
    yield {
        "before": [class_json(case, i) for i in top],
        "after": [class_json(case, i, probs=probs) for i in top],
        "fill": fill,
        "background": _background(case, fill) if fill else None,
    }


def contrast(explorer: Explorer, session: Session, ask: guard.ContrastAsk, job: Job) -> Steps:
    """The map of evidence for one class against another."""
    case, first = yield from _situation(explorer, session, ask, job)
    second = case.target(ask.other)
    if first == second:
        raise OptionError("both classes are the same: choose two.")
    key = ("contrast", case.key, first, second)
    yield workers.QUICK
    found = explorer.results.get(key)
    if found is None:
        with running(case.opened, job, "comparing two classes"):
            made = vitrail.detail(case.opened.loaded.model, case.sample.inputs, first, second)
        found = explorer.results.put(key, made)
    yield {"map": map_json(found), "first": class_json(case, first), "second": class_json(case, second)}


def layers(explorer: Explorer, session: Session, ask: guard.MethodAsk, job: Job) -> Steps:
    """A method's own map for each layer and each head."""
    case, target = yield from _situation(explorer, session, ask, job)
    found = yield from map_of(explorer, case, target, ask.method, ask.preset, job)
    yield {"method": ask.method, "signed": found.signed, **payload.parts_json(found)}


def attention(explorer: Explorer, session: Session, ask: guard.AttentionAsk, job: Job) -> Steps:
    """Attention of every layer and head, from one token."""
    case, target = yield from _situation(explorer, session, ask, job)
    like = yield from _like(explorer, case, job)
    yield workers.SLOW
    yield payload.attention_json(payload.attention_of(explorer, case, target, job), ask.token, like)


def answer(explorer: Explorer, session: Session, ask: guard.AnswerAsk, job: Job) -> Steps:
    """Yield the answer of a language model after the text or about a picture, and what each word of it rests on."""
    given = input_of(session, ask.input)
    opened: OpenModel = yield from explaining.opened_for(explorer, given, ask.model)
    if opened.asks:
        yield from questions.answered(explorer, given, opened, ask, job)
        return
    case, _ = yield from _situation(explorer, session, ask, job)
    yield workers.SLOW
    yield questions.answer_json(questions.answer_of(explorer, case, given.text, ask.length, job))


def compare(explorer: Explorer, session: Session, ask: guard.CompareAsk, job: Job) -> Steps:
    """The rank correlation of the maps, then how much faster than in random order the probability falls for each."""
    case, target = yield from _situation(explorer, session, ask, job)
    methods = explaining.check_methods(ask.methods, case.kind, explorer.limits)
    removing.check_fill(ask.fill, case.kind)
    found = yield from _drawn(explorer, case, target, methods, ask.preset, job)
    if not found:
        raise OptionError("there is no map to compare: choose other methods.")
    maps = {name: one.scores.detach().cpu() for name, one in found.items()}
    yield {"names": list(found), "agreement": metrics.agreement(maps).matrix.tolist()}
    yield workers.SLOW
    fill = removing.fill_of(explorer, case, target, ask.fill, job)
    yield {"ends": removing.ends_of(explorer, case, target, job), "start": float(case.probs[target]), "fill": fill}
    yield workers.SLOW
    random, _ = removing.baselines(explorer, case, target, next(iter(found.values())), fill, job)
    for name, one in found.items():
        yield workers.SLOW
        curve = removing.removal(explorer, case, target, one, fill, job).curve
        yield {"trust": name, **removing.advantage(curve, random)}
    yield {"done": True}


def classes(explorer: Explorer, session: Session, ask: guard.ClassesAsk, job: Job) -> Steps:
    """Classes whose name holds the words, the most probable first."""
    case, _ = yield from _situation(explorer, session, ask, job)
    yield workers.QUICK
    words = ask.words.casefold().split()
    names = case.opened.loaded.class_names or ()
    order = case.probs.argsort(descending=True).tolist()
    if words and not names:
        order = [int(ask.words)] if ask.words.isdecimal() and int(ask.words) < len(order) else order[: FOUND * 25]
    fitting = (i for i in order if all(w in f"{case.name(i)} {names[i] if names else i}".casefold() for w in words))
    yield {"found": [class_json(case, i) for i, _ in zip(fitting, range(FOUND), strict=False)]}


def download(explorer: Explorer, session: Session, ask: guard.DownloadAsk, job: Job) -> Steps:
    """All maps as a file."""
    if ask.form not in downloads.FORMS:
        raise OptionError(f"there is no form {ask.form!r}. {suggest(ask.form, downloads.FORMS)}")
    case, target = yield from _situation(explorer, session, ask, job)
    methods = explaining.check_methods(ask.methods, case.kind, explorer.limits)
    found = yield from _drawn(explorer, case, target, methods, ask.preset, job)
    yield workers.DRAW
    if not found:
        raise OptionError("there is no map to download: choose another method.")
    kind, make = downloads.FORMS[ask.form]
    data = make(ask.form, case, target, [found[name] for name in methods if name in found], ask.palette)
    yield {"file": f"vitrail.{ask.form}", "type": kind, "base64": b64encode(data).decode()}


ACTIONS: dict[str, Callable[[Explorer, Session, Any, Job], Steps]] = {
    "explain": explain,
    "remove": remove,
    "fills": fills,
    "whatif": what_if,
    "contrast": contrast,
    "layers": layers,
    "attention": attention,
    "answer": answer,
    "compare": compare,
    "classes": classes,
    "download": download,
}
