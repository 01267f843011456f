"""The table of metrics."""

from collections.abc import Sequence

from vitrail.errors import OptionError, suggest
from vitrail.evaluate.bench import on_answers, on_both, on_pictures, on_texts
from vitrail.evaluate.bench.measure import Column, Measure
from vitrail.evaluate.bench.protocols import Protocol

MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        on_pictures.SEGMENTATION,
        on_pictures.POINTING,
        on_pictures.BOXES,
        on_pictures.VOC_SEGMENTATION,
        on_pictures.POSITIVE,
        on_pictures.NEGATIVE,
        on_pictures.INSERTION,
        on_pictures.DELETION,
        on_pictures.ROAD_POSITIVE,
        on_pictures.ROAD_NEGATIVE,
        on_texts.DELETION,
        on_texts.PADDING,
        on_texts.COMPREHENSIVENESS,
        on_texts.SUFFICIENCY,
        on_texts.KENDALL,
        on_texts.TOKEN_F1,
        on_texts.PRECISION_AT_K,
        on_both.RANDOMISATION,
        on_both.CLASS_SENSITIVITY,
        on_both.RANKS,
        on_answers.GOLD_RECALL,
        on_answers.GOLD_RANK,
        on_answers.LDS,
        on_answers.ANSWER_DROP,
        on_answers.ANSWER_SUFFICIENCY,
    )
}


def find_measure(name: str) -> Measure:
    """The metric of this name."""
    if name not in MEASURES:
        raise OptionError(f"there is no metric {name!r}. {suggest(name, MEASURES)}")
    return MEASURES[name]


def columns_of(protocol: Protocol, metrics: Sequence[str]) -> list[Column]:
    """The columns that can be made of these metrics, in the order of the metrics."""
    made = [column for name in metrics for column in MEASURES[name].columns(protocol)]
    return [column for column in made if set(column.needs) <= set(metrics)]
