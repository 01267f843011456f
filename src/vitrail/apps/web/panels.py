"""The parts below the maps: layers and heads, removal, two classes, agreement, downloads."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from vitrail.apps.web import actions, views
from vitrail.apps.web.actions import Asked, House, Shown
from vitrail.apps.web.downloads import FORMS
from vitrail.apps.web.explaining import CHOSEN
from vitrail.apps.web.removing import LEVELS
from vitrail.apps.web.updates import plain_names
from vitrail.evaluate.metrics.fills import FILLS

LAID_OUT = {"image": gr.Row, "text": gr.Column}
"""Layers and heads: maps fit side by side, tables of many tokens do not."""


@dataclass(frozen=True)
class Working:
    """Where a long job says how far it is, and is stopped; in sight only while there is one."""

    slot: gr.HTML
    stop: gr.Button


def build_working(name: str) -> Working:
    """Such a place.

    Args:
        name: as which a style sheet or a test finds the button.
    """
    with gr.Row(elem_classes="working"):
        slot = gr.HTML("", elem_classes="slot")
        stop = gr.Button("Stop", size="sm", elem_id=name, scale=0, min_width=80)
    return Working(slot, stop)


@dataclass(frozen=True)
class Panels:
    """The components of the panels, and the tabs they lie in."""

    working: Working
    tabs: dict[str, gr.Tab]
    layer_by: gr.Dropdown
    number: gr.Slider
    layer_view: gr.HTML
    heads_by: gr.Dropdown
    heads_view: gr.HTML
    remove_by: gr.Dropdown
    fill: gr.Dropdown
    percents: gr.Slider
    remove_view: gr.HTML
    first: gr.Dropdown
    second: gr.Dropdown
    between_view: gr.HTML
    agreement_view: gr.HTML
    forms: dict[str, gr.Button]
    file: gr.JSON
    file_trouble: gr.HTML

    @property
    def reads(self) -> list[Any]:
        """What bringing a panel up to date reads, in the order of `Events.refresh`."""
        return [
            self.layer_by, self.number, self.heads_by, self.remove_by, self.fill, self.percents, self.first,
            self.second,
        ]  # fmt: skip

    @property
    def writes(self) -> list[Any]:
        """What it writes."""
        return [
            self.layer_view, self.number, self.heads_view, self.remove_view, self.between_view, self.agreement_view
        ]  # fmt: skip


def build_panels(house: House, asked: Asked, shown: Shown) -> Panels:
    """All panels; that of the layers, which is open, shows the example."""
    kind, made = asked.kind, dict[str, Any](working=build_working(f"{asked.kind}-panel-stop"))
    tabs: dict[str, gr.Tab] = {}
    with gr.Tabs():
        with gr.Tab("Layers", elem_id=f"{kind}-layers-panel") as tabs["layers"]:
            made |= _layers(house, asked)
        with gr.Tab("Remove", elem_id=f"{kind}-remove-panel") as tabs["remove"]:
            made |= _removal(kind)
        with gr.Tab("Why not?", elem_id=f"{kind}-between-panel") as tabs["between"]:
            made |= _between(kind, shown)
        with gr.Tab("Agreement", elem_id=f"{kind}-agreement-panel") as tabs["agreement"]:
            _say("How far the ways to explain agree on what is important.")
            made["agreement_view"] = gr.HTML(elem_id=f"{kind}-agreement")
        with gr.Tab("Download", elem_id=f"{kind}-download-panel") as tabs["download"]:
            made |= _downloads(kind)
    return Panels(tabs=tabs, **made)


def _say(words: str) -> None:
    gr.HTML(f'<p class="quiet">{words}</p>')


def _layers(house: House, asked: Asked) -> dict[str, Any]:
    kind, room = asked.kind, house.rooms.start
    layered, head_by = views.LAYERED[kind], views.HEADED[0]
    first, depth = actions.layer(house, room, asked, layered[0], 1)
    _say("What each layer, from the input to the answer, and each head of the last one adds.")
    with LAID_OUT[kind]():
        with gr.Column(min_width=280):
            with gr.Row():
                layer_by = gr.Dropdown(list(layered), value=layered[0], label="Layers, by", elem_id=f"{kind}-layer-by")
                number = gr.Slider(1, depth, 1, step=1, label="Layer", elem_id=f"{kind}-layer")
            layer_view = gr.HTML(first, elem_id=f"{kind}-layer-view")
        with gr.Column(min_width=280):
            heads_by = gr.Dropdown(
                list(views.HEADED), value=head_by, label="Heads of the last layer, by", elem_id=f"{kind}-heads-by"
            )
            heads_view = gr.HTML(actions.heads(house, room, asked, head_by), elem_id=f"{kind}-heads-view")
    return {
        "layer_by": layer_by, "number": number, "layer_view": layer_view, "heads_by": heads_by, "heads_view": heads_view
    }  # fmt: skip


def _removal(kind: str) -> dict[str, Any]:
    step = round(100 * LEVELS[kind][1])
    _say("Take away what a map calls important: the more it matters, the faster the probability falls.")
    with gr.Row():
        by = gr.Dropdown(
            list(CHOSEN[kind]), value=CHOSEN[kind][0], label="In the order of", elem_id=f"{kind}-remove-by"
        )
        fill = gr.Dropdown(
            list(FILLS), value="blur", label="Removed parts become", visible=kind == "image", elem_id=f"{kind}-fill"
        )
    percents = gr.Slider(
        0, 100, 20, step=step, label="Percent removed, most important first", elem_id=f"{kind}-percent"
    )
    return {
        "remove_by": by, "fill": fill, "percents": percents, "remove_view": gr.HTML(elem_id=f"{kind}-remove-view")
    }  # fmt: skip


def _between(kind: str, shown: Shown) -> dict[str, Any]:
    names = plain_names(shown)
    _say("What speaks for one answer rather than for another.")
    with gr.Row():
        first = gr.Dropdown(names, value=names[0][1], label="Why this", elem_id=f"{kind}-first")
        second = gr.Dropdown(
            names, value=names[min(1, len(names) - 1)][1], label="and not this", elem_id=f"{kind}-second"
        )
    return {"first": first, "second": second, "between_view": gr.HTML(elem_id=f"{kind}-between-view")}


def _downloads(kind: str) -> dict[str, Any]:
    _say("Everything shown above in one file, with how it was made.")
    with gr.Row():
        forms = {form: gr.Button(form.upper(), elem_id=f"{kind}-{form}", min_width=80) for form in FORMS}
    return {"forms": forms, "file_trouble": gr.HTML(), "file": gr.JSON(elem_classes="hidden-holder")}
