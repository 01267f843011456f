"""The events that lead to new maps, and what follows from them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from vitrail.apps.web import actions, views
from vitrail.apps.web.actions import Asked
from vitrail.apps.web.asking import BAR, CONTROLS, STOPPED, Desk, teller, told
from vitrail.apps.web.examples import EXAMPLES
from vitrail.apps.web.explaining import is_quick
from vitrail.apps.web.jobs import Stopped
from vitrail.apps.web.panel_events import PanelEvents
from vitrail.apps.web.rooms import Room
from vitrail.apps.web.shelf import READS
from vitrail.apps.web.updates import MAIN, Update, main_update
from vitrail.errors import VitrailError

EARLY, LATE = ("layers", "between"), ("remove", "agreement")
"""Panels that need quick maps only, and those that wait for the ones that take longer."""


@dataclass(frozen=True)
class Events:
    """The events of one tab."""

    desk: Desk
    panels: PanelEvents

    def shown(self, room: Room, asked: Asked) -> Asked | None:
        """What the page shows, if the controls say so too but for the class, of which the browser may not know."""
        found = room.asked.get(self.desk.kind)
        return found if isinstance(found, Asked) and found.like(asked) else None

    def explain(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> tuple[Update, ...]:  # noqa: ANN401
        """The main event: all that is quick; what takes longer follows in `rest`."""
        room, asked = self.desk.room(request), self.desk.asked(values)
        room.halt(self.desk.kind)
        try:
            shown = next(actions.explained(self.desk.house, room, asked, teller(bar)))
        except (VitrailError, Stopped) as error:
            return (views.trouble(str(error) or STOPPED), *[gr.skip()] * (MAIN - 1))
        room.asked[self.desk.kind] = replace(asked, target=int(shown.target))
        return main_update(shown, asked, values[-len(CONTROLS) - 1])

    def again(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> tuple[Update, ...]:  # noqa: ANN401
        """The main event where other methods are chosen: the two classes to compare stay as they are."""
        *found, _, _, by = self.explain(request, bar, *values)
        return (*found, gr.skip(), gr.skip(), by)

    def rest(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> tuple[Update, Update]:  # noqa: ANN401
        """The maps that take longer, unless the visitor has meanwhile stopped or asked for others."""
        room, asked = self.desk.room(request), self.desk.asked(values)
        wanted = self.shown(room, asked)
        if wanted is None or all(map(is_quick, wanted.methods)):
            return gr.skip(), gr.skip()
        try:
            for _ in actions.explained(self.desk.house, room, wanted, teller(bar)):
                if self.shown(room, asked) is None:  # stopped between two jobs
                    return gr.skip(), gr.skip()
        except Stopped:
            return gr.skip(), gr.skip()
        except VitrailError as error:
            return views.trouble(str(error)), gr.skip()
        now = self.shown(room, asked)
        if now is None or now.target != wanted.target:
            return gr.skip(), gr.skip()
        return gr.skip(), actions.redrawn(self.desk.house, room, now)

    def new(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> tuple[Update, ...]:  # noqa: ANN401
        """Take an upload or a text, then explain its likeliest class."""
        take = {"image": actions.take_picture, "text": actions.take_text}[self.desk.kind]
        given, by, model, _, *rest = values
        try:
            take(
                self.desk.house, self.desk.room(request), given["path"] if isinstance(given, dict) else str(given or "")
            )
        except VitrailError as error:
            return (views.trouble(str(error)), *[gr.skip()] * (MAIN - 1))
        return self.explain(request, bar, by, model, None, *rest)

    def example(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> tuple[Update, ...]:  # noqa: ANN401
        """Explain an example that comes with the page."""
        name, by, model, _, *rest = values
        self.desk.room(request).given[self.desk.kind] = EXAMPLES[self.desk.kind][name]()
        return self.explain(request, bar, by, model, None, *rest)

    def redraw(self, request: gr.Request, *values: Any) -> Update:  # noqa: ANN401
        """The maps in other colours."""
        room, asked = self.desk.room(request), self.desk.asked(values)
        if (found := self.shown(room, asked)) is not None:
            asked = room.asked[self.desk.kind] = replace(found, look=asked.look)
        return told(lambda: actions.redrawn(self.desk.house, room, asked))

    def opened(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> tuple[Update, ...]:  # noqa: ANN401
        """The panel that has been opened."""
        return self._fresh(request, bar, EARLY + LATE, values)

    def early(self, request: gr.Request, *values: Any) -> tuple[Update, ...]:  # noqa: ANN401
        """The open panel after new maps, if it needs quick ones only."""
        return self._fresh(request, BAR, EARLY, values)

    def finish(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> tuple[Update, ...]:  # noqa: ANN401
        """The maps that take longer, and then the open panel if it waits for them."""
        maps = self.rest(request, bar, *values)
        wanted = self.shown(self.desk.room(request), self.desk.asked(values)) is not None
        return (*maps, *self._fresh(request, bar, LATE if wanted else (), values))

    def _fresh(
        self, request: gr.Request, bar: gr.Progress, some: Sequence[str], values: Sequence[Any]
    ) -> tuple[Update, ...]:
        """The open panel, if it is one of these, brought up to date; the others stay as they are."""
        controls = list(values[-len(CONTROLS) :])
        if (found := self.shown(self.desk.room(request), self.desk.asked(values))) is not None:
            controls[CONTROLS.index("target")] = found.target
        panel, layered, number, headed, by, fill, percents, first, second = values[: -len(CONTROLS)]
        fresh: list[Update] = [gr.skip()] * 6
        if panel not in some:
            return (panel, *fresh)
        if panel == "layers":
            fresh[0], fresh[1] = self.panels.layer(request, layered, number, *controls)
            fresh[2] = self.panels.heads(request, headed, *controls)
        elif panel == "remove":
            fresh[3] = self.panels.remove(request, bar, by, fill, percents, *controls)
        elif panel == "between":
            fresh[4] = self.panels.between(request, first, second, *controls)
        elif panel == "agreement":
            fresh[5] = self.panels.agreement(request, *controls)
        return (panel, *fresh)

    def stop(self, request: gr.Request, *values: Any) -> tuple[Update, Update]:  # noqa: ANN401
        """End what runs for this visitor."""
        found = told(lambda: actions.stop(self.desk.house, self.desk.room(request), self.desk.asked(values)))
        return views.trouble(STOPPED), found or gr.skip()

    def leave(self, request: gr.Request) -> None:
        """End what runs for a visitor who has closed the page."""
        for kind in READS:
            self.desk.room(request).halt(kind)
