"""What a visitor can do, as plain functions: no browser and no Gradio is needed to call them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import vitrail
from vitrail.apps.web import downloads, explaining, removing, views
from vitrail.apps.web.drawing import Look
from vitrail.apps.web.jobs import Tell, running, silent
from vitrail.apps.web.limits import Limits, read_picture, read_text
from vitrail.apps.web.rooms import Case, Given, Room, Rooms
from vitrail.apps.web.shelf import Shelf
from vitrail.apps.web.words import percent
from vitrail.attribution import Attribution
from vitrail.errors import InputError


@dataclass(frozen=True)
class House:
    """What all visitors share: the models, the limits, and a room for each of them."""

    shelf: Shelf
    rooms: Rooms
    limits: Limits


@dataclass(frozen=True)
class Asked:
    """What the controls of the page say.

    Args:
        target: a class, or None for the one the model finds likeliest.
    """

    kind: str
    model: str
    target: int | None
    methods: Sequence[str]
    preset: str
    look: Look = field(default_factory=Look)

    def like(self, other: "Asked") -> bool:
        """Whether the same is asked, whatever the class and the colours."""
        return replace(other, target=self.target, look=self.look) == self


@dataclass(frozen=True)
class Shown:
    """What the page shows of an explanation.

    Args:
        choices: the likeliest classes as they are offered, with their numbers.
    """

    answer: str
    maps: str
    choices: list[tuple[str, str]]
    target: str


def take_picture(house: House, room: Room, path: str | Path) -> None:
    """Put an uploaded picture into the room, after checking it."""
    place = Path(path)
    if place.stat().st_size > house.limits.upload:
        raise InputError(f"the file is larger than {house.limits.upload / 2**20:.0f} MB. Make it smaller.")
    # Gradio deletes the file later; visitors with the same picture share it, so it is not ours to delete.
    data = place.read_bytes()
    read_picture(data, house.limits)
    room.given["image"] = Given("image", data)


def take_text(house: House, room: Room, text: str) -> None:
    """Put a text into the room, after checking it."""
    room.given["text"] = Given("text", read_text(text, house.limits))


def situation(house: House, room: Room, asked: Asked) -> tuple[Case, int]:
    """The case that the controls describe, and the class to explain: the likeliest if theirs is not offered."""
    case = explaining.case_of(room, house.shelf, house.limits, asked.kind, asked.model)
    return case, case.offered(asked.target)


def explained(house: House, room: Room, asked: Asked, tell: Tell = silent) -> Iterator[Shown]:
    """The explanation as far as it is known, again after each method that takes longer."""
    methods = explaining.check_methods(asked.methods, asked.kind, house.limits)
    case, target = situation(house, room, asked)
    choices = [(f"{case.name(index)} · {percent(likely)}", str(index)) for index, likely in case.classes]
    for found in explaining.explain(room, case, target, methods, asked.preset, tell):
        yield Shown(views.answer(case, target), views.maps(case, target, found, asked.look), choices, str(target))


def known_maps(house: House, room: Room, asked: Asked) -> tuple[Case, int, list[Attribution | str]]:
    """The case, the class and all maps, computed where they are not known."""
    methods = explaining.check_methods(asked.methods, asked.kind, house.limits)
    case, target = situation(house, room, asked)
    *_, found = explaining.explain(room, case, target, methods, asked.preset)
    return case, target, [one for one in found if not isinstance(one, explaining.Pending)]


def redrawn(house: House, room: Room, asked: Asked) -> str:
    """The maps that are there in other colours."""
    methods = explaining.check_methods(asked.methods, asked.kind, house.limits)
    case, target = situation(house, room, asked)
    return views.maps(case, target, next(explaining.explain(room, case, target, methods, asked.preset)), asked.look)


def layer(house: House, room: Room, asked: Asked, method: str, number: int) -> tuple[str, int]:
    """One layer's part of a method's map, and how many layers there are."""
    explaining.check_methods([method], asked.kind, house.limits)
    case, target = situation(house, room, asked)
    found = explaining.map_of(room, case, target, method, asked.preset)
    return views.layer(case, found, number, asked.look), views.depth(found)


def heads(house: House, room: Room, asked: Asked, method: str) -> str:
    """Every head's part of a method's map."""
    explaining.check_methods([method], asked.kind, house.limits)
    case, target = situation(house, room, asked)
    return views.heads(case, explaining.map_of(room, case, target, method, asked.preset), asked.look)


def remove(house: House, room: Room, asked: Asked, method: str, fill: str, percents: float, tell: Tell = silent) -> str:
    """The input without its most important parts, and what the model then says; computed once, then looked up."""
    explaining.check_methods([method], asked.kind, house.limits)
    case, target = situation(house, room, asked)
    found = explaining.map_of(room, case, target, method, asked.preset, tell)
    return views.removal(case, target, found, removing.removal(room, case, target, found, fill, tell), percents)


def between(house: House, room: Room, asked: Asked, one: int | None, other: int | None) -> str:
    """What speaks for one class rather than another; the likeliest stand in for classes that are not offered."""
    case, _ = situation(house, room, asked)
    first, second = case.offered(one), case.offered(other)
    second = second if second != first else next((i for i, _ in case.classes if i != first), first)
    key = (case.key, first, second)
    found = room.curves.get(key)
    if not isinstance(found, Attribution):
        with running(case.opened, room, silent, "comparing two classes"):
            found = vitrail.detail(case.opened.loaded.model, case.sample.inputs, first, second)
        room.curves.put(key, found)
    each = [explaining.map_of(room, case, one, found.method, "recommended") for one in (first, second)]
    return views.detail(case, [*each, found], (first, second), asked.look)


def agreement(house: House, room: Room, asked: Asked) -> str:
    """How much the chosen methods agree."""
    return views.agreement(known_maps(house, room, asked)[2])


def download(house: House, room: Room, asked: Asked, form: str) -> dict[str, str]:
    """A file of all that is shown: its name and its content."""
    return downloads.file_of(form, *known_maps(house, room, asked))


def stop(house: House, room: Room, asked: Asked) -> str:
    """End the visitor's jobs at the next pass of the model; the maps that are there, if any."""
    room.halt(asked.kind)
    case = room.cases.get((room.given[asked.kind].key, asked.model))
    if case is None:
        return ""
    methods = explaining.check_methods(asked.methods, asked.kind, house.limits)
    target = case.offered(asked.target)
    keys = [explaining.key_of(case, target, name, asked.preset) for name in methods]
    return views.maps(case, target, explaining.known(room, keys), asked.look, waiting="stopped")
