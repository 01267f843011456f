"""The Ray engine of `explain_many`: every worker explains ranges of inputs and writes their part files itself.

A worker keeps its model. If it dies, its range is given to another. A part file that exists is complete, so the rows at
the end are the same as those of one process.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any
from uuid import uuid4

import ray
from ray import exceptions

from vitrail.api.many import Batch, BatchExplainer, PartStore, Task, rows_of
from vitrail.errors import EngineError
from vitrail.evaluate.bench.engines_ray import connected, reason_of
from vitrail.evaluate.bench.worker import Cluster
from vitrail.models.taking import taken

RETRIES = 3
"""How often a range is given to another worker after its own has died."""


@dataclass(frozen=True)
class _Open:
    """What a worker keeps of a task: its model, and where each batch starts and stops."""

    store: PartStore
    explain: BatchExplainer
    batches: Sequence[Batch]
    stops: Sequence[int]


_open: dict[str, _Open] = {}
"""Of a worker: the tasks whose model it holds."""


def explain_part(key: str, shared: Sequence[Any], part: int) -> int:
    """Explain the inputs of one part file and write it; how many there are.

    Args:
        shared: holds a reference to the task and its folder, which are fetched once.
    """
    if key not in _open:
        task, store = ray.get(shared[0])
        explain, batches = BatchExplainer(task.model, task.method, task.target, task.options), list(task.loader)
        _open[key] = _Open(store, explain, batches, list(accumulate(len(batch.names) for batch in batches)))
    here = _open[key]
    first = part * here.store.part_size
    last = min(first + here.store.part_size, here.stops[-1])
    rows = []
    for number in range(bisect_right(here.stops, first), bisect_left(here.stops, last) + 1):
        batch = here.batches[number]
        found = rows_of(here.explain(batch.load()), here.stops[number] - len(batch.names), batch.names)
        rows += [row for row in found if first <= row["index"] < last]
    here.store.write(rows)
    return len(rows)


def explain_parts(task: Task, store: PartStore, parts: Sequence[int], *, workers: int | None) -> Iterator[int]:
    """Explain parts by the workers of a cluster; yields how many inputs each part held, as they are done."""
    if not parts:
        return
    cuda = any(p.is_cuda for p in taken(task.model).parameters())
    with connected(Cluster(workers=workers)):
        run = ray.remote(num_cpus=1, num_gpus=int(cuda), max_retries=RETRIES)(explain_part)
        key, shared, left = uuid4().hex, [ray.put((task, store))], iter(parts)
        size = 2 * (workers or int(ray.cluster_resources().get("GPU" if cuda else "CPU", 1)))
        pending = [run.remote(key, shared, part) for part in islice(left, size)]
        while pending:
            (done, *_), pending = ray.wait(pending)
            try:
                yield ray.get(done)
            except exceptions.RayTaskError as error:
                raise error.cause from error
            except exceptions.RayError as error:
                raise EngineError(f"a worker of Ray was lost {RETRIES + 1} times: {reason_of(error)}") from error
            pending += [run.remote(key, shared, part) for part in islice(left, 1)]
