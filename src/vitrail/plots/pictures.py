"""Maps over pictures.

A map lies over the picture and is clear where it is weak, so that nothing is drawn where nothing was found. Unsigned
maps lie over the picture in its colours; signed ones over the picture in grey, red for the target and blue against it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.attribution import Attribution, SeenPictures
from vitrail.errors import InputError, OptionError, VitrailError, suggest
from vitrail.models.taking import as_image
from vitrail.plots import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Picture = Float[np.ndarray, "h w 3"]


def as_picture(image: Any, index: int = 0) -> Picture:  # noqa: ANN401
    """The image with values from 0 to 1; whatever reaches beyond is stretched to that range.

    Args:
        image: a PIL image, an array [h, w], [h, w, 1], [h, w, 3] or [h, w, 4], or a tensor [3, h, w] or [b, 3, h, w].
        index: which image of a batch; a batch of one serves every sample.
    """
    if isinstance(image, Tensor):
        image = _last_channels(image, index)
    elif hasattr(image, "convert"):  # PIL is not imported only to ask whether this is one of its images
        from PIL import ImageOps

        deep = image.mode.startswith("I") or image.mode == "F"  # Pillow would clip them at 255
        image = ImageOps.exif_transpose(image)  # as models are shown it
        image = np.asarray(image if deep else image.convert("RGB"))
    elif not isinstance(image, np.ndarray):
        raise InputError(
            f"an image is a PIL image, an array [h, w, 3] or a tensor [3, h, w] or [b, 3, h, w], not "
            f"{type(image).__name__}. Open a file with PIL.Image.open(path)."
        )
    image = image[..., None] if image.ndim == 2 else image
    if image.ndim != 3 or image.shape[2] not in (1, 3, 4):
        raise InputError(f"an array image is [h, w, 3], but this one is {list(image.shape)}. Put the channels last.")
    image = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image[..., :3]
    if image.dtype == np.uint8:
        return image / 255
    image = image.astype(np.float64)
    within = image.min() >= 0 and image.max() <= 1
    return image if within else canvas.stretched(torch.from_numpy(image)).numpy()


def _last_channels(image: Tensor, index: int) -> np.ndarray:
    """The chosen image of a batch, with channels last as pictures have them."""
    if image.ndim == 4:
        if 1 < image.shape[0] <= index:
            raise InputError(f"sample {index} is drawn, but the batch holds {image.shape[0]} images.")
        image = image[index if image.shape[0] > 1 else 0]
    if image.ndim != 3 or image.shape[0] not in (1, 3, 4):
        raise InputError(f"a tensor image is [3, h, w] or [b, 3, h, w], but this one is {list(image.shape)}.")
    plain = image.detach().cpu()
    return (plain.double() if plain.is_floating_point() else plain).permute(1, 2, 0).numpy()


MARGIN, GAP, BAR = 0.12, 0.08, 0.36
TITLE, HEADING, LINE = 8.0, 10.0, 1.3
BOX = "#00e5ff"
STRONGEST = 0.85
"""How opaque a map is where it is strongest."""
WEAK = 0.7
"""The power by which a signed map gets clear: its colours are pale where it is weak already."""
GREY_SHARE = 0.6
"""Below a signed map, the share of the grey picture; the rest is white."""
SHARPEST = 400
"""The most dots per inch: up to there a figure keeps every pixel of its picture."""


@dataclass(frozen=True)
class Panel:
    """One map and its title; without values, the picture alone.

    Args:
        values: within [-1, 1] where signed, within [0, 1] where not.
        picture: in place of the figure's.
        limits: the scores at the two ends of the colour bar, which are written there where one map has the bar alone.
        box: drawn around something: its middle, width and height as shares of the picture's.
    """

    title: str
    values: Float[Tensor, "h w"] | None = None
    signed: bool = False
    alpha: float | None = None
    cmap: str | None = None
    picture: Picture | None = None
    limits: tuple[float, float] | None = None
    box: tuple[float, float, float, float] | None = None

    @property
    def colours(self) -> str:
        """The name of its colour map."""
        return self.cmap or (canvas.SIGNED_MAP if self.signed else canvas.UNSIGNED_MAP)


@dataclass(frozen=True)
class PanelLayout:
    """The places of all parts of a figure, in inches.

    Args:
        tops: the upper edge of each row of panels.
        bottom: the lower edge of the last one.
    """

    cell: tuple[float, float]
    left: float
    width: float
    tops: list[float]
    bottom: float
    heading: list[str]
    bold: int
    titles: list[list[str]]


Rows = Sequence[Sequence[Panel | None]]


def panel_figure(
    rows: Rows,
    picture: Picture | None = None,
    *,
    row_titles: Sequence[str] = (),
    heading: str = "",
    side: float = 1.5,
    colorbar: bool = True,
) -> "Figure":
    """A figure of panels; the same titles in every row are written once.

    Args:
        picture: drawn with every map.
        row_titles: written upwards at the left.
        side: inches of a square panel; others keep its area.
        colorbar: whether a bar below says what the colours mean.
    """
    plan = _plan(rows, picture, row_titles, heading, side)
    maps = [p for row in rows for p in row if p is not None and p.values is not None] if colorbar else []
    figure = canvas.new_figure(plan.width, plan.bottom + (BAR if maps else 0) + MARGIN)
    if picture is not None:
        figure.set_dpi(min(max(canvas.DPI, picture.shape[1] / plan.cell[0]), SHARPEST))
    for number, line in enumerate(plan.heading):
        style = {"weight": "bold", "color": canvas.INK} if number < plan.bold else {"color": canvas.GREY}
        top = MARGIN + (number + 0.8) * HEADING * LINE / canvas.POINTS
        canvas.write(figure, line, plan.width / 2, top, fontsize=HEADING, ha="center", va="baseline", **style)
    for number, row in enumerate(rows):
        if row_titles:
            text, middle = _upright(row_titles[number], plan.cell), plan.tops[number] + plan.cell[1] / 2
            canvas.write(figure, text, plan.left - GAP, middle, fontsize=TITLE, rotation=90, ha="right", va="center")
        for column, (item, title) in enumerate(zip(row, plan.titles[number], strict=True)):
            if item is not None:
                left = plan.left + column * (plan.cell[0] + GAP)
                axes = canvas.panel(figure, left, plan.tops[number], *plan.cell)
                draw_panel(axes, item, picture if item.picture is None else item.picture)
                _write_title(figure, title, left + plan.cell[0] / 2, plan.tops[number])
    _draw_bars(figure, maps, plan.bottom + 0.12)
    return figure


def _write_title(figure: "Figure", title: str, middle: float, bottom: float) -> None:
    """Write the lines one by one: only so do titles with and without descenders stand at the same height."""
    for number, line in enumerate(reversed(title.split("\n") if title else [])):
        height = bottom - 0.055 - number * TITLE * LINE / canvas.POINTS
        canvas.write(figure, line, middle, height, fontsize=TITLE, ha="center", va="baseline")


def _upright(title: str, cell: tuple[float, float]) -> str:
    return canvas.wrap(title, int(cell[1] * canvas.POINTS / (TITLE * 0.6)))


def draw_panel(axes: "Axes", item: Panel, picture: Picture | None) -> None:
    """Draw the picture, and the map over it."""
    from matplotlib.patches import Rectangle

    if picture is not None:
        ground = picture if item.values is None else background(picture, signed=item.signed)
        axes.imshow(ground, aspect="auto", alpha=1.0)
    if item.values is not None:
        values, low = item.values.numpy(), -1.0 if item.signed else 0.0
        alpha = item.alpha
        if alpha is None:
            alpha = 1.0 if picture is None else opacity(values, signed=item.signed)
        axes.imshow(values, aspect="auto", alpha=alpha, cmap=item.colours, vmin=low, vmax=1.0)
    axes.spines[:].set(visible=True, color=canvas.FAINT, linewidth=0.6)
    if item.box is not None:
        x, y, width, height = item.box
        corner = (x - width / 2, 1 - y - height / 2)  # shares of the panel, counted from below
        look = {"fill": False, "edgecolor": BOX, "linewidth": 1.5}
        axes.add_patch(Rectangle(corner, width, height, transform=axes.transAxes, **look))


def opacity(values: np.ndarray, *, signed: bool) -> np.ndarray:
    """Return how opaque a map is at each place: clear at zero and where the model saw nothing."""
    strength = np.abs(values).clip(0, 1)
    return np.nan_to_num(STRONGEST * (strength**WEAK if signed else strength), nan=0.0)


def background(picture: Picture, *, signed: bool) -> Picture:
    """Return what lies below a map: the picture, in light grey where the colours of the map say for and against."""
    if not signed:
        return picture
    grey = (picture @ np.array([0.299, 0.587, 0.114]))[..., None].repeat(3, axis=2)
    return GREY_SHARE * grey + 1 - GREY_SHARE


def _plan(rows: Rows, picture: Picture | None, row_titles: Sequence[str], heading: str, side: float) -> PanelLayout:
    shapes = [p.values.shape for row in rows for p in row if p is not None and p.values is not None]
    height, width = picture.shape[:2] if picture is not None else shapes[0]
    stretch = (width / height) ** 0.5
    cell = (side * stretch, side / stretch)
    columns = max(len(row) for row in rows)
    letters = int(cell[0] * canvas.POINTS / (TITLE * 0.58))
    titles = [[canvas.wrap(p.title, letters) if p is not None and p.title else "" for p in row] for row in rows]
    if len(rows) > 1 and all(row == titles[0] for row in titles):
        titles[1:] = [["" for _ in row] for row in rows[1:]]
    upright = max((_upright(title, cell).count("\n") + 1 for title in row_titles), default=0)
    left = MARGIN + (upright * TITLE * LINE / canvas.POINTS + GAP if row_titles else 0)
    room = left + columns * (cell[0] + GAP) - GAP
    parts = [_fit(line, room).split("\n") for line in heading.split("\n") if line]
    lines = [line for part in parts for line in part]
    tops, top = [], MARGIN + len(lines) * HEADING * LINE / canvas.POINTS + (GAP if lines else 0)
    for row in titles:
        top += max((title.count("\n") + 1 if title else 0 for title in row), default=0) * TITLE * LINE / canvas.POINTS
        tops.append(top)
        top += cell[1] + GAP
    return PanelLayout(cell, left, room + MARGIN, tops, top - GAP, lines, len(parts[0]) if parts else 0, titles)


def _fit(line: str, room: float) -> str:
    width = canvas.text_width(line, HEADING, "bold")
    return line if width <= room else canvas.wrap(line, max(8, int(len(line) * room / width)))


def _draw_bars(figure: "Figure", maps: Sequence[Panel], top: float) -> None:
    """Draw one colour bar for every colour map in use, side by side, with the scores at its ends if one map has it."""
    used = {item.colours: [other for other in maps if other.colours == item.colours] for item in maps}
    width = min(1.8, figure.get_size_inches()[0] / max(len(used), 1) - 3 * MARGIN)
    step = width + 4 * MARGIN
    start = figure.get_size_inches()[0] / 2 - (len(used) * step - 4 * MARGIN) / 2
    for number, (cmap, (first, *others)) in enumerate(used.items()):
        axes = canvas.panel(figure, start + number * step, top, width, 0.09)
        least, most = "least", None
        if first.limits is not None and not others:
            least, most = f"least {first.limits[0]:.2g}", first.limits[1]
        canvas.colour_bar(axes, cmap, ticks=canvas.bar_ticks(least, most, signed=first.signed))


PATCH, OVERLAY_SIDE = 16, 3.6


def overlay(
    attribution: Attribution,
    image: Any = None,  # noqa: ANN401
    *,
    index: int = 0,
    alpha: float | None = None,
    cmap: str | None = None,
    title: str | None = None,
    colorbar: bool = True,
) -> "Figure":
    """A figure with the map of one sample over the image, and a colour bar.

    Args:
        image: see `as_picture`; None draws over the photograph that was explained, else over what the model saw, or
            the map alone where that is gone. Over a photograph of which the model saw a part, the map lies on that
            part, where the preprocessing is known; a picture of another aspect ratio than the model's is refused
            where it is not.
        alpha: how opaque the map is, the same everywhere; None makes it clear where it is weak.
        cmap: one of matplotlib's colour maps.
        title: in place of the method and its target; empty for none.
        colorbar: whether a bar below says what the colours mean.
    """
    index = canvas.check_index(attribution, index)
    if alpha is not None and not 0 <= alpha <= 1:
        raise OptionError(f"alpha={alpha}, but it says how opaque a layer is: from 0 to 1.")
    if cmap is not None:
        canvas.require_matplotlib()
        from matplotlib import colormaps

        if cmap not in colormaps:
            raise OptionError(f"matplotlib has no colour map {cmap!r}. {suggest(cmap, colormaps)}")
    view = view_of(attribution, image, index)
    values = values_of(attribution, index, view.picture, view.region)
    largest = float(values.abs().max())
    limits = (-largest, largest) if attribution.signed else (float(values.min()), float(values.max()))
    scaled = placed(canvas.scaled(values, signed=attribution.signed), view.picture, view.region)
    shown = Panel("", scaled, signed=attribution.signed, alpha=alpha, cmap=cmap, limits=limits)
    heading = f"{attribution.label}\n{attribution.title(index)}" if title is None else title
    return panel_figure([[shown]], view.picture, heading=heading, side=OVERLAY_SIDE, colorbar=colorbar)


Region = tuple[float, float, float, float]
"""A part of a picture: its left, upper, right and lower edge in pixels of the picture."""


@dataclass(frozen=True)
class PictureView:
    """The background of the maps of a sample.

    Args:
        picture: None where there is none, and the map is drawn alone.
        region: the part of the picture that the model saw; None is all of it.
    """

    picture: Picture | None = None
    region: Region | None = None


LARGEST = 2400
"""Pixels of the longer side of a photograph that is drawn; larger ones are made smaller."""


def view_of(attribution: Attribution, image: Any, index: int) -> PictureView:  # noqa: ANN401
    """Return the picture given, else the photograph that was explained, else what the model saw where that is known."""
    if image is not None:
        return PictureView(as_picture(image, index), region_of(attribution, image, index))
    seen = attribution.seen
    saw = None if seen is None else seen(index)
    if seen is None or saw is None:
        return PictureView()
    return _photograph(seen, saw, index) or PictureView(as_picture(saw))


def _photograph(seen: SeenPictures, saw: Any, index: int) -> PictureView | None:  # noqa: ANN401
    """Return the photograph that was explained; None where it is not known or shows something else by now."""
    given = seen.photograph(index)
    if given is None or seen.preprocess is None:
        return None
    try:
        photograph = as_image(given)
    except VitrailError:  # the file is gone
        return None
    if max(photograph.size) > LARGEST:
        photograph = photograph.copy()
        photograph.thumbnail((LARGEST, LARGEST))
    picture = as_picture(photograph)
    region = _seen_part(picture, saw, seen.preprocess)
    return None if region is None else PictureView(picture, _part(region, picture))


def _part(region: Region, picture: Picture) -> Region | None:
    """Return a region, or None where it is all of the picture."""
    return None if region == (0.0, 0.0, picture.shape[1], picture.shape[0]) else region


NEAR = 3 / 255
"""Pictures of one size show the same if they differ by less than this on average."""


def region_of(attribution: Attribution, image: Any, index: int) -> Region | None:  # noqa: ANN401
    """The part of a given picture that the model saw; None is all of it.

    Raises:
        InputError: where the part is not known, and the picture has another aspect ratio than what the model saw.
    """
    if image is None or attribution.size is None or attribution.kind != "image":
        return None
    picture, seen = as_picture(image, index), attribution.seen
    if seen is not None and seen.preprocess is not None and seen(index) is not None:
        found = _seen_part(picture, seen(index), seen.preprocess)
        if found is not None:
            return _part(found, picture)
    (high, wide), (height, width) = picture.shape[:2], attribution.size
    if (picture == picture[0, 0]).all():  # of one colour: no place in it could be a wrong one
        return None
    if abs(wide * height / high - width) > max(1.0, width / 100):
        raise InputError(
            f"the picture has {wide} x {high} pixels, but the model saw {width} x {height}, another aspect ratio: a "
            "part was cut off, or all was squeezed, so the map would lie in wrong places. Leave the picture out, or "
            "draw over what the model saw, such as attribution.plot(inputs). If the whole picture was squeezed, pass "
            f"image.resize(({width}, {height}))."
        )
    return None


def _seen_part(picture: Picture, saw: Any, preprocess: Any) -> Region | None:  # noqa: ANN401
    """The part of a picture that a model sees, if the picture is the one that it saw; else None."""
    from PIL import Image

    whole = (0.0, 0.0, float(picture.shape[1]), float(picture.shape[0]))
    if not isinstance(saw, Tensor) and _is_near(picture, as_picture(saw)):
        return whole  # it is what the model saw, not the photograph
    photograph = Image.fromarray((picture.clip(0, 1) * 255).round().astype(np.uint8))
    inputs, made = preprocess(photograph)
    if isinstance(saw, Tensor):
        plain = saw.detach().cpu().double()
        same = inputs is not None and inputs[0].shape == plain.shape and _differ(inputs[0].double(), plain) < 2 * NEAR
    else:
        same = made is not None and _is_near(as_picture(made), as_picture(saw))
    return measured_region(preprocess, picture.shape[0], picture.shape[1]) if same else None


def _is_near(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and float(np.abs(one - other).mean()) < NEAR


def _differ(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().mean() / other.std().clamp(min=1e-6))


def measured_region(preprocess: Any, height: int, width: int) -> Region | None:  # noqa: ANN401
    """The part that a model sees of pictures of this size, measured: it is shown a picture of the coordinates."""
    from PIL import Image

    ramp = np.full((height, width, 3), 255.0)
    ramp[..., 0] = np.linspace(0, 255, width)[None]
    ramp[..., 1] = np.linspace(0, 255, height)[:, None]
    seen = np.asarray(preprocess(Image.fromarray(ramp.round().astype(np.uint8)))[1].convert("RGB"), dtype=np.float64)
    inside = seen[..., 2] > 250  # a border that preprocessing adds is of another colour
    across = _edges(seen[..., 0], inside, width)
    down = _edges(seen[..., 1].T, inside.T, height)
    return None if across is None or down is None else (across[0], down[0], across[1], down[1])


def _edges(levels: np.ndarray, inside: np.ndarray, length: int) -> tuple[float, float] | None:
    """Return the first and last edge of the seen part along a side, by a line through the coordinates seen there."""
    columns = np.flatnonzero(inside.any(axis=0))
    if length < 2 or len(columns) < 2:
        return 0.0, float(length)
    places = np.array([levels[inside[:, column], column].mean() for column in columns]) / 255 * (length - 1) + 0.5
    cut = len(columns) // 10  # interpolation bends the ends
    middle = slice(cut, len(columns) - cut)
    slope, start = np.polyfit(columns[middle] + 0.5, places[middle], 1)
    return (float(start), float(start + slope * levels.shape[1])) if slope > 0 else None


def placed(values: Float[Tensor, "*r u v"], picture: Picture | None, region: Region | None) -> Float[Tensor, "*r y x"]:
    """Maps of a part of a picture as maps of the whole picture, NaN where the model saw nothing."""
    if picture is None or region is None:
        return values
    left, top = round(region[0]), round(region[1])
    (height, width), (high, wide) = picture.shape[:2], values.shape[-2:]
    whole = values.new_full((*values.shape[:-2], height, width), float("nan"))
    rows = slice(max(0, top), min(height, top + high))
    columns = slice(max(0, left), min(width, left + wide))
    part = values[..., rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
    whole[..., rows, columns] = part
    return whole


def map_size(attribution: Attribution, picture: Picture | None, region: Region | None = None) -> tuple[int, int]:
    """Height and width of the map: those of the region, else of the picture, else of what the model saw."""
    if region is not None:
        left, top, right, bottom = map(round, region)
        return max(1, bottom - top), max(1, right - left)
    if picture is not None:
        return picture.shape[0], picture.shape[1]
    rows, columns = attribution.grid or (1, 1)
    return attribution.size or (rows * PATCH, columns * PATCH)


def values_of(
    attribution: Attribution, index: int, picture: Picture | None, region: Region | None = None
) -> Float[Tensor, "y x"]:
    """The map of one sample at the size of the picture or of its region, in its own numbers."""
    shown = replace(attribution, scores=attribution.shown)
    return shown.heatmap(map_size(attribution, picture, region))[index].detach().double().cpu()


def sample_map(
    attribution: Attribution, index: int, picture: Picture | None, region: Region | None = None
) -> Float[Tensor, "h w"]:
    """The map of one sample at the picture's size, within [-1, 1] where it is signed and [0, 1] where not.

    Args:
        region: the part of the picture that the model saw; elsewhere the map is NaN.
    """
    values = values_of(attribution, index, picture, region)
    return placed(canvas.scaled(values, signed=attribution.signed), picture, region)


def maps_of(attribution: Attribution, rows: Float[Tensor, "r n"], size: tuple[int, int]) -> Float[Tensor, "r h w"]:
    """Rows of scores, one per patch, as maps of this size."""
    without = dict.fromkeys(("pixels", "layers", "heads", "own", "readout", "valid"))  # they have other batches
    return replace(attribution, scores=rows.detach().double().cpu(), **without).heatmap(size)


def thumbnail(picture: Picture, *, side: int = 160, quality: int = 82, form: str = "JPEG") -> bytes:
    """The picture as a file of one of Pillow's formats, whose longer side is short."""
    from PIL import Image

    image = Image.fromarray((picture.clip(0, 1) * 255).round().astype(np.uint8))
    image.thumbnail((side, side))
    sink = BytesIO()
    image.save(sink, form, quality=quality)
    return sink.getvalue()


