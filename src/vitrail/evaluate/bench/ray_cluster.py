"""A connection to a Ray cluster: to one that is running, or to one that lives only as long as it is needed."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import ray
from ray import exceptions
from ray._private import ray_constants, services
from ray._private import worker as ray_worker

from vitrail.errors import EngineError
from vitrail.evaluate.bench.engines import Cluster

REACH = 10.0  # seconds
OBJECTS = 100 * 2**20  # results are small; Ray would reserve a third of the memory
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
LOOPBACK = {"RAY_USAGE_STATS_ENABLED": "0", ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}


@contextmanager
def connected(cluster: Cluster) -> Iterator[None]:
    """The cluster at the address, or one that lives for this block; one the caller is connected to is left alone."""
    if ray.is_initialized():
        _check_same(cluster.address)
        yield
        return
    # Ray prints to stdout, where our results go, that a worker died. We say so ourselves.
    with _changed(ray_worker, _worker_logs_enabled=False):
        try:
            _connect(cluster)
            yield
        finally:
            ray.shutdown()


def _check_same(address: str | None) -> None:
    connected = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", connected):
        raise EngineError(
            f"this process is already connected to the Ray cluster at {connected}, not to {address}. Leave out the "
            "address, or call ray.shutdown() first."
        )


def _connect(cluster: Cluster) -> None:
    try:
        if cluster.address not in (None, "local"):
            _knock(cluster.address)
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
        raise EngineError(f"no Ray cluster {where}: {reason_of(error)}") from error


def _knock(address: str) -> None:
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
    before = {name: os.environ.get(name) for name in LOOPBACK}
    os.environ.update(LOOPBACK)
    try:
        with (
            _changed(ray_constants, ENABLE_RAY_CLUSTER=False),  # the variable was read when Ray was imported
            _changed(services, start_api_server=lambda *args, **options: (None, None)),  # as if it could not start
        ):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def _changed(module: ModuleType, **values: Any) -> Iterator[None]:  # noqa: ANN401
    """Other values for a module's names, as long as the block lasts."""
    before = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)


def reason_of(error: Exception) -> str:
    """One sentence of what Ray says at length."""
    if isinstance(error, exceptions.RayTaskError):
        return f"{error.cause!r}."
    return f"{(str(error).strip() or repr(error)).splitlines()[0].rstrip('.')}."
