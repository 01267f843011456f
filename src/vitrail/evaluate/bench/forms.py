"""The outputs of a results file: tables as Markdown, LaTeX or CSV, curves, and a ranking of methods.

The same results give the same bytes, also after an interrupted run. The best value is bold; `~` marks values that are
not significantly different from it (paired bootstrap, p >= 0.05). Curves show accuracy and probability while pixels or
tokens are removed. `recommend` ranks methods on a user's own model by how far the prediction depends on what they mark.
"""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import InputError, OptionError, suggest
from vitrail.evaluate.bench.driver import Watch, run
from vitrail.evaluate.bench.engines import Engine, local
from vitrail.evaluate.bench.measure import CurvePanel
from vitrail.evaluate.bench.measures import MEASURES
from vitrail.evaluate.bench.plan import PRIORS, Plan
from vitrail.evaluate.bench.store import reading
from vitrail.evaluate.bench.table import (
    SIGNIFICANT,
    Estimate,
    MeasuredMethod,
    Table,
    TableGroup,
    common,
    read_groups,
    tables,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def number(value: float) -> str:
    """As tables print it."""
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def close(estimate: Estimate) -> str:
    """The mark of values that are not significantly different from the best."""
    return "~" if estimate.p is not None and estimate.p >= SIGNIFICANT else ""


def _markdown(table: Table) -> str:
    def cell(estimate: Estimate | None) -> str:
        if estimate is None:
            return "–"
        value = f"**{number(estimate.value)}**" if estimate.best else f"{number(estimate.value)}{close(estimate)}"
        return f"{value} [{number(estimate.low)}, {number(estimate.high)}]"

    head = ["method", "n", *(_as_words(column.title) for column in table.columns)]
    cells = [head, ["---", *["---:"] * (len(head) - 1)]]
    cells += [[_as_code(name), count(row), *map(cell, row)] for name, row in table.rows]
    lines = [f"### {_as_words(table.title)}", "", *(f"| {' | '.join(line)} |" for line in cells), ""]
    return "\n".join([*lines, *(f"{_as_words(note)}  " for note in table.notes)]).rstrip() + "\n"


MARKUP = str.maketrans({c: f"\\{c}" for c in "\\`*<[|"})


def _as_words(text: str) -> str:
    """Text that Markdown shows as it is: names of models and data sets come from outside."""
    return " ".join(text.split()).translate(MARKUP)


def _as_code(text: str) -> str:
    """Text as code, between more backticks than it has in a row; a bar would end the cell of a table."""
    text = " ".join(text.split()).replace("|", "\\|")
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def count(row: Sequence[Estimate | None]) -> str:
    """Return the number of examples a method was measured on, as text."""
    return str(max((e.count for e in row if e is not None), default=0))


ESCAPES = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "\\": r"\textbackslash{}"})


