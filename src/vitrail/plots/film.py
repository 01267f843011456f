"""A film of explanations: evenly spaced frames side by side, or all of them one after the other."""

from io import BytesIO
from typing import TYPE_CHECKING, Any

from vitrail.errors import OptionError
from vitrail.plots.canvas import require_matplotlib
from vitrail.plots.captions import check_index, sample_target
from vitrail.plots.overlay import sample_map
from vitrail.plots.panels import Panel, panel_figure
from vitrail.plots.picture import as_picture
from vitrail.plots.pieces import pieces
from vitrail.plots.sentence import Row, sentence_figure
from vitrail.tools.film import FRAMES, Transfer

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

LINE, SIDE = 4, 2.2
"""Pictures in a line of the strip; inches of a frame of the film."""
MILLISECONDS, LAST = 160, 1600


def film_strip(
    film: Transfer,
    image: Any = None,  # noqa: ANN401
    *,
    index: int = 0,
    frames: int = FRAMES,
    title: str | None = None,
) -> "Figure":
    """A figure of evenly spaced steps, each map divided by its own largest magnitude."""
    index = check_index(film.attributions[0], index)
    if frames < 2:
        raise OptionError(f"frames={frames}, but a strip shows at least the first step and the last.")
    return _figure(film, _spaced(len(film), frames), image, index, title, side=1.5)


def film_gif(film: Transfer, image: Any = None, *, index: int = 0, title: str | None = None) -> bytes:  # noqa: ANN401
    """All steps as an animated GIF that starts over after its last picture."""
    index = check_index(film.attributions[0], index)
    pictures = [_pixels(_figure(film, [step], image, index, title, side=SIDE)) for step in range(len(film))]
    size = max(p.width for p in pictures), max(p.height for p in pictures)
    shown = [_on_white(picture, size) for picture in pictures]
    sink = BytesIO()
    durations = [MILLISECONDS] * (len(shown) - 1) + [LAST]
    shown[0].save(sink, "GIF", save_all=True, append_images=shown[1:], duration=durations, loop=0)
    return sink.getvalue()


def _spaced(count: int, frames: int) -> list[int]:
    frames = min(frames, count)
    return sorted({round(i * (count - 1) / max(frames - 1, 1)) for i in range(frames)})


def _figure(film: Transfer, steps: list[int], image: Any, index: int, title: str | None, *, side: float) -> "Figure":  # noqa: ANN401
    require_matplotlib()
    heading = str(sample_target(film.attributions[0], index)) if title is None else title
    if film.attributions[0].kind == "text":
        rows = [Row(_caption(film, step, index), pieces(film.attributions[step], index)) for step in steps]
        return sentence_figure([(heading, rows)], signed=True)
    picture = None if image is None else as_picture(image, index)
    start = [Panel("input", picture=picture)] if picture is not None and len(steps) > 1 else []
    maps = [
        Panel(_caption(film, step, index), sample_map(film.attributions[step], index, picture), signed=True)
        for step in steps
    ]
    panels = [*start, *maps]
    lines = [panels[i : i + LINE] for i in range(0, len(panels), LINE)]
    return panel_figure(lines, picture, heading=heading, side=side)


def _caption(film: Transfer, step: int, index: int) -> str:
    """The step, the value that is followed, and the probability where the target is one class."""
    value, first = float(film.scalar[step, index]), film.target.first
    said = f"step {step}: {value:.2f}"
    if film.target.second is not None or not isinstance(first, tuple):
        return said
    return f"{said}, {float(film.probabilities[step, index, first[index]]):.1%}"


def _pixels(figure: "Figure") -> "Image":
    from PIL import Image

    sink = BytesIO()
    figure.savefig(sink, format="png", dpi=100)
    with Image.open(sink) as picture:
        return picture.convert("RGB")


def _on_white(picture: "Image", size: tuple[int, int]) -> "Image":
    """The picture at the top left of a white one, in the 256 colours that reach furthest."""
    from PIL import Image

    canvas = Image.new("RGB", size, "white")
    canvas.paste(picture, (0, 0))
    return canvas.quantize(256, Image.Quantize.MAXCOVERAGE)
