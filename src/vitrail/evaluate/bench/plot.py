"""Perturbation curves: what becomes of accuracy and probability while pixels or tokens are removed."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import InputError
from vitrail.evaluate.bench.measure import CurvePanel
from vitrail.evaluate.bench.measures import MEASURES
from vitrail.evaluate.bench.store import reading
from vitrail.evaluate.bench.table import MeasuredMethod, TableGroup, read_groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = tuple[np.ndarray, np.ndarray]
Panels = dict[str, list[tuple[str, Series]]]
"""Kind of curve -> methods and their curves."""
PANELS: dict[str, tuple[str, CurvePanel]] = {
    panel.name: (measure.name, panel) for measure in MEASURES.values() for panel in measure.panels
}
"""Kind of curve -> the metric it is read from, and how it is drawn."""


def _series(group: TableGroup, method: MeasuredMethod, metric: str, panel: CurvePanel) -> Series | None:
    """The mean over examples of a stored curve."""
    mean = _mean(panel.curve(row) for row in group.values(method, metric))
    return None if mean is None else (panel.places(group.protocol, len(mean)), mean)


def _mean(rows: Iterable[Sequence[float] | np.ndarray]) -> np.ndarray | None:
    """The mean of curves that are read one after the other."""
    total, count = np.zeros(1), 0
    for row in rows:
        total, count = total + np.asarray(row, dtype=np.float64), count + 1
    return total / count if count else None


def curves(path: str | Path) -> "Figure":
    """A figure with a row for each model, data set and protocol, and a panel for each kind of curve."""
    from matplotlib.figure import Figure

    rows = panels_of(path)
    if not rows:
        raise InputError(f"{path} holds no curves: run a protocol that perturbs, such as chefer or vitrail, or sanity.")
    width = max(len(panels) for _, panels in rows)
    figure = Figure(figsize=(4.2 * width, 3.6 * len(rows)), layout="constrained")
    axes: Any = figure.subplots(len(rows), width, squeeze=False)
    for (title, panels), line in zip(rows, axes, strict=True):
        for place in line[len(panels) :]:
            place.set_axis_off()
        for (name, series), place in zip(panels.items(), line, strict=False):
            _draw(place, name, series)
        line[0].set_title(f"{title}\n{next(iter(panels))}", loc="left", fontsize=9)
        line[0].legend(fontsize=7)
    return figure


def panels_of(path: str | Path) -> list[tuple[str, Panels]]:
    """The curves of every model, data set and protocol that has some."""
    with reading(Path(path)) as store:
        rows = [(group.title, _panels(group)) for group in read_groups(store)]
    return [(title, panels) for title, panels in rows if panels]


def _panels(group: TableGroup) -> Panels:
    found = {
        name: [(m.label, series) for m in group.methods if (series := _series(group, m, metric, panel)) is not None]
        for name, (metric, panel) in PANELS.items()
    }
    return {name: series for name, series in found.items() if series}


def _draw(place: "Axes", name: str, series: Sequence[tuple[str, Series]]) -> None:
    _, panel = PANELS[name]
    for number, (label, (x, y)) in enumerate(series):
        place.plot(
            x, y, label=label, marker="o", markersize=2.5, linewidth=1.2, linestyle=("-", "--", ":")[number // 10 % 3]
        )
    place.set_title(name, loc="left", fontsize=9)
    place.set_xlabel(panel.across)
    place.set_ylabel(panel.up)
    place.grid(alpha=0.3)
