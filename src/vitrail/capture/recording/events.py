"""The events of a pass: what happens to its tokens, as a walk meets it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.capture.recording.layer import Layer, Readout
from vitrail.capture.structure.stream_updates import FeedForward
from vitrail.capture.structure.streams import AttentionEvent, RowLayout, Transition

Event = tuple[AttentionEvent | FeedForward | Transition, Layer | None]
"""What happens to tokens, with its layer."""
NO_TOKEN = torch.tensor([[-1]])
"""The number of a query that pools tokens."""


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


def events_of(layers: Iterable[Layer]) -> Iterator[Event]:
    """Give layers of one sequence of tokens in order with their events."""
    tokens = torch.zeros(0, 0, dtype=torch.long)
    for layer in layers:
        if tokens.shape != layer.valid.shape:
            tokens = torch.arange(layer.valid.numel()).view(layer.valid.shape)
        queries = NO_TOKEN if layer.pooling else tokens
        yield AttentionEvent(layer.index, queries, tokens, RowLayout(1), in_order=True), layer
