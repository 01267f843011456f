"""Engines hand units to workers, here or on other machines.

An engine takes units and a worker, and yields what the worker makes of each, in the order of completion. Of the bench
only the driver, which reads what an engine yields, writes results; a part of a data set is a file that is whole or not
there. So an engine may lose a worker and repeat a unit.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from vitrail.errors import MissingExtraError, OptionError, suggest

Work = Callable[[Any], Any]
"""Makes the result of a unit; may say by `on_cuda` that it needs a GPU."""
Engine = Callable[[Iterable[Any], Work], Generator[Any, None, None]]


@dataclass(frozen=True)
class Cluster:
    """The address at which an engine of several workers finds them.

    Args:
        address: of a cluster that is running; without it one is started on this machine and ends with the run.
        workers: how many at most; without it one a CPU, or, if the plan's device is cuda, as many as the GPUs hold.
        gpu_share: the part of a GPU that a worker takes, above 0 and at most 1.
    """

    address: str | None = None
    workers: int | None = None
    gpu_share: float = 1.0

    def __post_init__(self) -> None:
        if (self.workers is not None and self.workers < 1) or not 0 < self.gpu_share <= 1:
            raise OptionError(
                f"workers={self.workers}, gpu_share={self.gpu_share}: workers must be at least 1, gpu_share above 0 "
                "and at most 1."
            )


HERE = Cluster()


def local(units: Iterable[Any], worker: Work) -> Generator[Any, None, None]:
    """One unit after the other, in this process. Units are asked for only when they are needed."""
    yield from map(worker, units)


def _local(cluster: Cluster) -> Engine:
    if cluster != HERE:
        raise OptionError(
            "the engine local has no workers elsewhere: leave out the options of ray, or choose it: --engine ray, in "
            "Python engine='ray'."
        )
    return local


def _ray(cluster: Cluster) -> Engine:
    try:
        from vitrail.evaluate.bench.engines_ray import ray_engine
    except ImportError as error:
        raise MissingExtraError("the engine ray needs the package ray: pip install 'vitrail[ray]'") from error
    return partial(ray_engine, cluster=cluster)


ENGINES: dict[str, Callable[[Cluster], Engine]] = {"local": _local, "ray": _ray}


def find_engine(name: str, cluster: Cluster = HERE) -> Engine:
    """The engine of this name; its library is imported only now."""
    if name not in ENGINES:
        raise OptionError(f"there is no engine {name!r}. {suggest(name, ENGINES)}")
    return ENGINES[name](cluster)
