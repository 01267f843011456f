"""The events of the panels below the maps."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from vitrail.apps.web import actions, views
from vitrail.apps.web.asking import BAR, STOPPED, Desk, teller, told
from vitrail.apps.web.jobs import Stopped
from vitrail.apps.web.updates import Update, class_of
from vitrail.errors import VitrailError


@dataclass(frozen=True)
class PanelEvents:
    """What happens in the panels of one tab."""

    desk: Desk

    def layer(self, request: gr.Request, *values: Any) -> tuple[Update, Update]:  # noqa: ANN401
        """One layer, and a slider as long as there are layers."""
        method, number, *_ = values
        try:
            room, asked = self.desk.room(request), self.desk.asked(values)
            found, depth = actions.layer(self.desk.house, room, asked, method, int(number))
        except (VitrailError, Stopped) as error:
            return views.trouble(str(error) or STOPPED), gr.skip()
        # Where it fits the slider stays, for it may have been moved meanwhile.
        return found, gr.update(maximum=depth) if int(number) <= depth else gr.update(maximum=depth, value=depth)

    def one_layer(self, request: gr.Request, *values: Any) -> Update:  # noqa: ANN401
        """One layer alone, while the slider moves."""
        return self.layer(request, *values)[0]

    def heads(self, request: gr.Request, *values: Any) -> Update:  # noqa: ANN401
        """Every head."""
        return told(lambda: actions.heads(self.desk.house, self.desk.room(request), self.desk.asked(values), values[0]))

    def remove(self, request: gr.Request, bar: gr.Progress = BAR, *values: Any) -> Update:  # noqa: ANN401
        """What is left, and the curve."""
        method, fill, percents, *_ = values
        room, asked = self.desk.room(request), self.desk.asked(values)
        return told(lambda: actions.remove(self.desk.house, room, asked, method, fill, float(percents), teller(bar)))

    def look_up(self, request: gr.Request, *values: Any) -> Update:  # noqa: ANN401
        """The same while the slider moves: by then the curve is known, so no bar is needed."""
        method, fill, percents, *_ = values
        room, asked = self.desk.room(request), self.desk.asked(values)
        return told(lambda: actions.remove(self.desk.house, room, asked, method, fill, float(percents)))

    def between(self, request: gr.Request, *values: Any) -> Update:  # noqa: ANN401
        """One class rather than another."""
        first, second, *_ = values
        room, asked = self.desk.room(request), self.desk.asked(values)
        return told(lambda: actions.between(self.desk.house, room, asked, class_of(first), class_of(second)))

    def agreement(self, request: gr.Request, *values: Any) -> Update:  # noqa: ANN401
        """The matrix."""
        return told(lambda: actions.agreement(self.desk.house, self.desk.room(request), self.desk.asked(values)))

    def download(self, request: gr.Request, *values: Any) -> tuple[Update, Update]:  # noqa: ANN401
        """A file, or why there is none."""
        try:
            return actions.download(self.desk.house, self.desk.room(request), self.desk.asked(values), values[0]), ""
        except (VitrailError, Stopped) as error:
            return None, views.trouble(str(error) or STOPPED)
