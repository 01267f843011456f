"""From Gradio's events to actions: read the controls, run, and say what went wrong in words.

Gradio hands every function the request and its bar first, then what the page's components hold: those of the event's
own, and last the six controls of the tab (`CONTROLS`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from vitrail.app import actions, views
from vitrail.app.actions import Asked, House, Shown
from vitrail.app.drawing import Look
from vitrail.app.examples import EXAMPLES
from vitrail.app.explaining import is_quick
from vitrail.app.jobs import Stopped, Tell
from vitrail.app.rooms import Room
from vitrail.errors import VitrailError

CONTROLS = ("model", "target", "methods", "preset", "opacity", "palette")
MAIN = 7
"""What the main event writes: trouble, answer, classes, maps, the two classes to compare, the maps to remove by."""
STOPPED = "Stopped. What was finished is still shown."
BAR = gr.Progress()
Update = Any
"""What Gradio takes as a component's new state."""


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
class Events:
    """The events of one tab."""

    house: House
    kind: str

    def room(self, request: gr.Request) -> Room:
        """The room of whoever asks."""
        return self.house.rooms.of(request.session_hash)

    def asked(self, values: tuple[Any, ...]) -> Asked:
        """What the controls say."""
        model, target, methods, preset, opacity, palette = values[-len(CONTROLS) :]
        wanted = int(target) if str(target).isdecimal() else None
        return Asked(self.kind, str(model), wanted, methods or [], str(preset), Look(float(opacity), str(palette)))

    def explain(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> tuple[Update, ...]:  # noqa: ANN401
        """The main event: all that is quick; what takes longer follows in `rest`."""
        return self._explained(request, bar, values, whole=False)

    def rest(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> tuple[Update, ...]:  # noqa: ANN401
        """The same with the methods that take longer; nothing new where there are none."""
        if all(map(is_quick, self.asked(values).methods)):
            return (*[gr.skip()] * MAIN,)
        return self._explained(request, bar, values, whole=True)

    def _explained(
        self, request: gr.Request, bar: gr.Progress, values: tuple[Any, ...], *, whole: bool
    ) -> tuple[Update, ...]:
        asked = self.asked(values)
        try:
            steps = actions.explained(self.house, self.room(request), asked, teller(bar))
            return main_update(list(steps)[-1] if whole else next(steps), asked)
        except (VitrailError, Stopped) as error:
            return (views.trouble(str(error) or STOPPED), *[gr.skip()] * (MAIN - 1))

    def new(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> tuple[Update, ...]:  # noqa: ANN401
        """Take an upload or a text, then explain its likeliest class."""
        take = {"image": actions.take_picture, "text": actions.take_text}[self.kind]
        given, model, _, *rest = values
        try:
            take(self.house, self.room(request), given)
        except VitrailError as error:
            return (views.trouble(str(error)), *[gr.skip()] * (MAIN - 1))
        return self.explain(request, bar, model, None, *rest)

    def example(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> tuple[Update, ...]:  # noqa: ANN401
        """Explain an example that comes with the page."""
        name, model, _, *rest = values
        self.room(request).given[self.kind] = EXAMPLES[self.kind][name]()
        return self.explain(request, bar, model, None, *rest)

    def redraw(self, request: gr.Request, *values: Any) -> Update:  # noqa: ANN401
        """The maps in other colours."""
        return told(lambda: actions.redrawn(self.house, self.room(request), self.asked(values)))

    def layer(self, request: gr.Request, *values: Any) -> tuple[Update, Update]:  # noqa: ANN401
        """One layer, and a slider as long as there are layers."""
        method, number, *_ = values
        try:
            room, asked = self.room(request), self.asked(values)
            found, depth = actions.layer(self.house, room, asked, method, int(number))
        except (VitrailError, Stopped) as error:
            return views.trouble(str(error) or STOPPED), gr.skip()
        return found, gr.update(maximum=depth, value=min(int(number), depth))

    def one_layer(self, request: gr.Request, *values: Any) -> Update:  # noqa: ANN401
        """One layer alone, while the slider moves."""
        return self.layer(request, *values)[0]

    def heads(self, request: gr.Request, *values: Any) -> Update:  # noqa: ANN401
        """Every head."""
        return told(lambda: actions.heads(self.house, self.room(request), self.asked(values), values[0]))

    def remove(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> Update:  # noqa: ANN401
        """What is left, and the curve."""
        method, fill, percents, *_ = values
        room, asked = self.room(request), self.asked(values)
        return told(lambda: actions.remove(self.house, room, asked, method, fill, float(percents), teller(bar)))

    def look_up(self, request: gr.Request, *values: Any) -> Update:  # noqa: ANN401
        """The same while the slider moves: by then the curve is known, so no bar is needed."""
        method, fill, percents, *_ = values
        room, asked = self.room(request), self.asked(values)
        return told(lambda: actions.remove(self.house, room, asked, method, fill, float(percents)))

    def between(self, request: gr.Request, *values: Any) -> Update:  # noqa: ANN401
        """One class rather than another."""
        first, second, *_ = values
        room, asked = self.room(request), self.asked(values)
        return told(lambda: actions.between(self.house, room, asked, int(first), int(second)))

    def agreement(self, request: gr.Request, *values: Any) -> Update:  # noqa: ANN401
        """The matrix."""
        return told(lambda: actions.agreement(self.house, self.room(request), self.asked(values)))

    def refresh(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> tuple[Update, ...]:  # noqa: ANN401
        """The panel that is open, brought up to date; the others stay as they are."""
        panel, controls = values[0], values[-len(CONTROLS) :]
        layered, number, headed, by, fill, percents, first, second = values[1 : -len(CONTROLS)]
        fresh: list[Update] = [gr.skip()] * 6
        if panel == "layers":
            fresh[0], fresh[1] = self.layer(request, layered, number, *controls)
            fresh[2] = self.heads(request, headed, *controls)
        elif panel == "remove":
            fresh[3] = self.remove(request, bar, by, fill, percents, *controls)
        elif panel == "between":
            fresh[4] = self.between(request, first, second, *controls)
        elif panel == "agreement":
            fresh[5] = self.agreement(request, *controls)
        return (panel, *fresh)

    def download(self, request: gr.Request, *values: Any) -> tuple[Update, Update]:  # noqa: ANN401
        """A file, or why there is none."""
        try:
            return actions.download(self.house, self.room(request), self.asked(values), values[0]), ""
        except VitrailError as error:
            return None, views.trouble(str(error))

    def stop(self, request: gr.Request) -> None:
        """Ask the running job to stop."""
        actions.stop(self.room(request))


def main_update(shown: Shown, asked: Asked) -> tuple[Update, ...]:
    """What the main event writes when all went well."""
    other = next((value for _, value in shown.choices if value != shown.target), shown.target)
    names = plain_names(shown)
    return (
        "",
        shown.answer,
        gr.update(choices=shown.choices, value=shown.target),
        shown.maps,
        gr.update(choices=names, value=shown.target),
        gr.update(choices=names, value=other),
        gr.update(choices=list(asked.methods), value=asked.methods[0]),
    )


def plain_names(shown: Shown) -> list[tuple[str, str]]:
    """The classes without their probabilities."""
    return [(label.rsplit(" · ", 1)[0], value) for label, value in shown.choices]
