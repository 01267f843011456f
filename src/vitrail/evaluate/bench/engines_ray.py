"""Ray: units done by workers on many machines, or by several processes of this one.

A worker is an actor that keeps its model loaded and has one unit at a time. If it dies, its unit is given to another.
Results come back here; no worker writes any.
"""

import os
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import ray
from ray import exceptions

from vitrail.attribution import versions
from vitrail.errors import EngineError, VitrailError
from vitrail.evaluate.bench.engines import HERE, Cluster, Work
from vitrail.evaluate.bench.ray_cluster import connected, reason_of
from vitrail.evaluate.bench.units import Finished, Unit
from vitrail.evaluate.bench.worker import Worker

ATTEMPTS = 3
PATIENCE = 300.0
"""Seconds without any worker, after which the cluster is given up."""


def ray_engine(units: Iterable[Unit], worker: Work, *, cluster: Cluster = HERE) -> Generator[Finished, None, None]:
    """What Ray's workers finish, in the order of completion. Without units no cluster is started."""
    fresh = iter(units)
    first = list(islice(fresh, 1))
    if not first:
        return
    with connected(cluster):
        crew = _Crew(worker, cluster)
        try:
            yield from _stream((_Task(unit) for part in (first, fresh) for unit in part), crew)
        finally:
            crew.dismiss()


@dataclass(frozen=True)
class _Task:
    """A unit, and how many workers it was lost with."""

    unit: Unit
    losses: int = 0

    def lost(self, error: Exception) -> "_Task":
        """The unit for another worker, as long as there is hope."""
        reason = f"{describe(self.unit)}: {reason_of(error)}"
        if self.losses + 1 == ATTEMPTS:
            raise EngineError(
                f"{ATTEMPTS} workers failed, one after the other, at the same unit, {reason} If memory is short, "
                "choose a smaller batch (--batch, --forward-batch) or fewer workers. What is finished is kept."
            ) from error
        warnings.warn(f"a worker was lost; another one does its unit, {reason}", stacklevel=2)
        return replace(self, losses=self.losses + 1)


def describe(unit: Unit) -> str:
    """Which unit it is, for people."""
    return f"{unit.model.name} on {unit.data.name}, examples {unit.keys[0]} to {unit.keys[-1]}"


def _stream(fresh: Iterator[_Task], crew: "_Crew") -> Iterator[Finished]:
    tasks = deque(islice(fresh, crew.size))
    crew.hire(len(tasks))
    while tasks or crew.occupied:
        found = crew.wait()
        if isinstance(found, _Task):
            tasks.appendleft(found)
        while tasks and crew.idle:
            crew.give(tasks.popleft())
            tasks.extend(islice(fresh, 0 if tasks else 1))
        if isinstance(found, Finished):  # only now, so that workers need not wait for whoever reads this
            yield found


class _Hand:
    """A worker in a process of its own; it stands where the driver stands, so relative paths mean the same."""

    def __init__(self, worker: Work, folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)
        self.worker = worker

    def greet(self) -> dict[str, str]:
        """What its results depend on."""
        return versions()

    def do(self, unit: Unit) -> Finished | VitrailError:
        """The unit's results, or what is wrong with it: no other worker would do better."""
        try:
            return self.worker(unit)
        except VitrailError as error:
            return error


HAND: Any = ray.remote(_Hand)


class _Crew:
    """The workers, and what each is doing: starting, idle, or a task."""

    def __init__(self, worker: Work, cluster: Cluster) -> None:
        on_cuda = isinstance(worker, Worker) and worker.settings.device.partition(":")[0] == "cuda"
        if isinstance(worker, Worker) and on_cuda:  # Ray shows a worker only its own GPU, which then is the first
            worker = replace(worker, settings=replace(worker.settings, device="cuda"))
        self.worker = worker
        self.needs: dict[str, Any] = {"num_cpus": 1, **({"num_gpus": cluster.gpu_share} if on_cuda else {})}
        self.size = cluster.workers or _places(ray.cluster_resources(), self.needs)
        self.idle: list[Any] = []
        self.busy: dict[Any, tuple[Any, _Task | None]] = {}
        self.false_starts = 0

    @property
    def occupied(self) -> bool:
        """Whether some worker has a task."""
        return any(task is not None for _, task in self.busy.values())

    def hire(self, count: int) -> None:
        """Start workers. They are given tasks once they answer, so none waits for a worker that finds no place."""
        for _ in range(count):
            hand: Any = HAND.options(**self.needs).remote(self.worker, os.getcwd())
            self.busy[hand.greet.remote()] = hand, None

    def give(self, task: _Task) -> None:
        """Let an idle worker do a task."""
        hand = self.idle.pop()
        self.busy[hand.do.remote(task.unit)] = hand, task

    def wait(self) -> Finished | _Task | None:
        """The next finished unit, a task that lost its worker, or nothing but a new idle worker."""
        ready, _ = ray.wait(list(self.busy), timeout=None if self.occupied else PATIENCE)
        if not ready:
            raise EngineError(
                f"no worker could start within {PATIENCE:.0f} s: each needs {_listed(self.needs)}, and the cluster has "
                f"{_listed(ray.available_resources()) or 'nothing'} free. What is finished is kept."
            )
        hand, task = self.busy.pop(ready[0])
        try:
            found = ray.get(ready[0])
        except exceptions.RayError as error:
            ray.kill(hand)
            self.hire(1)
            return self._start_failed(error) if task is None else task.lost(error)
        if isinstance(found, VitrailError):
            raise found
        self.idle.append(hand)
        return found if task is not None else self._started(found)

    def _start_failed(self, error: Exception) -> None:
        self.false_starts += 1
        if self.false_starts == ATTEMPTS:
            raise EngineError(f"the workers cannot start: {reason_of(error)} Is vitrail installed there?") from error

    def _started(self, found: Mapping[str, str]) -> None:
        self.false_starts = 0
        if found != versions():
            raise EngineError(
                f"a worker has {_listed(found)}, but here is {_listed(versions())}: their results must not be mixed. "
                "Install the same versions on every machine."
            )

    def dismiss(self) -> None:
        """End all workers; a cluster of someone else goes on without them."""
        for hand in (*self.idle, *(hand for hand, _ in self.busy.values())):
            ray.kill(hand)


def _places(has: Mapping[str, Any], needs: Mapping[str, Any]) -> int:
    """How many workers find room in a cluster."""
    share = needs.get("num_gpus")
    count = int(has.get("CPU", 0)) if share is None else int(has.get("GPU", 0)) * int(1 / share + 1e-9)
    if not count:
        raise EngineError(f"each worker needs {_listed(needs)}, but the cluster has {_listed(has)}.")
    return count


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()) if not name.startswith("node:"))
