"""A visitor's input as a case, and its maps: every quick method from one recording, slow ones when asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import vitrail
from vitrail import targets
from vitrail.apps.web.jobs import Tell, running, silent
from vitrail.apps.web.limits import Limits, read_picture, read_text
from vitrail.apps.web.rooms import Case, Given, MapKey, Room
from vitrail.apps.web.shelf import Opened, Shelf
from vitrail.attribution import Attribution
from vitrail.errors import OptionError, VitrailError
from vitrail.methods import METHODS
from vitrail.models.loading import Sample
from vitrail.relevance import Walk
from vitrail.tools.looking import look

TOP = 6
"""Classes offered."""
PRESETS = ("recommended", "paper", "official")
CHOSEN = {"image": ("consensus", "gae", "complete_gradient"), "text": ("attcat", "consensus", "gae")}
"""Shown at first."""


def offered(kind: str) -> list[str]:
    """The methods for this kind of input, the quick ones first."""
    fitting = [name for name, entry in METHODS.items() if kind in entry.inputs and entry.models is None]
    return sorted(fitting, key=lambda name: not is_quick(name))


@cache
def is_quick(name: str) -> bool:
    """Whether it only walks over layers that were recorded once for all such methods."""
    entry = METHODS[name]
    return isinstance(entry.build(**entry.resolve("recommended", {}, entry.inputs[0])), Walk)


def preset_of(method: str, preset: str) -> str:
    """The preset if the method has it, else the recommended one."""
    if preset not in PRESETS:
        raise OptionError(f"there is no preset {preset!r}. Known: {', '.join(PRESETS)}.")
    return preset if preset in METHODS[method].presets else "recommended"


def case_of(room: Room, shelf: Shelf, limits: Limits, kind: str, model: str) -> Case:
    """The visitor's picture or text before a model, looked at once."""
    given, opened = room.given[kind], shelf.open(model, kind)
    key = (given.key, model)
    found = room.cases.get(key)
    return found if found is not None else room.cases.put(key, _look(key, given, opened, limits))


def _look(key: tuple[str, str], given: Given, opened: Opened, limits: Limits) -> Case:
    sample = _sample(given, opened, limits)
    with opened.lock:
        likely = look(opened.loaded.model, sample.inputs).logits[0].softmax(dim=0)
    best = likely.topk(min(TOP, len(likely)))
    return Case(key, opened, sample, tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)))


def _sample(given: Given, opened: Opened, limits: Limits) -> Sample:
    if isinstance(given.data, bytes):
        return opened.loaded.image(read_picture(given.data, limits))
    return opened.loaded.text(read_text(given.data, limits))


def check_methods(methods: Sequence[str], kind: str, limits: Limits) -> list[str]:
    """The methods that are asked for, each once."""
    wanted, known = list(dict.fromkeys(methods)), offered(kind)
    wrong = [name for name in wanted if name not in known]
    if wrong:
        raise OptionError(f"there is no method {wrong[0]!r} for {kind} inputs.")
    if not wanted:
        raise OptionError("no method is chosen: choose at least one way to explain.")
    if len(wanted) > limits.methods:
        raise OptionError(f"{len(wanted)} methods are chosen, but at most {limits.methods} are shown at once.")
    return wanted


@dataclass(frozen=True)
class Pending:
    """A map that is still to come."""

    method: str


Found = Attribution | str | Pending
"""A map, why there is none, or that it is still to come."""


def explain(
    room: Room, case: Case, target: int, methods: Sequence[str], preset: str, tell: Tell = silent
) -> Iterator[list[Found]]:
    """The maps that are known so far, again after each slow one; at last all."""
    keys = [key_of(case, target, name, preset) for name in methods]
    if any(key not in room.maps and is_quick(key[2]) for key in keys):
        _record(room, case, target, preset, tell)
    for key in keys:
        if key not in room.maps:
            yield known(room, keys)
            _compute(room, case, target, key, tell)
    yield known(room, keys)


def _compute(room: Room, case: Case, target: int, key: MapKey, tell: Tell) -> None:
    """One slow map, unless another event of the same visitor has made it meanwhile."""
    twin = case.opened.twin
    with running(twin, room, tell, f"computing {key[2]}", twin.passes.get(key[2:])) as watch:
        if key not in room.maps:
            found = room.maps.put(key, _one(case, twin, target, key))
            if isinstance(found, Attribution):
                twin.passes[key[2:]] = watch.passes


def key_of(case: Case, target: int, method: str, preset: str) -> MapKey:
    """Under what a map is kept."""
    return (case.key, target, method, preset_of(method, preset))


def known(room: Room, keys: Sequence[MapKey]) -> list[Found]:
    """The maps of these keys that are there, and which are not."""
    return [Pending(key[2]) if (found := room.maps.get(key)) is None else found for key in keys]


def _record(room: Room, case: Case, target: int, preset: str, tell: Tell) -> None:
    """Every quick method at once: they share the forward pass, and a backward pass for each scalar."""
    quick = [name for name in offered(case.opened.loaded.kind) if is_quick(name)]
    keys = [key for name in quick if (key := key_of(case, target, name, preset)) not in room.maps]
    specs = [(method, {"preset": own}) for _, _, method, own in keys]
    with running(case.opened, room, tell, "looking inside the model"):
        try:
            found = vitrail.compare(case.opened.loaded.model, case.sample.inputs, specs, targets.logit(target))
        except VitrailError:  # one of them does not fit this model: find out which
            found = [_one(case, case.opened, target, key) for key in keys]
    for key, one in zip(keys, found, strict=True):
        room.maps.put(key, one)


def _one(case: Case, opened: Opened, target: int, key: MapKey) -> Attribution | str:
    try:
        return vitrail.explain(opened.loaded.model, case.sample.inputs, key[2], targets.logit(target), preset=key[3])
    except VitrailError as error:
        return f"{key[2]} was left out: {error}"


def map_of(room: Room, case: Case, target: int, method: str, preset: str, tell: Tell = silent) -> Attribution:
    """One map, computed if it is not known."""
    (found,) = list(explain(room, case, target, [method], preset, tell))[-1]
    if not isinstance(found, Attribution):
        raise OptionError(str(found))
    return found
