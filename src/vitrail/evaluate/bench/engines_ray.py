"""The engine on Ray: workers on several machines, or several processes of this one.

It uses a cluster that is running, or starts one for the run. A worker is an actor that keeps its model loaded and does
one unit at a time: a batch of the bench, or a part of a data set of explanations, whose file it writes itself. If it
dies, its unit is given to another.
"""

import os
import socket
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import ray
from ray import exceptions
from ray._private import ray_constants, services
from ray._private import worker as ray_worker

from vitrail.attribution import versions
from vitrail.errors import EngineError, MissingExtraError, VitrailError
from vitrail.evaluate.bench.engines import HERE, Cluster, Work
from vitrail.evaluate.bench.worker import Worker

REACH = 10.0  # seconds
OBJECTS = 100 * 2**20  # results are small; Ray would reserve a third of the memory
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
PRIVATE = (
    (ray_constants, "ENABLE_RAY_CLUSTERS_ENV_VAR"),
    (ray_constants, "ENABLE_RAY_CLUSTER"),
    (services, "start_api_server"),
    (ray_worker, "_worker_logs_enabled"),
)
"""Names of Ray's private modules that are read or changed here; see docs/PRIVATE_INTERFACES.md."""


def check_private() -> None:
    """Raise if Ray no longer has what keeps its cluster on this machine and its logs off the screen."""
    missing = [f"{module.__name__}.{name}" for module, name in PRIVATE if not hasattr(module, name)]
    if missing:
        raise MissingExtraError(
            f"ray {ray.__version__} has no {', '.join(missing)}, by which vitrail keeps a cluster on this machine and "
            "its logs off the screen. Install an older ray, or a newer vitrail."
        )


check_private()
LOOPBACK = {"RAY_USAGE_STATS_ENABLED": "0", ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}


@contextmanager
def connected(cluster: Cluster) -> Iterator[None]:
    """The cluster at the address, or one that lives for this block; one the caller is connected to is left alone."""
    if ray.is_initialized():
        address = ray.get_runtime_context().gcs_address
        if cluster.address not in (None, "auto", address):
            raise EngineError(
                f"this process is already connected to the Ray cluster at {address}, not to {cluster.address}. Leave "
                "out the address, or call ray.shutdown() first."
            )
        yield
        return
    # Ray prints to stdout, where our results go, that a worker died. We say so ourselves.
    with _changed(ray_worker.__dict__, _worker_logs_enabled=False):
        try:
            _connect(cluster)
            yield
        finally:
            ray.shutdown()


def _connect(cluster: Cluster) -> None:
    try:
        if cluster.address not in (None, "local"):
            _check_reachable(cluster.address)
            ray.init(address=cluster.address, **QUIET)
            return
        with on_loopback():
            ray.init(
                address="local",  # not one that RAY_ADDRESS names
                num_cpus=cluster.workers,
                include_dashboard=False,
                object_store_memory=OBJECTS,
                _node_ip_address="127.0.0.1",
                **QUIET,
            )
    except (exceptions.RayError, OSError, RuntimeError, ValueError, ImportError) as error:
        where = f"can be reached at {cluster.address}" if cluster.address else "could be started on this machine"
        token = " Start Python with RAY_AUTH_MODE=token." if "InvalidAuthToken" in str(error) else ""
        raise EngineError(f"no Ray cluster {where}: {reason_of(error)}{token}") from error


def _check_reachable(address: str) -> None:
    """Fail at once where nothing listens; Ray would try for minutes."""
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let a cluster that is started inside the block listen on and talk to this machine only.

    By default Ray looks for an outside address of this machine and listens on all of them. Even without dashboard and
    usage statistics it starts a process that asks the metadata services of three clouds where it runs.
    """
    with (
        _changed(os.environ, **LOOPBACK),
        _changed(ray_constants.__dict__, ENABLE_RAY_CLUSTER=False),  # the variable was read when Ray was imported
        _changed(services.__dict__, start_api_server=lambda *args, **options: (None, None)),  # as if it could not start
    ):
        yield


@contextmanager
def _changed(table: MutableMapping[str, Any], **values: Any) -> Iterator[None]:  # noqa: ANN401
    """Other values in a table, as long as the block lasts."""
    before = {name: table[name] for name in values if name in table}
    table.update(values)
    try:
        yield
    finally:
        table.update(before)
        for name in values.keys() - before.keys():
            table.pop(name, None)


def reason_of(error: Exception) -> str:
    """One sentence of what Ray says at length."""
    if isinstance(error, exceptions.RayTaskError):
        return f"{error.cause!r}."
    return f"{(str(error).strip() or repr(error)).splitlines()[0].rstrip('.')}."


ATTEMPTS = 3
PATIENCE = 300.0
"""Seconds without any worker, after which the cluster is given up."""


def ray_engine(units: Iterable[Any], worker: Work, *, cluster: Cluster = HERE) -> Generator[Any, None, None]:
    """Yield the results of Ray's workers in the order of completion. Without units no cluster is started."""
    fresh = iter(units)
    first = list(islice(fresh, 1))
    if not first:
        return
    with connected(cluster):
        pool = _ActorPool(worker, cluster)
        try:
            yield from _stream((_Task(unit) for part in (first, fresh) for unit in part), pool)
        finally:
            pool.stop()


