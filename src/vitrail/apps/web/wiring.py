"""Which event of the page calls which function."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from vitrail.apps.web.events import Events
from vitrail.apps.web.panels import Panels, Working
from vitrail.apps.web.styles import SAVE

RAW: dict[str, Any] = {"preprocess": False}
"""Values as the browser sends them: Gradio would answer a choice that was replaced a moment before with an error, and
whether there is such a model, class or method is checked where it is used."""
QUICK: dict[str, Any] = {"queue": False, "show_progress": "hidden", "trigger_mode": "always_last", **RAW}
"""For what is mostly looked up and drawn."""
HIDDEN: dict[str, Any] = {"api_visibility": "private", **RAW}
LONG: dict[str, Any] = {"concurrency_limit": None, **HIDDEN}
"""For what may take long."""
MAIN: dict[str, Any] = {"queue": False, "trigger_mode": "always_last", **RAW}
NEXT: dict[str, Any] = {"trigger_mode": "multiple", **LONG}
"""For what follows: it must not be left out because the same is still under way for an earlier choice."""


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
    working: Working
    panels: Panels


def wire(tab: Tab) -> None:
    """Connect the whole tab.

    Of the events that follow each other only the last is queued, for its bar: where one queued event follows another at
    once, Gradio may send the second's answer to a connection that the browser has just closed.
    """
    opened, panels, (trouble, maps) = gr.State("layers"), tab.panels, (tab.main[0], tab.main[3])
    reads, writes = [opened, *panels.reads, *tab.controls], [opened, *panels.writes]
    bars = [tab.working.slot, panels.working.slot]
    for name, listen, call, own in _causes(tab):
        given = [*own, panels.remove_by, *tab.controls]
        done = listen(call, given, tab.main, api_name=f"{tab.kind}_{name}", show_progress_on=bars[:1], **MAIN)
        early = done.then(tab.events.early, reads, writes, queue=False, show_progress="hidden", **NEXT)
        early.then(tab.events.finish, reads, [trouble, maps, *writes], show_progress_on=bars[:1], **NEXT)
    for name, panel in panels.tabs.items():
        panel.select(tab.events.opened, [gr.State(name), *reads[1:]], writes, show_progress_on=bars[1:], **LONG)
    _wire_own(tab)
    _wire_panels(tab)
    for name, working in {"stop": tab.working, "panel_stop": panels.working}.items():
        working.stop.click(
            tab.events.stop, tab.controls, [trouble, maps], queue=False, api_name=f"{tab.kind}_{name}", **RAW
        )


def _causes(tab: Tab) -> list[tuple[str, Any, Any, list[Any]]]:
    """What leads to new maps: a name, what to listen to, what to call, what it reads."""
    given, events = tab.given, tab.events
    new = [given.own.upload] if given.go is None else [given.go.click, given.own.submit]
    found = [("new" if n == 0 else "enter", listen, events.new, [given.own]) for n, listen in enumerate(new)]
    for number, (name, button) in enumerate(given.examples.items()):
        found.append((f"example_{number}", button.click, events.example, [gr.State(name)]))
    for name, control in zip(("model", "target", "methods", "preset"), tab.controls, strict=False):
        call = events.again if name in ("methods", "preset") else events.explain
        found.append((name, control.input, call, []))
    return found


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
    panels, events, controls, kind = tab.panels, tab.events.panels, tab.controls, tab.kind
    layer, heads = [panels.layer_by, panels.number], [panels.heads_by]
    for name, control in zip(("layer_by", "layer"), layer, strict=True):
        write = [panels.layer_view, panels.number] if name == "layer_by" else [panels.layer_view]
        call = events.layer if name == "layer_by" else events.one_layer
        control.input(call, [*layer, *controls], write, api_name=f"{kind}_{name}", **QUICK)
    panels.heads_by.input(events.heads, [*heads, *controls], panels.heads_view, api_name=f"{kind}_heads", **QUICK)
    removal = [panels.remove_by, panels.fill, panels.percents]
    for name, control in zip(("remove_by", "fill"), removal[:2], strict=True):
        control.input(
            events.remove,
            [*removal, *controls],
            panels.remove_view,
            api_name=f"{kind}_{name}",
            concurrency_limit=None,
            show_progress_on=panels.working.slot,
            **RAW,
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
            **RAW,
        )
        done.then(None, panels.file, None, js=SAVE, **HIDDEN)
