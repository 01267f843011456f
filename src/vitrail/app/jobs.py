"""A job that is under way: it says how far it is, and stops when its visitor asks for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn

from vitrail.app.rooms import Room
from vitrail.app.shelf import Opened
from vitrail.restore import hooks

Tell = Callable[[float, str], None]
"""Takes a fraction of the work and words."""
SLOWING = 0.97
"""Where nobody knows how many passes there will be, the bar goes on by less and less and never arrives."""


class Stopped(Exception):
    """The visitor asked to stop: no error, so no part of the tree of errors."""


def silent(fraction: float, words: str) -> None:
    """Tell nobody."""


@dataclass(eq=False)
class Watch:
    """Called whenever the model runs: stop here if asked to, else say which pass this is."""

    room: Room
    tell: Tell
    words: str
    total: int | None = None
    passes: int = field(default=0)

    def __call__(self, module: nn.Module, args: object) -> None:
        """As a hook before each pass."""
        self.check()
        self.passes += 1
        share = 1 - SLOWING**self.passes if self.total is None else min(self.passes / self.total, 1.0)
        self.tell(share, self.words if self.passes == 1 else f"{self.words}, pass {self.passes}")

    def check(self) -> None:
        """Raise if the visitor asked to stop."""
        if self.room.stop.is_set():
            raise Stopped


@contextmanager
def running(opened: Opened, room: Room, tell: Tell, words: str, total: int | None = None) -> Iterator[Watch]:
    """Use the model alone, told of each pass, until the job ends or is stopped.

    Args:
        total: how many passes there will be, if that is known.
    """
    watch = Watch(room, tell, words, total)
    tell(0.0, f"{words}: waiting for the model")
    with opened.lock, hooks([opened.loaded.model.register_forward_pre_hook(watch)]):
        watch.check()
        yield watch