def _latex(table: Table) -> str:
    def cell(estimate: Estimate | None) -> str:
        if estimate is None:
            return "--"
        value = rf"\textbf{{{number(estimate.value)}}}" if estimate.best else number(estimate.value)
        mark = r"\textsuperscript{$\sim$}" if close(estimate) else ""
        return rf"{value}{mark} \scriptsize[{number(estimate.low)}, {number(estimate.high)}]"

    arrows = {True: r" $\uparrow$", False: r" $\downarrow$", None: ""}
    head = [f"{column.name.translate(ESCAPES)}{arrows[column.higher]}" for column in table.columns]
    body = [" & ".join([name.translate(ESCAPES), count(row), *map(cell, row)]) + r" \\" for name, row in table.rows]
    caption = " ".join([f"{table.title}.", *table.notes]).translate(ESCAPES)
    places = "l" + "r" * (1 + len(head))
    lines = [r"\begin{table}", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{places}}}", r"\toprule"]
    lines += [" & ".join(["method", "n", *head]) + r" \\", r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _csv(table: Table) -> str:
    """One line for each number, with the title, so that tables can follow each other."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for name, row in table.rows:
        for column, estimate in zip(table.columns, row, strict=True):
            if estimate is not None:
                numbers = [f"{x:.6g}" for x in (estimate.value, estimate.low, estimate.high)]
                p = "" if estimate.p is None else f"{estimate.p:.4g}"
                words = map(_as_cell, (table.title, name, column.name))
                writer.writerow([*words, *numbers, estimate.count, p, int(estimate.best)])
    return buffer.getvalue()


def _as_cell(text: str) -> str:
    """Text that a spreadsheet does not compute: an apostrophe stands before what would be a formula."""
    text = " ".join(text.split())
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


TEMPLATE = "evaluate/bench/table.html"


def table_html(table: Table) -> str:
    """The table as a block of HTML, for notebooks."""
    from vitrail.plots.page import render as fill

    head = ["method", "n", *(column.title for column in table.columns)]
    rows = [(name, count(row), row) for name, row in table.rows]
    return str(fill(TEMPLATE, title=table.title, head=head, rows=rows, notes=table.notes, number=number, close=close))


CSV_HEAD = "table,method,metric,value,low,high,examples,p_against_best,best\n"
FORMS: dict[str, Callable[[Table], str]] = {"markdown": _markdown, "latex": _latex, "csv": _csv}


def render(made: Sequence[Table], form: str = "markdown") -> str:
    """The tables as text: `markdown`, `latex` or `csv`."""
    if form not in FORMS:
        raise OptionError(f"there is no form {form!r}. {suggest(form, FORMS)}")
    texts = [FORMS[form](table) for table in made]
    return CSV_HEAD + "".join(texts) if form == "csv" else "\n".join(texts)


@dataclass(frozen=True, eq=False)
class MeanCurve:
    """The mean of a curve over examples, with its 95 % interval at each place.

    The interval is the normal one of a mean, within what was measured.
    """

    places: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


Panels = dict[str, list[tuple[str, MeanCurve]]]
"""Kind of curve -> methods and their curves."""
PANELS: dict[str, tuple[str, CurvePanel]] = {
    panel.name: (measure.name, panel) for measure in MEASURES.values() for panel in measure.panels
}
"""Kind of curve -> the metric it is read from, and how it is drawn."""


NORMAL = 1.96
"""Standard errors on each side of a mean that make a 95 % interval."""


def _mean_curve(group: TableGroup, method: MeasuredMethod, metric: str, panel: CurvePanel) -> MeanCurve | None:
    """The mean over examples of a stored curve, which are read one after the other."""
    count, mean, spread = 0, np.zeros(1), np.zeros(1)
    least, most = np.full(1, np.inf), np.full(1, -np.inf)
    for _, (row,) in group.store.values(method.run, (metric,)):
        curve = np.asarray(panel.curve(row), dtype=np.float64)
        count += 1
        away = curve - mean
        mean = mean + away / count
        spread = spread + away * (curve - mean)  # Welford: the sum of squares around the mean
        least, most = np.minimum(least, curve), np.maximum(most, curve)
    if not count:
        return None
    width = NORMAL * np.sqrt(spread / max(count - 1, 1) / count)
    low, high = np.maximum(mean - width, least), np.minimum(mean + width, most)
    return MeanCurve(panel.places(group.protocol, len(mean)), mean, low, high)


def curves(path: str | Path) -> "Figure":
    """A figure with a row for each model, data set and protocol, and a panel for each kind of curve.

    Lines are means over examples, bands their 95 % intervals. Rows of chance, such as random scores, are dashed.

    Args:
        path: a results file.

    Returns:
        A figure of matplotlib.

    Raises:
        InputError: where no protocol of the file measures curves.
        MissingExtraError: where matplotlib is not installed.
    """
    from vitrail.plots.canvas import new_figure

    rows = panels_of(path)
    if not rows:
        raise InputError(f"{path} holds no curves: run a protocol that perturbs, such as chefer or vitrail, or sanity.")
    width = max(len(panels) for _, panels in rows)
    figure = new_figure(3.3 * width, 3.1 * len(rows))
    figure.set_layout_engine("constrained")
    axes: Any = figure.subplots(len(rows), width, squeeze=False)
    for (title, panels), line in zip(rows, axes, strict=True):
        for place in line[len(panels) :]:
            place.set_axis_off()
        for (name, series), place in zip(panels.items(), line, strict=False):
            _draw(place, name, series)
        line[0].set_title(f"{title}\n{next(iter(panels))}", loc="left", fontsize=9)
        line[0].legend(fontsize=7, frameon=False)
    return figure


def panels_of(path: str | Path) -> list[tuple[str, Panels]]:
    """The curves of every model, data set and protocol that has some."""
    with reading(Path(path)) as store:
        rows = [(group.title, _panels(group)) for group in read_groups(store)]
    return [(title, panels) for title, panels in rows if panels]


def _panels(group: TableGroup) -> Panels:
    found: Panels = {}
    for name, (metric, panel) in PANELS.items():
        measured = ((method.label, _mean_curve(group, method, metric, panel)) for method in group.methods)
        if series := [(label, curve) for label, curve in measured if curve is not None]:
            found[name] = series
    return found


CHANCE = {"color": "#6b6b6b", "linestyle": "--"}
"""How curves of chance are drawn: random scores, and positions."""


def _draw(place: "Axes", name: str, series: Sequence[tuple[str, MeanCurve]]) -> None:
    _, panel = PANELS[name]
    for number, (label, curve) in enumerate(series):
        look: dict[str, Any] = {"linestyle": ("-", "--", ":")[number // 10 % 3], "color": f"C{number % 10}"}
        look = CHANCE if label in PRIORS else look
        place.plot(curve.places, curve.mean, label=label, marker="o", markersize=2.2, linewidth=1.2, **look)
        place.fill_between(curve.places, curve.low, curve.high, color=look["color"], alpha=0.15, linewidth=0)
    place.set_title(name, loc="left", fontsize=9)
    place.set_xlabel(panel.across, fontsize=8)
    place.set_ylabel(panel.up, fontsize=8)
    place.tick_params(labelsize=7)
    place.spines[["top", "right"]].set_visible(False)
    place.grid(alpha=0.25, linewidth=0.5)


RANKED_BY = ("ABPC", "AOPC")
"""Pictures: the area between the two perturbation curves. Texts: the drop when the highest tokens are deleted."""


@dataclass(frozen=True)
class Rank:
    """A method, and its faithfulness with interval."""

    method: str
    estimate: Estimate

    @property
    def as_good(self) -> bool:
        """Return True if it is the best, or not significantly different from it."""
        return self.estimate.p is None or self.estimate.p >= SIGNIFICANT


@dataclass(frozen=True)
class Recommendation:
    """Methods from the most to the least faithful, and the table they come from."""

    measure: str
    ranks: tuple[Rank, ...]
    table: Table

    def __str__(self) -> str:
        """The methods in their order, one in a line."""
        lines = [f"{self.table.title}, by {self.measure}"]
        for place, rank in enumerate(self.ranks, 1):
            found, mark = rank.estimate, " ~" if rank.as_good and place > 1 else ""
            between = f"[{number(found.low)}, {number(found.high)}]"
            lines.append(f"{place}. {rank.method}: {number(found.value)} {between}{mark}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The table with its methods in their order, for notebooks."""
        order = [rank.method for rank in self.ranks]
        rows = sorted(self.table.rows, key=lambda row: order.index(row[0]) if row[0] in order else len(order))
        return table_html(replace(self.table, rows=tuple(rows)))


def recommend(
    plan: Plan, path: str | Path | None = None, *, engine: Engine = local, watch: Watch | None = None
) -> Recommendation:
    """Run a small plan of one model on one data set under the protocol `vitrail` as `measure`, and rank its methods."""
    return ranking(measure(plan, path, engine=engine, watch=watch)[0])


def measure(
    plan: Plan, path: str | Path | None = None, *, engine: Engine = local, watch: Watch | None = None
) -> list[Table]:
    """Run a plan of one model, data set and protocol as `run` does, and give its tables.

    Args:
        path: a results file to keep and to go on with; by default none is kept.
    """
    if path is None:
        with TemporaryDirectory() as folder:
            return measure(plan, Path(folder) / "results.db", engine=engine, watch=watch)
    done = run(plan, path, engine=engine, watch=watch)
    with reading(Path(path)) as store:  # which may hold the results of other plans
        mine = [common(about) for name, about in store.runs().items() if name in done.runs]
    return [table for table in tables(path, seed=plan.seed) if table.about in mine]


def ranking(table: Table) -> Recommendation:
    """The methods of a table by its measure of faithfulness."""
    names = [column.name for column in table.columns]
    measure = next((name for name in RANKED_BY if name in names), None)
    if measure is None:
        raise InputError(f"{table.title} measures {', '.join(names)}; ranking needs {' or '.join(RANKED_BY)}.")
    methods = [(method, row[names.index(measure)]) for method, row in table.rows if method not in PRIORS]
    found = [Rank(method, estimate) for method, estimate in methods if estimate is not None]
    return Recommendation(measure, tuple(sorted(found, key=lambda rank: -rank.estimate.value)), table)
