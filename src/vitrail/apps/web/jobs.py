"""A job that is under way: it says how far it is, and stops when its visitor asks for it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Event
from weakref import WeakSet

from torch import nn

from vitrail.apps.web.rooms import Room
from vitrail.apps.web.shelf import Opened

Tell = Callable[[float, str], None]
"""Takes a fraction of the work and words."""
SLOWING = 0.97
"""Where nobody knows how many passes there will be, the bar goes on by less and less and never arrives."""
PAUSE = 0.2
"""Seconds between two words from inside a pass."""


class Stopped(Exception):
    """The visitor asked to stop: no error, so no part of the tree of errors."""


def silent(fraction: float, words: str) -> None:
    """Tell nobody."""


def steps_of(model: nn.Module) -> Sequence[nn.Module]:
    """The parts of a model that run one after the other, its blocks; none where there is no such list."""
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    return list(max(lists, key=len, default=()))


@dataclass(eq=False)
class Watch:
    """Called whenever the model, or a block of it, runs: stop here if asked to, else say which pass this is.

    Args:
        total: how many passes there will be, if that is known.
        steps: blocks of the model.
    """

    stop: Event
    tell: Tell
    words: str
    total: int | None = None
    steps: int = 0
    passes: int = 0
    inside: int = 0
    told: float = 0.0

    def begin(self, module: nn.Module, args: object) -> None:
        """As a hook before each pass."""
        self.check()
        self.passes, self.inside = self.passes + 1, 0
        self._say()

    def step(self, module: nn.Module, args: object) -> None:
        """As a hook before each block: a pass over many inputs takes long."""
        self.check()
        self.inside += 1
        if time.monotonic() - self.told > PAUSE:
            self._say()

    def check(self) -> None:
        """Raise if the visitor asked to stop."""
        if self.stop.is_set():
            raise Stopped

    def _say(self) -> None:
        self.told = time.monotonic()
        within = min(self.inside / self.steps, 1.0) if self.steps else 0.0
        done = max(self.passes - 1, 0) + within
        share = 1 - SLOWING ** (done + 1) if self.total is None else min(done / self.total, 1.0)
        known = "" if self.total is None else f" of {self.total}"
        self.tell(share, f"{self.words}, pass {self.passes}{known}" if self.passes > 1 else self.words)


@contextmanager
def running(opened: Opened, room: Room, tell: Tell, words: str, total: int | None = None) -> Iterator[Watch]:
    """Use the model alone, told of each pass, until the job ends or is stopped.

    Args:
        total: how many passes there will be, if that is known.
    """
    blocks = steps_of(opened.loaded.model)
    watch = Watch(room.stop_of(opened.loaded.kind), tell, words, total, len(blocks))
    tell(0.0, f"{words}: waiting for the model")
    with opened.lock:
        watch.check()
        _observe(opened.loaded.model, blocks)
        token = _current.set(watch)
        try:
            yield watch
        finally:
            _current.reset(token)


_current: ContextVar[Watch | None] = ContextVar("watch", default=None)
_observed: "WeakSet[nn.Module]" = WeakSet()


def _observe(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Report the passes of a model to the job that runs in the same context. The hooks stay, so that the model does
    not change between two jobs, which would cost a new copy of its modules."""
    if model not in _observed:
        _observed.add(model)
        model.register_forward_pre_hook(_begin)
        for block in blocks:
            block.register_forward_pre_hook(_step)


def _begin(module: nn.Module, args: object) -> None:
    if (watch := _current.get()) is not None:
        watch.begin(module, args)


def _step(module: nn.Module, args: object) -> None:
    if (watch := _current.get()) is not None:
        watch.step(module, args)
