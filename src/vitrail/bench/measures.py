"""The table of metrics: a batch and the maps of one method in, plain numbers for each example out.

What is stored is what every later table needs of an example, not the metric itself: counts, or a point of a curve for
every level. `columns.py` makes numbers of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vitrail import metrics
from vitrail.bench import on_pictures, on_texts
from vitrail.bench.shown import Values
from vitrail.errors import OptionError, suggest


@dataclass(frozen=True)
class Measure:
    """A line of the table.

    Args:
        kind: the data it measures on.
        gives: what the data set must know of an example.
        classes: whether it compares the maps of two classes.
    """

    name: str
    run: Callable[..., Values]
    kind: str
    gives: frozenset[str] = frozenset()
    classes: bool = False


MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("segmentation", on_pictures.segmentation, "image", frozenset({"mask"})),
        Measure("pointing", on_pictures.pointing, "image", frozenset({"mask"})),
        Measure("boxes", on_pictures.boxes, "image", frozenset({"boxes"})),
        Measure("positive", on_pictures.curve("positive"), "image"),
        Measure("negative", on_pictures.curve("negative"), "image"),
        Measure("insertion", on_pictures.steps(metrics.insertion), "image"),
        Measure("deletion", on_pictures.steps(metrics.deletion), "image"),
        Measure("text_deletion", on_texts.text_curve("delete"), "text"),
        Measure("text_padding", on_texts.text_curve("pad"), "text"),
        Measure("comprehensiveness", on_texts.text_curve("delete", "eraser"), "text"),
        Measure("sufficiency", on_texts.text_curve("keep", "eraser"), "text"),
        Measure("kendall", on_texts.kendall, "text", classes=True),
        Measure("token_f1", on_texts.token_f1, "text", frozenset({"rationale"})),
        Measure("precision_at_k", on_texts.precision_at_k, "question", frozenset({"answers"})),
    )
}


def find_measure(name: str) -> Measure:
    """The metric of this name."""
    if name not in MEASURES:
        raise OptionError(f"there is no metric {name!r}. {suggest(name, MEASURES)}")
    return MEASURES[name]
