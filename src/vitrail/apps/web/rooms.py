"""What one visitor has asked and been told: apart from all others, and never more than so much."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Generic, TypeVar

from vitrail.apps.web.shelf import Opened
from vitrail.attribution import Attribution
from vitrail.models.loading import Sample

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
ROOMS, CASES, MAPS, CURVES = 64, 4, 96, 24


class Recent(Generic[K, V]):
    """A table that forgets what was longest not used."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """What is kept under this key, or None."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def put(self, key: K, value: V) -> V:
        """Keep the value, and give it back."""
        with self._lock:
            self._held[key] = value
            self._held.move_to_end(key)
            while len(self._held) > self.most:
                self._held.popitem(last=False)
        return value

    def copy(self) -> "Recent[K, V]":
        """Another table that begins with the same."""
        made: Recent[K, V] = Recent(self.most)
        with self._lock:
            made._held = OrderedDict(self._held)
        return made

    def __len__(self) -> int:
        """How much is kept."""
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        """Whether something is kept under this key."""
        return key in self._held


@dataclass(frozen=True)
class Given:
    """A picture's bytes or a text, as it came from the visitor."""

    kind: str
    data: bytes | str = field(repr=False)

    @property
    def key(self) -> str:
        """What tells two inputs apart."""
        return sha256(self.data if isinstance(self.data, bytes) else self.data.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Case:
    """One input before one model: what the model was shown, and what it said.

    Args:
        classes: the most likely classes and their probabilities, the likeliest first.
    """

    key: tuple[str, str]
    opened: Opened
    sample: Sample
    classes: tuple[tuple[int, float], ...]

    def name(self, index: int) -> str:
        """What a class is called."""
        return self.opened.loaded.class_name(index)

    def offered(self, wanted: int | None) -> int:
        """The class that is wanted if it is offered, else the likeliest."""
        known = [index for index, _ in self.classes]
        return wanted if wanted in known else known[0]


MapKey = tuple[tuple[str, str], int, str, str]
"""A case, a class, a method, a preset."""


@dataclass(eq=False)
class Room:
    """One visitor's inputs, cases, maps and curves.

    Args:
        asked: for each kind of input what the maps on the page answer; nothing while they are computed or stopped.
        stops: for each kind of input an event that its jobs hold; set, it ends them.
    """

    given: dict[str, Given]
    cases: Recent[tuple[str, str], Case] = field(default_factory=lambda: Recent(CASES))
    maps: Recent[MapKey, Attribution | str] = field(default_factory=lambda: Recent(MAPS))
    curves: Recent[Hashable, object] = field(default_factory=lambda: Recent(CURVES))
    asked: dict[str, object] = field(default_factory=dict)
    stops: dict[str, threading.Event] = field(default_factory=dict)

    def stop_of(self, kind: str) -> threading.Event:
        """What ends a job that begins now."""
        return self.stops.setdefault(kind, threading.Event())

    def halt(self, kind: str) -> None:
        """End all that runs for this visitor and kind of input; what begins later is not meant."""
        self.asked.pop(kind, None)
        running = self.stops.pop(kind, None)
        if running is not None:
            running.set()


class Rooms:
    """A room for each visitor; whoever was longest away loses theirs, and starts anew on return.

    Args:
        start: what a new visitor finds: the examples, and what is known of them.
    """

    def __init__(self, start: Room, most: int = ROOMS) -> None:
        self.start = start
        self._rooms: Recent[str, Room] = Recent(most)
        self._lock = threading.Lock()

    def of(self, visitor: str | None) -> Room:
        """The room of this visitor."""
        with self._lock:
            return self._rooms.get(str(visitor)) or self._rooms.put(str(visitor), self._new())

    def _new(self) -> Room:
        known = self.start
        return Room(dict(known.given), known.cases.copy(), known.maps.copy(), known.curves.copy())

    def __len__(self) -> int:
        """How many visitors have a room."""
        return len(self._rooms)
