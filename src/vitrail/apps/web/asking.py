"""What every event begins with: whose it is, what the controls say, how to tell what went wrong.

Gradio hands every function the request and its bar first, then what the page's components hold: those of the event's
own, and last the six controls of the tab (`CONTROLS`). The main events get, before these, by which map is removed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from vitrail.apps.web import views
from vitrail.apps.web.actions import Asked, House
from vitrail.apps.web.drawing import Look
from vitrail.apps.web.jobs import Stopped, Tell
from vitrail.apps.web.rooms import Room
from vitrail.apps.web.updates import Update, class_of
from vitrail.errors import VitrailError

CONTROLS = ("model", "target", "methods", "preset", "opacity", "palette")
STOPPED = "Stopped. What was finished is still shown."
BAR = gr.Progress()


def teller(bar: gr.Progress) -> Tell:
    """A function that moves Gradio's bar."""

    def tell(fraction: float, words: str) -> None:
        bar(fraction, desc=words)

    return tell


def told(act: Callable[[], Update]) -> Update:
    """What the action gives, or what went wrong."""
    try:
        return act()
    except (VitrailError, Stopped) as error:
        return views.trouble(str(error) or STOPPED)


@dataclass(frozen=True)
class Desk:
    """Where the events of one tab come in."""

    house: House
    kind: str

    def room(self, request: gr.Request) -> Room:
        """The room of whoever asks."""
        return self.house.rooms.of(request.session_hash)

    def asked(self, values: Sequence[Any]) -> Asked:
        """What the controls say."""
        model, target, methods, preset, opacity, palette = values[-len(CONTROLS) :]
        look = Look(float(opacity), str(palette))
        return Asked(self.kind, str(model), class_of(target), methods or [], str(preset), look)
