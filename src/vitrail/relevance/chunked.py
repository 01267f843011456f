"""The sums of `dense` over blocks of rows, so that memory is bounded by the block and not by the map."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.layer import Layer
from vitrail.relevance import dense
from vitrail.relevance.dense import Weigh, entries

BUDGET = {"cpu": 2**19}
LARGE_BUDGET = 2**24
"""Entries of A in one block where no number of rows is given: 2 MB on a CPU, which stays in its cache and is more than
twice as fast as whole maps; elsewhere 64 MB, so that each kernel has enough to do."""
LEAST_ROWS = 4
SHARED_LIMIT = 2**23
"""Entries of A up to which the blocks of a layer that several methods read are kept while they do: 32 MB, and as much
again for G."""
BYTES_PER_ENTRY = 20
"""Of a block: A, G, what is made of them and what is made on the way, each in float32."""
TILES = "tiles of a shared layer"


def rows_per_tile(layer: Layer) -> int:
    """Return the number of rows to take at a time."""
    if layer.chunk_rows is not None:
        return layer.chunk_rows
    budget = BUDGET.get(layer.valid.device.type, LARGE_BUDGET)
    return max(LEAST_ROWS, budget * layer.queries_valid.shape[1] // entries(layer))


def fitting_rows(layer: Layer) -> int:
    """Return the number of rows that fit at a time: into half of a GPU's free memory, or into a CPU's cache."""
    device, queries = layer.valid.device, layer.queries_valid.shape[1]
    if device.type != "cuda":
        return min(queries, rows_per_tile(replace(layer, chunk_rows=None)))
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + cached
    return max(1, min(queries, free // 2 // (entries(layer) // queries * BYTES_PER_ENTRY)))


def tiles(layer: Layer) -> Iterator[tuple[slice, Layer]]:
    """Blocks of queries, each with the rows it covers."""
    if not layer.shared or layer.chunk_rows is not None or entries(layer) > SHARED_LIMIT:
        return _cut(layer)
    kept = vars(layer)  # like a cached property: the tiles live as long as the layer is looked at
    if TILES not in kept:
        kept[TILES] = list(_cut(layer))
    return iter(kept[TILES])


def _cut(layer: Layer) -> Iterator[tuple[slice, Layer]]:
    queries = layer.queries_valid.shape[1]
    size = rows_per_tile(layer)
    if layer.weights is None:  # repeat shared heads and widen the dtype once, not once per block
        layer = replace(layer, key=layer.keys, value=layer.values)
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        yield slice(start, stop), layer.rows(start, stop)


def samples_per_tile(layer: Layer) -> int:
    """Return the samples in a block of whole maps; zero where one is too large, or rows are asked for or shared."""
    if layer.shared or layer.chunk_rows is not None:
        return 0
    budget = BUDGET.get(layer.valid.device.type, LARGE_BUDGET)
    return budget * layer.valid.shape[0] // entries(layer)


def pull(layer: Layer, rows: Float[Tensor, "b q"], weigh: Weigh) -> Float[Tensor, "b h k"]:
    """Per head, the rows of the weighed map, summed with these weights."""
    some = samples_per_tile(layer)
    if some:  # larger matrices at a time than some rows of every sample, so faster
        cuts = [(start, start + some) for start in range(0, len(rows), some)]
        return torch.cat([dense.pull(layer.samples(*cut), rows[slice(*cut)], weigh) for cut in cuts])
    total: Tensor | None = None
    for cut, tile in tiles(layer):
        part = dense.pull(tile, rows[:, cut], weigh)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def push(layer: Layer, columns: Float[Tensor, "b k c"]) -> Float[Tensor, "b q c"]:
    """The head mean of A applied to columns."""
    return torch.cat([dense.push(tile, columns) for _, tile in tiles(layer)], dim=1)
