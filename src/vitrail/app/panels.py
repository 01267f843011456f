"""The parts below the maps: layers and heads, removal, two classes, agreement, downloads."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from vitrail.app import actions, views
from vitrail.app.actions import Asked, House, Shown
from vitrail.app.downloads import FORMS
from vitrail.app.events import plain_names
from vitrail.app.explaining import CHOSEN
from vitrail.app.removing import LEVELS
from vitrail.metrics.fills import FILLS


@dataclass(frozen=True)
class Panels:
    """The components of the panels, and the tabs they lie in."""

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
    kind, made = asked.kind, dict[str, Any]()
    tabs: dict[str, gr.Tab] = {}
    with gr.Tabs():
        with gr.Tab("Layer by layer", elem_id=f"{kind}-layers-panel") as tabs["layers"]:
            made |= _layers(house, asked)
        with gr.Tab("Remove and watch", elem_id=f"{kind}-remove-panel") as tabs["remove"]:
            made |= _removal(kind)
        with gr.Tab("Why not another?", elem_id=f"{kind}-between-panel") as tabs["between"]:
            made |= _between(kind, shown)
        with gr.Tab("Do they agree?", elem_id=f"{kind}-agreement-panel") as tabs["agreement"]:
            made["agreement_view"] = gr.HTML(elem_id=f"{kind}-agreement")
        with gr.Tab("Download", elem_id=f"{kind}-download-panel") as tabs["download"]:
            made |= _downloads(kind)
    return Panels(tabs=tabs, **made)


def _layers(house: House, asked: Asked) -> dict[str, Any]:
    kind, room = asked.kind, house.rooms.start
    layered, head_by = views.LAYERED[kind], views.HEADED[0]
    first, depth = actions.layer(house, room, asked, layered[0], 1)
    with gr.Row():
        layer_by = gr.Dropdown(list(layered), value=layered[0], label="Layers, by")
        number = gr.Slider(1, depth, 1, step=1, label="Layer", elem_id=f"{kind}-layer")
    layer_view = gr.HTML(first, elem_id=f"{kind}-layer-view")
    heads_by = gr.Dropdown(list(views.HEADED), value=head_by, label="Attention heads of the last layer, by")
    heads_view = gr.HTML(actions.heads(house, room, asked, head_by), elem_id=f"{kind}-heads-view")
    return {
        "layer_by": layer_by, "number": number, "layer_view": layer_view, "heads_by": heads_by, "heads_view": heads_view
    }  # fmt: skip


def _removal(kind: str) -> dict[str, Any]:
    step = round(100 * LEVELS[kind][1])
    with gr.Row():
        by = gr.Dropdown(list(CHOSEN[kind]), value=CHOSEN[kind][0], label="In the order of")
        fill = gr.Dropdown(list(FILLS), value="blur", label="Removed parts become", visible=kind == "image")
    percents = gr.Slider(
        0, 100, 20, step=step, label="Percent removed, most important first", elem_id=f"{kind}-percent"
    )
    return {
        "remove_by": by, "fill": fill, "percents": percents, "remove_view": gr.HTML(elem_id=f"{kind}-remove-view")
    }  # fmt: skip


def _between(kind: str, shown: Shown) -> dict[str, Any]:
    names = plain_names(shown)
    with gr.Row():
        first = gr.Dropdown(names, value=names[0][1], label="Why this", elem_id=f"{kind}-first")
        second = gr.Dropdown(
            names, value=names[min(1, len(names) - 1)][1], label="and not this", elem_id=f"{kind}-second"
        )
    return {"first": first, "second": second, "between_view": gr.HTML(elem_id=f"{kind}-between-view")}


def _downloads(kind: str) -> dict[str, Any]:
    gr.HTML('<p class="quiet">Everything shown above in one file, with how it was made.</p>')
    with gr.Row():
        forms = {form: gr.Button(form.upper(), elem_id=f"{kind}-{form}", min_width=80) for form in FORMS}
    return {"forms": forms, "file_trouble": gr.HTML(), "file": gr.JSON(elem_classes="hidden-holder")}