@dataclass(frozen=True)
class _Task:
    """A unit, and how many workers it was lost with."""

    unit: Any
    losses: int = 0

    def lost(self, error: Exception) -> "_Task":
        """The unit for another worker, as long as there is hope."""
        reason = f"{self.unit}: {reason_of(error)}"
        if self.losses + 1 == ATTEMPTS:
            raise EngineError(
                f"{ATTEMPTS} workers failed, one after the other, at the same unit, {reason} If memory is short, "
                "choose a smaller batch (--batch, --forward-batch) or fewer workers. What is finished is kept."
            ) from error
        warnings.warn(f"a worker was lost; another one does its unit, {reason}", stacklevel=2)
        return replace(self, losses=self.losses + 1)


def _stream(fresh: Iterator[_Task], pool: "_ActorPool") -> Iterator[Any]:
    tasks = deque(islice(fresh, pool.size))
    pool.start(len(tasks))
    while tasks or pool.occupied:
        lost, finished = pool.wait()
        tasks.extendleft(lost)
        while tasks and pool.idle:
            pool.give(tasks.popleft())
            tasks.extend(islice(fresh, 0 if tasks else 1))
        yield from finished  # only now, so that workers do not wait for the reader


class _Actor:
    """A worker in a process of its own; it stands where the driver stands, so relative paths mean the same."""

    def __init__(self, worker: Work, folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)
        self.worker = worker

    def ready(self) -> dict[str, str]:
        """Return the versions that its results depend on."""
        return versions()

    def do(self, unit: Any) -> Any:  # noqa: ANN401
        """The unit's results, or what is wrong with it: no other worker would do better."""
        try:
            return self.worker(unit)
        except VitrailError as error:
            return error


ACTOR: Any = ray.remote(_Actor)


class _ActorPool:
    """The workers, and what each is doing: starting, idle, or a task."""

    def __init__(self, worker: Work, cluster: Cluster) -> None:
        on_cuda = getattr(worker, "on_cuda", False)
        if isinstance(worker, Worker) and on_cuda:  # Ray shows a worker only its own GPU, which then is the first
            worker = replace(worker, settings=replace(worker.settings, device="cuda"))
        self.worker = worker
        self.sent = ray.put(worker)  # once: it may hold a model
        self.needs: dict[str, Any] = {"num_cpus": 1, **({"num_gpus": cluster.gpu_share} if on_cuda else {})}
        self.size = cluster.workers or _places(ray.cluster_resources(), self.needs)
        self.idle: list[Any] = []
        self.busy: dict[Any, tuple[Any, _Task | None]] = {}
        self.false_starts = 0

    @property
    def occupied(self) -> bool:
        """Return True if some worker has a task."""
        return any(task is not None for _, task in self.busy.values())

    def start(self, count: int) -> None:
        """Start workers. They are given tasks once they answer, so none waits for a worker that finds no place."""
        for _ in range(count):
            actor: Any = ACTOR.options(**self.needs).remote(self.sent, os.getcwd())
            self.busy[actor.ready.remote()] = actor, None

    def give(self, task: _Task) -> None:
        """Let an idle worker do a task."""
        actor = self.idle.pop()
        self.busy[actor.do.remote(task.unit)] = actor, task

    def wait(self) -> tuple[list[_Task], list[Any]]:
        """A task that lost its worker, or the result of one; neither where a worker has only become idle."""
        ready, _ = ray.wait(list(self.busy), timeout=None if self.occupied else PATIENCE)
        if not ready:
            raise EngineError(
                f"no worker could start within {PATIENCE:.0f} s: each needs {_listed(self.needs)}, and the cluster has "
                f"{_listed(ray.available_resources()) or 'nothing'} free. What is finished is kept."
            )
        actor, task = self.busy.pop(ready[0])
        try:
            found = ray.get(ready[0])
        except exceptions.RayError as error:
            ray.kill(actor)
            self.start(1)
            if task is not None:
                return [task.lost(error)], []
            self.false_starts += 1
            if self.false_starts == ATTEMPTS:
                raise EngineError(
                    f"the workers cannot start: {reason_of(error)} Is vitrail installed there?"
                ) from error
            return [], []
        if isinstance(found, VitrailError):
            raise found
        self.idle.append(actor)
        if task is not None:
            return [], [found]
        self.false_starts = 0
        if found != versions():
            raise EngineError(
                f"a worker has {_listed(found)}, but here is {_listed(versions())}: their results must not be mixed. "
                "Install the same versions on every machine."
            )
        return [], []

    def stop(self) -> None:
        """End all workers; a cluster of someone else goes on without them."""
        for actor in (*self.idle, *(actor for actor, _ in self.busy.values())):
            ray.kill(actor)


def _places(has: Mapping[str, Any], needs: Mapping[str, Any]) -> int:
    """Return the number of workers that find room in a cluster."""
    share = needs.get("num_gpus")
    count = int(has.get("CPU", 0)) if share is None else int(has.get("GPU", 0)) * int(1 / share + 1e-9)
    if not count:
        raise EngineError(f"each worker needs {_listed(needs)}, but the cluster has {_listed(has)}.")
    return count


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()) if not name.startswith("node:"))
