"""Which event of the page calls which function."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from vitrail.app.events import Events
from vitrail.app.panels import Panels
from vitrail.app.styles import SAVE

QUICK: dict[str, Any] = {"queue": False, "show_progress": "hidden", "trigger_mode": "always_last"}
"""For what is mostly looked up and drawn."""
HIDDEN: dict[str, Any] = {"api_visibility": "private"}


@dataclass(frozen=True)
class Input:
    """Where a visitor puts in something: their own, a button to say so, and examples."""

    own: Any
    go: gr.Button | None
    examples: dict[str, gr.Button]


@dataclass(frozen=True)
class Tab:
    """Everything on one tab that takes part in an event."""

    kind: str
    events: Events
    given: Input
    controls: list[Any]
    main: list[Any]
    stop: gr.Button
    panels: Panels


def wire(tab: Tab) -> None:
    """Connect the whole tab."""
    opened = gr.State("layers")
    for name, listen, call, reads in _causes(tab):
        done = listen(call, [*reads, *tab.controls], tab.main, api_name=f"{tab.kind}_{name}", concurrency_limit=None)
        rest = done.then(
            tab.events.rest,
            tab.controls,
            tab.main,
            api_name=f"{tab.kind}_{name}_rest",
            concurrency_limit=None,
            show_progress_on=tab.main[1],  # the maps that are there stay in sight
        )
        _then_refresh(tab, rest.then, opened, opened)
    for name, panel in tab.panels.tabs.items():
        _then_refresh(tab, panel.select, gr.State(name), opened)
    _wire_own(tab)
    _wire_panels(tab)
    tab.stop.click(tab.events.stop, None, None, queue=False, api_name=f"{tab.kind}_stop")


def _causes(tab: Tab) -> list[tuple[str, Any, Any, list[Any]]]:
    """What leads to new maps: a name, what to listen to, what to call, what it reads."""
    given, events = tab.given, tab.events
    new = [given.own.upload] if given.go is None else [given.go.click, given.own.submit]
    found = [("new" if n == 0 else "enter", listen, events.new, [given.own]) for n, listen in enumerate(new)]
    for number, (name, button) in enumerate(given.examples.items()):
        found.append((f"example_{number}", button.click, events.example, [gr.State(name)]))
    for name, control in zip(("model", "target", "methods", "preset"), tab.controls, strict=False):
        found.append((name, control.input, events.explain, []))
    return found


def _then_refresh(tab: Tab, listen: Any, panel: gr.State, opened: gr.State) -> None:  # noqa: ANN401
    """Bring the open panel up to date when this has happened."""
    listen(
        tab.events.refresh,
        [panel, *tab.panels.reads, *tab.controls],
        [opened, *tab.panels.writes],
        concurrency_limit=None,
        **HIDDEN,
    )


def _wire_own(tab: Tab) -> None:
    """The colours, and what follows from an upload or an example beside the maps."""
    maps, controls = tab.main[3], tab.controls
    for name, control in zip(("opacity", "palette"), controls[-2:], strict=True):
        control.input(tab.events.redraw, controls, maps, api_name=f"{tab.kind}_{name}", **QUICK)
    if tab.given.go is None:
        tab.given.own.upload(lambda: None, None, tab.given.own, queue=False, **HIDDEN)
    else:
        for name, button in tab.given.examples.items():
            button.click(lambda name=name: name, None, tab.given.own, queue=False, **HIDDEN)


def _wire_panels(tab: Tab) -> None:
    panels, events, controls, kind = tab.panels, tab.events, tab.controls, tab.kind
    layer, heads = [panels.layer_by, panels.number], [panels.heads_by]
    for name, control in zip(("layer_by", "layer"), layer, strict=True):
        write = [panels.layer_view, panels.number] if name == "layer_by" else [panels.layer_view]
        call = events.layer if name == "layer_by" else events.one_layer
        control.input(call, [*layer, *controls], write, api_name=f"{kind}_{name}", **QUICK)
    panels.heads_by.input(events.heads, [*heads, *controls], panels.heads_view, api_name=f"{kind}_heads", **QUICK)
    removal = [panels.remove_by, panels.fill, panels.percents]
    for name, control in zip(("remove_by", "fill"), removal[:2], strict=True):
        control.input(
            events.remove, [*removal, *controls], panels.remove_view, api_name=f"{kind}_{name}", concurrency_limit=None
        )
    panels.percents.input(
        events.look_up, [*removal, *controls], panels.remove_view, api_name=f"{kind}_percent", **QUICK
    )
    pair = [panels.first, panels.second]
    for name, control in zip(("first", "second"), pair, strict=True):
        control.input(events.between, [*pair, *controls], panels.between_view, api_name=f"{kind}_{name}", **QUICK)
    for form, button in panels.forms.items():
        done = button.click(
            events.download,
            [gr.State(form), *controls],
            [panels.file, panels.file_trouble],
            api_name=f"{kind}_{form}",
            concurrency_limit=None,
        )
        done.then(None, panels.file, None, js=SAVE, **HIDDEN)
