"""Results on the screen: below a notebook's cell, as shaded words in a terminal, or in a window."""

import os
import sys
from io import BytesIO
from typing import TYPE_CHECKING, Any

from vitrail.attribution import Attribution
from vitrail.errors import MissingExtraError, OutputError
from vitrail.methods.options import in_notebook
from vitrail.plots.canvas import rendered
from vitrail.plots.figures import plot_attribution
from vitrail.plots.signals import is_signal
from vitrail.plots.tokens import terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def show(attribution: Attribution, image: Any, *, index: int, **style: Any) -> None:  # noqa: ANN401
    """Show one sample where the user looks."""
    if in_notebook():
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        display(plot_attribution(attribution, image, index=index, **style))
    elif attribution.kind == "text" and not attribution.streams and not is_signal(attribution):
        print_sentence(attribution, index=index, **style)
    else:
        open_window(plot_attribution(attribution, image, index=index, **style))


def print_sentence(attribution: Attribution, *, index: int, merge: bool = False, title: str | None = None) -> None:
    """Print a text with its tokens shaded, below its title if it has one."""
    text = terminal(attribution, index=index, merge=merge)
    try:
        from rich.console import Console
    except ImportError as error:
        raise MissingExtraError("shaded text in the terminal needs rich: pip install 'vitrail[cli]'") from error
    console = Console()
    if title:
        console.print(title, style="bold", markup=False, highlight=False)
    console.print(text)


def open_window(figure: "Figure") -> None:
    """Show a figure by the program that shows pictures on this machine."""
    from PIL import Image, ImageShow

    screen = sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not screen or not ImageShow.show(Image.open(BytesIO(rendered(figure)))):
        raise OutputError("there is no screen to show a picture on: write it to a file with .save('map.png').")
