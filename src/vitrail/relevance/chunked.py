"""The same sums over blocks of rows, so that memory is bounded by the block and not by the map."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.recording import Layer
from vitrail.relevance import dense
from vitrail.relevance.dense import Weigh

BUDGET = 2**22
"""Entries of A in one block where no number of rows is given: 16 MB in float32, small enough for a cache."""


def rows_per_tile(layer: Layer) -> int:
    """How many rows to take at a time."""
    if layer.chunk_rows is not None:
        return layer.chunk_rows
    heads = (layer.query if layer.query is not None else layer.get("weights")).shape[1]
    return max(1, BUDGET // (layer.valid.numel() * heads))


def tiles(layer: Layer) -> Iterator[tuple[slice, Layer]]:
    """Blocks of queries, each with the rows it covers."""
    queries = layer.queries_valid.shape[1]
    size = rows_per_tile(layer)
    if layer.weights is None:  # repeat shared heads and widen the dtype once, not once per block
        layer = replace(layer, key=layer.keys, value=layer.values)
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        yield slice(start, stop), layer.rows(start, stop)


def pull(layer: Layer, rows: Float[Tensor, "b q"], weigh: Weigh) -> Float[Tensor, "b h k"]:
    """Per head, the rows of the weighed map, summed with these weights."""
    total: Tensor | None = None
    for cut, tile in tiles(layer):
        part = dense.pull(tile, rows[:, cut], weigh)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def push(layer: Layer, columns: Float[Tensor, "b k c"]) -> Float[Tensor, "b q c"]:
    """The head mean of A applied to columns."""
    return torch.cat([dense.push(tile, columns) for _, tile in tiles(layer)], dim=1)