def with_map(values: Float[Tensor, "h w"], picture: Picture, *, signed: bool) -> Picture:
    """The picture with a map of its size, as `scaled` gives it, over it as in `overlay`."""
    upper = opacity(values.numpy(), signed=signed)[..., None]
    return upper * _coloured(values, signed=signed) + (1 - upper) * background(picture, signed=signed)


def _coloured(values: Float[Tensor, "h w"], *, signed: bool) -> Picture:
    """Return the colours of a map that `scaled` gives."""
    canvas.require_matplotlib()
    from matplotlib import colormaps

    colours = colormaps[canvas.SIGNED_MAP if signed else canvas.UNSIGNED_MAP]
    return colours(values.numpy() / 2 + 0.5 if signed else values.numpy())[..., :3]


def map_picture(attribution: Attribution, image: Any = None, *, index: int = 0) -> bytes:  # noqa: ANN401
    """Return a PNG of the map alone, of the picture's size and clear where the map is weak, as it lies over a picture.

    Args:
        image: the picture that it will lie over, for its size; see `overlay`.
    """
    from PIL import Image

    if attribution.kind != "image":
        raise OptionError("a map alone is drawn of an image; a text is drawn by its words: leave map_only out.")
    index = canvas.check_index(attribution, index)
    view = view_of(attribution, image, index)
    values = sample_map(attribution, index, view.picture, view.region)
    signed = attribution.signed
    clear = opacity(values.numpy(), signed=signed)[..., None]
    layers = np.concatenate([_coloured(values, signed=signed), clear], axis=2)
    sink = BytesIO()
    Image.fromarray((layers.clip(0, 1) * 255).round().astype(np.uint8), "RGBA").save(sink, "PNG")
    return sink.getvalue()


def signed_thumbnail(scores: Float[Tensor, "y x"], picture: Picture) -> bytes:
    """The map over the picture as a JPEG: red above zero, blue below."""
    size = (picture.shape[0], picture.shape[1])
    values = F.interpolate(scores[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]
    return thumbnail(with_map(canvas.symmetric(values), picture, signed=True))
