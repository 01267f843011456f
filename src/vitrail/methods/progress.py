"""A progress bar on the terminal for methods that run the model many times."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 3.0
"""Seconds of silence: who waits no longer needs no bar."""


def watched(steps: Sequence[T], words: str, *, show: bool) -> Iterator[T]:
    """The steps as they are, with a bar on the terminal if they take long; none where there is no terminal or no rich.

    Args:
        words: what stands before the bar.
        show: whether there may be a bar at all.
    """
    started, bar = time.monotonic(), None
    try:
        for done, step in enumerate(steps):
            if show and bar is None and time.monotonic() - started > PATIENCE:
                bar = _bar(words, len(steps))
                show = bar is not None
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done)
            yield step
    finally:
        if bar is not None:
            bar.stop()


def _bar(words: str, total: int) -> Any:  # noqa: ANN401
    """A bar that has been started, or None where it cannot be drawn."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:  # rich is an extra, and a bar no part of the result
        return None
    bar = Progress(console=Console(stderr=True), transient=True)
    bar.add_task(words, total=total)
    bar.start()
    return bar
