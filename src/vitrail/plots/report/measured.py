"""A report of a results file of the bench."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vitrail.evaluate.bench.plot import Panels, panels_of
from vitrail.evaluate.bench.table import Table, tables


@dataclass(frozen=True, eq=False)
class Measured:
    """The tables and curves of a results file.

    Args:
        source: the file's name.
        panels: for each model, data set and protocol, by its title: kind of curve -> methods and their curves.
    """

    source: str
    made: datetime
    tables: tuple[Table, ...]
    panels: dict[str, Panels]

    def to_html(self) -> str:
        """The page."""
        from vitrail.plots.report.measured_page import to_page

        return to_page(self)

    def save(self, path: str | Path) -> Path:
        """Write the page; it needs no other file."""
        from vitrail.storage import write_bytes

        return write_bytes(Path(path), self.to_html().encode())


def of_results(path: str | Path, *, seed: int = 0) -> Measured:
    """A report of what `vitrail bench run` measured.

    Args:
        seed: of the bootstrap, as in `vitrail bench table`.
    """
    made = tables(path, seed=seed)
    return Measured(Path(path).name, datetime.now(UTC), tuple(made), dict(panels_of(path)))
