"""What the main event writes into the page's components."""

from typing import Any

import gradio as gr

from vitrail.apps.web.actions import Asked, Shown

MAIN = 7
"""Trouble, answer, classes, maps, the two classes to compare, the maps to remove by."""
Update = Any
"""What Gradio takes as a component's new state."""


def class_of(choice: object) -> int | None:
    """The class that a choice stands for, or None."""
    return int(str(choice)) if str(choice).isdecimal() else None


def main_update(shown: Shown, asked: Asked, by: str) -> tuple[Update, ...]:
    """What the main event writes when all went well.

    Args:
        by: the map by which parts are removed; it stays so if it is still shown.
    """
    other = next((value for _, value in shown.choices if value != shown.target), shown.target)
    names = plain_names(shown)
    return (
        "",
        shown.answer,
        gr.update(choices=shown.choices, value=shown.target),
        shown.maps,
        gr.update(choices=names, value=shown.target),
        gr.update(choices=names, value=other),
        gr.update(choices=list(asked.methods), value=by if by in asked.methods else asked.methods[0]),
    )


def plain_names(shown: Shown) -> list[tuple[str, str]]:
    """The classes without their probabilities."""
    return [(label.rsplit(" · ", 1)[0], value) for label, value in shown.choices]
