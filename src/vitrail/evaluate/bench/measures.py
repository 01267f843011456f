"""The table of metrics: a batch and the maps of one method in, plain numbers for each example out.

What is stored is what every later table needs of an example, not the metric itself: counts, or a point of a curve for
every level. `columns.py` makes numbers of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vitrail.errors import OptionError, suggest
from vitrail.evaluate import metrics
from vitrail.evaluate.bench import on_both, on_pictures, on_texts
from vitrail.evaluate.bench.further import Further, neighbour, no_other, of_objects, rival
from vitrail.evaluate.bench.shown import Values


@dataclass(frozen=True)
class Measure:
    """A line of the table.

    Args:
        kinds: the data it measures on.
        gives: what the data set must know of an example.
        further: the classes it wants explained beside the protocol's.
        randomised: whether it also wants the model explained while its weights are randomised.
    """

    name: str
    run: Callable[..., Values]
    kinds: tuple[str, ...]
    gives: frozenset[str] = frozenset()
    further: Further = no_other
    randomised: bool = False


_IMAGE, _TEXT, _BOTH = ("image",), ("text",), ("image", "text")

MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("segmentation", on_pictures.segmentation, _IMAGE, frozenset({"mask"})),
        Measure("pointing", on_pictures.pointing, _IMAGE, frozenset({"mask"})),
        Measure("boxes", on_pictures.boxes, _IMAGE, frozenset({"boxes"})),
        Measure("voc", on_pictures.voc, _IMAGE, frozenset({"mask", "voc classes"}), of_objects),
        Measure("positive", on_pictures.curve("positive"), _IMAGE),
        Measure("negative", on_pictures.curve("negative"), _IMAGE),
        Measure("insertion", on_pictures.steps(metrics.insertion), _IMAGE),
        Measure("deletion", on_pictures.steps(metrics.deletion), _IMAGE),
        Measure("text_deletion", on_texts.text_curve("delete"), _TEXT),
        Measure("text_padding", on_texts.text_curve("pad"), _TEXT),
        Measure("comprehensiveness", on_texts.text_curve("delete", "eraser"), _TEXT),
        Measure("sufficiency", on_texts.text_curve("keep", "eraser"), _TEXT),
        Measure("kendall", on_texts.kendall, _TEXT, further=neighbour),
        Measure("token_f1", on_texts.token_f1, _TEXT, frozenset({"rationale"})),
        Measure("precision_at_k", on_texts.precision_at_k, ("question",), frozenset({"answers"})),
        Measure("randomisation", on_both.randomisation, _BOTH, randomised=True),
        Measure("class_sensitivity", on_both.class_sensitivity, _BOTH, further=rival),
        Measure("ranks", on_both.ranks, (*_BOTH, "question")),
    )
}


def find_measure(name: str) -> Measure:
    """The metric of this name."""
    if name not in MEASURES:
        raise OptionError(f"there is no metric {name!r}. {suggest(name, MEASURES)}")
    return MEASURES[name]
