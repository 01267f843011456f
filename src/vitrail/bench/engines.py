"""Engines: who does the units. Each takes units and a worker and yields what is finished, in the order of completion.

Only the driver, which reads what an engine yields, writes results; so an engine may lose a worker and repeat a unit.
"""

from collections.abc import Callable, Iterable, Iterator

from vitrail.bench.units import Finished, Unit
from vitrail.errors import MissingExtraError, OptionError, suggest

Work = Callable[[Unit], Finished]
Engine = Callable[[Iterable[Unit], Work], Iterator[Finished]]


def local(units: Iterable[Unit], worker: Work) -> Iterator[Finished]:
    """One unit after the other, in this process. Units are asked for only when they are needed."""
    return map(worker, units)


def _ray() -> Engine:
    try:
        from vitrail.bench.engines_ray import ray_engine  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("--engine ray needs the package ray: pip install 'vitrail[ray]'") from error
    return ray_engine


ENGINES: dict[str, Callable[[], Engine]] = {"local": lambda: local, "ray": _ray}


def find_engine(name: str) -> Engine:
    """The engine of this name; its library is imported only now."""
    if name not in ENGINES:
        raise OptionError(f"there is no engine {name!r}. {suggest(name, ENGINES)}")
    return ENGINES[name]()
