"""A progress bar on the terminal for methods that run the model many times."""

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")

DELAY = 3.0
"""Seconds before the progress bar appears."""


def watched(steps: Sequence[T], words: str, *, show: bool) -> Iterator[T]:
    """The steps as they are, with a progress bar if they take long; none where there is no terminal.

    Args:
        words: the text before the bar.
        show: whether there may be a bar at all.
    """
    hidden = not show or not sys.stderr.isatty()
    yield from tqdm(steps, desc=words, delay=DELAY, leave=False, disable=hidden, file=sys.stderr)
