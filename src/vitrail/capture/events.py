"""What happens to the tokens of a pass, as a walk meets it."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from vitrail.capture.recording import Layer, Readout
from vitrail.capture.streams import AttentionEvent, Transition
from vitrail.capture.structure.stream_updates import FeedForward

Event = tuple[AttentionEvent | FeedForward | Transition | None, Layer | None]
"""What happens to tokens, with its layer. None stands for attention of one sequence in order, on all of its tokens."""


@dataclass(frozen=True)
class Events:
    """All that happens to the tokens of a pass, last to first, and where the walk begins.

    Args:
        steps: the events, each with its layer, which is made when it is asked for.
        readout: the tokens that are read; None where the last layer holds them.
        lengths: the length of each token's first vector; None where the first layer tells it.
        crosses: whether one sequence reads another.
    """

    steps: Iterable[Event]
    readout: Readout | None = None
    lengths: Tensor | None = None
    crosses: bool = False
