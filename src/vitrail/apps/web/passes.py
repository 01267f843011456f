"""Report every pass of a model to the job that runs it, and stop the job there when its visitor has left."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import nn

from vitrail.apps.web.model_cache import OpenModel
from vitrail.apps.web.workers import Job

SLOWING = 0.97
"""Where the number of passes is not known, each pass moves the bar by less."""
PAUSE = 0.2
"""Seconds between two reports from inside a pass."""


def blocks_of(model: nn.Module) -> Sequence[nn.Module]:
    """The modules of the longest list in a model, which run one after the other; none where there is no list."""
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    return list(max(lists, key=len, default=()))


@dataclass(eq=False)
class Watch:
    """Called whenever the model, or a block of it, runs: stop here if asked to, else report which pass this is.

    Args:
        total: how many passes there will be, if that is known.
        blocks: blocks of the model.
    """

    job: Job
    words: str
    total: int | None = None
    blocks: int = 0
    passes: int = 0
    inside: int = 0
    told: float = 0.0

    def begin(self) -> None:
        """Before each pass."""
        self.job.check()
        self.passes, self.inside = self.passes + 1, 0
        self._report()

    def step(self) -> None:
        """Before each block: a pass over many inputs takes long."""
        self.job.check()
        self.inside += 1
        if time.monotonic() - self.told > PAUSE:
            self._report()

    def _report(self) -> None:
        self.told = time.monotonic()
        within = min(self.inside / self.blocks, 1.0) if self.blocks else 0.0
        done = max(self.passes - 1, 0) + within
        share = 1 - SLOWING ** (done + 1) if self.total is None else min(done / self.total, 1.0)
        known = "" if self.total is None else f" of {self.total}"
        self.job.tell(share, f"{self.words}, pass {self.passes}{known}" if self.passes > 1 else self.words)


@contextmanager
def running(opened: OpenModel, job: Job, words: str, total: int | None = None) -> Iterator[Watch]:
    """Use the model alone, with every pass reported, until the block ends or the job is stopped.

    Args:
        total: how many passes there will be, if that is known.
    """
    blocks = blocks_of(opened.loaded.model)
    watch = Watch(job, words, total, len(blocks))
    with opened.lock:
        job.check()
        _observe(opened.loaded.model, blocks)
        token = _current.set(watch)
        try:
            yield watch
        finally:
            _current.reset(token)


_current: ContextVar[Watch | None] = ContextVar("watch", default=None)


def _observe(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Hook the model once. The hooks stay: a model that changes between two jobs would need a new shadow."""
    if _begin not in model._forward_pre_hooks.values():  # a copy of a model has its hooks already
        model.register_forward_pre_hook(_begin)
        for block in blocks:
            block.register_forward_pre_hook(_step)


def _begin(module: nn.Module, args: object) -> None:
    if (watch := _current.get()) is not None:
        watch.begin()


def _step(module: nn.Module, args: object) -> None:
    if (watch := _current.get()) is not None:
        watch.step()
