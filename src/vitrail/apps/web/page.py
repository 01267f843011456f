"""The layout of the page: one tab for pictures, one for text, with the same parts."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from vitrail.apps.web import actions
from vitrail.apps.web.actions import Asked, House
from vitrail.apps.web.asking import Desk
from vitrail.apps.web.drawing import OPACITY, PALETTES
from vitrail.apps.web.events import Events
from vitrail.apps.web.examples import EXAMPLES, FIRST
from vitrail.apps.web.explaining import CHOSEN, PRESETS, offered
from vitrail.apps.web.panel_events import PanelEvents
from vitrail.apps.web.panels import build_panels, build_working
from vitrail.apps.web.wiring import Input, Tab, wire
from vitrail.apps.web.words import choice

TOP = (
    '<div class="top"><h1>What did the model look at?</h1>'
    "<p>Give it a picture or a sentence. Vitrail shows what led a Transformer to its answer.</p></div>"
)
TITLES = {"image": "Picture", "text": "Text"}
OWN = {"image": "photo", "text": "sentiment"}


def build(house: House) -> gr.Blocks:
    """The whole page, with an example explained on each tab."""
    with gr.Blocks(title="Vitrail", analytics_enabled=False, delete_cache=(600, 600)) as page:
        page.unload(_events(house, "image").leave)
        gr.HTML(TOP)
        with gr.Tabs():
            for kind, title in TITLES.items():
                with gr.Tab(title):
                    _tab(house, kind)
    return page


def _events(house: House, kind: str) -> Events:
    desk = Desk(house, kind)
    return Events(desk, PanelEvents(desk))


def _tab(house: House, kind: str) -> None:
    asked = Asked(kind, OWN[kind], None, CHOSEN[kind], PRESETS[0])
    *_, shown = actions.explained(house, house.rooms.start, asked)
    with gr.Row():
        with gr.Column(scale=2, min_width=260):
            given = _input(house, kind)
            target = gr.Radio(
                shown.choices, value=shown.target, label="Explain which answer?", elem_id=f"{kind}-target"
            )
            with gr.Accordion("More choices", open=False):
                model, preset = _model(house, kind), _preset(kind)
        with gr.Column(scale=5, min_width=280, elem_classes="results"):
            trouble = gr.HTML("", elem_id=f"{kind}-trouble", elem_classes="trouble-box")
            answer = gr.HTML(shown.answer, elem_id=f"{kind}-answer")
            maps = gr.HTML(shown.maps, elem_id=f"{kind}-maps")
            working = build_working(f"{kind}-stop")
            look = _look(house, kind)
    controls = [model, target, look.methods, preset, look.opacity, look.palette]
    panels = build_panels(house, asked, shown)
    main = [trouble, answer, target, maps, panels.first, panels.second, panels.remove_by]
    wire(Tab(kind, _events(house, kind), given, controls, main, working, panels))


def _input(house: House, kind: str) -> Input:
    """Where a visitor puts in something of their own, or takes an example."""
    go = None
    if kind == "image":
        own: Any = gr.File(label="Your picture", file_count="single", height=150, elem_id="image-upload")
    else:
        own = gr.Textbox(
            FIRST[kind], label="Your sentence", lines=3, max_length=house.limits.letters, elem_id="text-input"
        )
        go = gr.Button("Explain", variant="primary", elem_id="text-go")
    with gr.Column(elem_classes="examples", elem_id=f"{kind}-examples"):
        gr.HTML('<span class="quiet">or try one of these</span>')
        buttons = {name: _example(kind, name) for name in EXAMPLES[kind]}
    return Input(own, go, buttons)


def _example(kind: str, name: str) -> gr.Button:
    if kind == "text":
        return gr.Button(name, size="sm")
    stem = name.split(".")[0]
    return gr.Button(stem.replace("_", " "), size="sm", elem_id=f"example-{stem}")


def _model(house: House, kind: str) -> gr.Dropdown:
    return gr.Dropdown(
        house.shelf.names(kind),
        value=OWN[kind],
        label="Model",
        elem_id=f"{kind}-model",
        allow_custom_value=house.shelf.any_model,
        info="A timm name, a Hugging Face id or a folder." if house.shelf.any_model else None,
    )


def _preset(kind: str) -> gr.Dropdown:
    return gr.Dropdown(
        list(PRESETS),
        value=PRESETS[0],
        label="Version of each method",
        elem_id=f"{kind}-preset",
        info="What measured best, what the paper writes, or what its authors' code computes.",
    )


@dataclass(frozen=True)
class Looks:
    """What is shown, and how."""

    methods: gr.Dropdown
    opacity: gr.Slider
    palette: gr.Dropdown


def _look(house: House, kind: str) -> Looks:
    methods = gr.Dropdown(
        [choice(name) for name in offered(kind)],
        value=list(CHOSEN[kind]),
        multiselect=True,
        max_choices=house.limits.methods,
        label="Ways to explain",
        elem_id=f"{kind}-methods",
    )
    with gr.Row(visible=kind == "image"):
        opacity = gr.Slider(0, 1, OPACITY, step=0.05, label="Colour over picture", elem_id=f"{kind}-opacity")
        palette = gr.Dropdown(list(PALETTES), value="Fire", label="Colours", elem_id=f"{kind}-palette")
    return Looks(methods, opacity, palette)
