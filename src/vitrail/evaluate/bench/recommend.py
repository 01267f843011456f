"""Which explanation to trust on your model: methods ranked by how far the prediction depends on what they mark."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from vitrail.errors import InputError
from vitrail.evaluate.bench.bootstrap import Estimate
from vitrail.evaluate.bench.driver import Watch, run
from vitrail.evaluate.bench.engines import Engine, local
from vitrail.evaluate.bench.plan import Plan
from vitrail.evaluate.bench.store import reading
from vitrail.evaluate.bench.table import SIGNIFICANT, Table, common, tables

RANKED_BY = ("ABPC", "AOPC")
"""Pictures: the area between the two perturbation curves. Texts: the drop when the highest tokens are deleted."""


@dataclass(frozen=True)
class Rank:
    """A method's place.

    Args:
        estimate: its faithfulness with interval.
    """

    method: str
    estimate: Estimate

    @property
    def as_good(self) -> bool:
        """Whether it is the best, or not told from it."""
        return self.estimate.p is None or self.estimate.p >= SIGNIFICANT


@dataclass(frozen=True)
class Recommendation:
    """Methods from the most to the least faithful, and the whole table behind it."""

    measure: str
    ranks: tuple[Rank, ...]
    table: Table


def recommend(
    plan: Plan,
    path: str | Path | None = None,
    *,
    engine: Engine = local,
    watch: Watch = lambda progress: None,
) -> Recommendation:
    """Run a small plan under the protocol `vitrail`, and rank its methods.

    Args:
        plan: one model on one data set.
        path: a results file to keep and to go on with; by default none is kept.
        engine: who does the units.
        watch: is called after every unit.
    """
    return ranking(measure(plan, path, engine=engine, watch=watch)[0])


def measure(
    plan: Plan,
    path: str | Path | None = None,
    *,
    engine: Engine = local,
    watch: Watch = lambda progress: None,
) -> list[Table]:
    """Run a plan of one model, data set and protocol, and give its tables.

    Args:
        plan: what to run.
        path: a results file to keep and to go on with; by default none is kept.
        engine: who does the units.
        watch: is called after every unit.
    """
    if path is None:
        with TemporaryDirectory() as folder:
            return measure(plan, Path(folder) / "results.db", engine=engine, watch=watch)
    done = run(plan, path, engine=engine, watch=watch)
    return _own_tables(path, done.runs, tables(path, seed=plan.seed))


def _own_tables(path: str | Path, runs: Collection[str], made: list[Table]) -> list[Table]:
    """The tables of these runs, in a file that may hold others."""
    with reading(Path(path)) as store:
        mine = [common(about) for run, about in store.runs().items() if run in runs]
    return [table for table in made if table.about in mine]


def ranking(table: Table) -> Recommendation:
    """The methods of a table by its measure of faithfulness."""
    names = [column.name for column in table.columns]
    measure = next((name for name in RANKED_BY if name in names), None)
    if measure is None:
        raise InputError(f"{table.title} measures {', '.join(names)}; ranking needs {' or '.join(RANKED_BY)}.")
    place = names.index(measure)
    found = [Rank(method, e) for method, row in table.rows if (e := row[place]) is not None]
    ranks = sorted(found, key=lambda rank: -rank.estimate.value)
    return Recommendation(measure, tuple(ranks), table)
