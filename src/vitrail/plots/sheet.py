"""Several methods side by side: targets as rows, methods as columns; sentences one below the other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitrail.attribution import Attribution
from vitrail.errors import OptionError
from vitrail.plots.captions import check_index, common_target
from vitrail.plots.overlay import sample_map
from vitrail.plots.panels import Panel, panel_figure
from vitrail.plots.picture import Picture, as_picture
from vitrail.plots.pieces import pieces
from vitrail.plots.sentence import Row, sentence_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 7
"""More panels than this in a single row are spread over several lines."""


def comparison_sheet(
    rows: Sequence[Sequence[Attribution]],
    image: Any = None,  # noqa: ANN401
    *,
    index: int = 0,
    row_titles: Sequence[str] | None = None,
) -> "Figure":
    """A figure of all attributions: for images a sheet that starts with the input, for text one line per method.

    Args:
        rows: one row per target or per image, one attribution per method.
        image: see `as_picture`; a list has one image for each row.
        row_titles: in place of the targets.
    """
    kinds = {attribution.kind for row in rows for attribution in row}
    if len(kinds) != 1 or not all(len(row) for row in rows):
        found = f"a mix of {' and '.join(sorted(kinds))}" if kinds else "none, or an empty row"
        raise OptionError(f"a sheet needs rows of attributions that are all images or all texts, but got {found}.")
    index = check_index(rows[0][0], index)
    titles = [common_target(row, index) for row in rows] if row_titles is None else list(row_titles)
    if len(titles) != len(rows):
        raise OptionError(f"{len(titles)} row titles were given for {len(rows)} rows. Give one for each.")
    return DRAW[kinds.pop()](rows, image, index, titles)


def _image_sheet(rows: Sequence[Sequence[Attribution]], image: Any, index: int, titles: list[str]) -> "Figure":  # noqa: ANN401
    images = image if isinstance(image, list) else [image] * len(rows)
    if len(images) != len(rows):
        raise OptionError(f"{len(images)} images were given for {len(rows)} rows. Give one, or one for each.")
    pictures = [None if one is None else as_picture(one, index) for one in images]
    grid = [_panels(row, picture, index) for row, picture in zip(rows, pictures, strict=True)]
    if len(grid) == 1:
        return panel_figure(_spread(grid[0]), pictures[0], heading=titles[0])
    return panel_figure(grid, pictures[0], row_titles=titles)


def _panels(row: Sequence[Attribution], picture: Picture | None, index: int) -> list[Panel | None]:
    start: list[Panel | None] = [] if picture is None else [Panel("input", picture=picture)]
    maps = (Panel(a.label, sample_map(a, index, picture), signed=a.signed, picture=picture) for a in row)
    return [*start, *maps]


def _spread(panels: list[Panel | None]) -> list[list[Panel | None]]:
    """The panels of a single row in lines of almost equal length."""
    lines = -(-len(panels) // LONGEST)
    length = -(-len(panels) // lines)
    return [panels[i : i + length] for i in range(0, len(panels), length)]


def _text_sheet(rows: Sequence[Sequence[Attribution]], image: Any, index: int, titles: list[str]) -> "Figure":  # noqa: ANN401
    groups = [(title, [Row(a.label, pieces(a, index)) for a in row]) for title, row in zip(titles, rows, strict=True)]
    return sentence_figure(groups, signed=any(a.signed for row in rows for a in row))


DRAW = {"image": _image_sheet, "text": _text_sheet}
