"""Maps side by side in rows and columns, with titles that fit and one colour bar for each scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from vitrail.plots.canvas import FAINT, GREY, INK, POINTS, colour_bar, new_figure, panel, text_width, write
from vitrail.plots.captions import wrap
from vitrail.plots.colours import SIGNED_MAP, UNSIGNED_MAP
from vitrail.plots.picture import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN, GAP, BAR = 0.12, 0.08, 0.36
TITLE, HEADING, LINE = 8.0, 10.0, 1.3
SIGNED_ALPHA, UNSIGNED_ALPHA = 0.35, 0.55
SIGNED_TICKS = ((-1.0, "against"), (0.0, "0"), (1.0, "for"))
UNSIGNED_TICKS = ((0.0, "least"), (1.0, "most"))


@dataclass(frozen=True)
class Panel:
    """One map and its title; without values, the picture alone.

    Args:
        values: within [-1, 1] where signed, within [0, 1] where not.
        picture: in place of the figure's.
    """

    title: str
    values: Float[Tensor, "h w"] | None = None
    signed: bool = False
    alpha: float | None = None
    cmap: str | None = None
    picture: Picture | None = None

    @property
    def colours(self) -> str:
        """The name of its colour map."""
        return self.cmap or (SIGNED_MAP if self.signed else UNSIGNED_MAP)


@dataclass(frozen=True)
class Plan:
    """Where everything goes, in inches."""

    cell: tuple[float, float]
    columns: int
    left: float
    heading: list[str]
    bold: int
    titles: list[list[str]]

    @property
    def width(self) -> float:
        """The figure's width."""
        return self.left + self.columns * (self.cell[0] + GAP) - GAP + MARGIN

    def title_height(self, row: int) -> float:
        """The room above a row for its longest title."""
        lines = max((title.count("\n") + 1 if title else 0 for title in self.titles[row]), default=0)
        return lines * TITLE * LINE / POINTS

    def top(self, row: int) -> float:
        """The upper edge of a row of panels."""
        heading = len(self.heading) * HEADING * LINE / POINTS + (GAP if self.heading else 0)
        above = sum(self.title_height(r) + self.cell[1] + GAP for r in range(row))
        return MARGIN + heading + above + self.title_height(row)


def panel_figure(
    rows: Sequence[Sequence[Panel | None]],
    picture: Picture | None = None,
    *,
    row_titles: Sequence[str] = (),
    heading: str = "",
    side: float = 1.5,
) -> "Figure":
    """A figure of panels; the same titles in every row are written once.

    Args:
        picture: drawn with every map.
        row_titles: written upwards at the left.
        side: inches of a square panel; others keep its area.
    """
    plan = _plan(rows, picture, row_titles, heading, side)
    used = {p.colours: p.signed for row in rows for p in row if p is not None and p.values is not None}
    figure = new_figure(plan.width, plan.top(len(rows) - 1) + plan.cell[1] + (BAR if used else 0) + MARGIN)
    _write_heading(figure, plan)
    for number, row in enumerate(rows):
        if row_titles:
            text, middle = _upright(row_titles[number], plan.cell), plan.top(number) + plan.cell[1] / 2
            write(figure, text, plan.left - GAP, middle, fontsize=TITLE, rotation=90, ha="right", va="center")
        for column, (item, title) in enumerate(zip(row, plan.titles[number], strict=True)):
            if item is not None:
                left = plan.left + column * (plan.cell[0] + GAP)
                axes = panel(figure, left, plan.top(number), *plan.cell)
                draw_panel(axes, item, picture if item.picture is None else item.picture)
                _write_title(figure, title, left + plan.cell[0] / 2, plan.top(number))
    _draw_bars(figure, used, plan.top(len(rows) - 1) + plan.cell[1] + 0.12)
    return figure


def _write_heading(figure: "Figure", plan: Plan) -> None:
    for number, line in enumerate(plan.heading):
        style = {"weight": "bold", "color": INK} if number < plan.bold else {"color": GREY}
        top = MARGIN + (number + 0.8) * HEADING * LINE / POINTS
        write(figure, line, plan.width / 2, top, fontsize=HEADING, ha="center", va="baseline", **style)


def _write_title(figure: "Figure", title: str, middle: float, bottom: float) -> None:
    """Write the lines one by one: only so do titles with and without descenders stand at the same height."""
    for number, line in enumerate(reversed(title.split("\n") if title else [])):
        height = bottom - 0.055 - number * TITLE * LINE / POINTS
        write(figure, line, middle, height, fontsize=TITLE, ha="center", va="baseline")


def _upright(title: str, cell: tuple[float, float]) -> str:
    return wrap(title, int(cell[1] * POINTS / (TITLE * 0.6)))


def draw_panel(axes: "Axes", item: Panel, picture: Picture | None) -> None:
    """Draw the map below the picture where it is signed, above it where it is not."""
    low = -1.0 if item.signed else 0.0
    layers = []
    if item.values is not None:
        layers.append((item.values.numpy(), {"cmap": item.colours, "vmin": low, "vmax": 1.0}))
    if picture is not None:
        layers.insert(len(layers) if item.signed else 0, (picture, {}))
    upper = item.alpha if item.alpha is not None else SIGNED_ALPHA if item.signed else UNSIGNED_ALPHA
    for number, (values, style) in enumerate(layers):
        axes.imshow(values, aspect="auto", alpha=upper if number else 1.0, **style)
    axes.spines[:].set(visible=True, color=FAINT, linewidth=0.6)


def _plan(
    rows: Sequence[Sequence[Panel | None]],
    picture: Picture | None,
    row_titles: Sequence[str],
    heading: str,
    side: float,
) -> Plan:
    shapes = [p.values.shape for row in rows for p in row if p is not None and p.values is not None]
    height, width = picture.shape[:2] if picture is not None else shapes[0]
    stretch = (width / height) ** 0.5
    cell = (side * stretch, side / stretch)
    columns = max(len(row) for row in rows)
    letters = int(cell[0] * POINTS / (TITLE * 0.58))
    titles = [[wrap(p.title, letters) if p is not None and p.title else "" for p in row] for row in rows]
    if len(rows) > 1 and all(row == titles[0] for row in titles):
        titles[1:] = [["" for _ in row] for row in rows[1:]]
    upright = max((_upright(title, cell).count("\n") + 1 for title in row_titles), default=0)
    left = MARGIN + (upright * TITLE * LINE / POINTS + GAP if row_titles else 0)
    room = left + columns * (cell[0] + GAP) - GAP
    parts = [_fit(line, room).split("\n") for line in heading.split("\n") if line]
    return Plan(cell, columns, left, [line for part in parts for line in part], len(parts[0]) if parts else 0, titles)


def _fit(line: str, room: float) -> str:
    width = text_width(line, HEADING, "bold")
    return line if width <= room else wrap(line, max(8, int(len(line) * room / width)))


def _draw_bars(figure: "Figure", used: dict[str, bool], top: float) -> None:
    """Draw one colour bar for every colour map in use, side by side in the middle."""
    width = min(1.5, figure.get_size_inches()[0] / max(len(used), 1) - 3 * MARGIN)
    step = width + 4 * MARGIN
    start = figure.get_size_inches()[0] / 2 - (len(used) * step - 4 * MARGIN) / 2
    for number, (cmap, signed) in enumerate(used.items()):
        axes = panel(figure, start + number * step, top, width, 0.09)
        colour_bar(axes, cmap, ticks=SIGNED_TICKS if signed else UNSIGNED_TICKS)
