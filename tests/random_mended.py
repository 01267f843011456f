"""Recipes of random models that were explained wrongly once, without a word: the smallest of each kind."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from random_models import CONTENT, COUPLED, EXITS, Recipe


def with_each(usual: Recipe, **choices: Sequence[Any]) -> tuple[Recipe, ...]:
    """The recipe with each of the values of one part."""
    ((name, values),) = choices.items()
    return tuple(replace(usual, **{name: value}) for value in values)


UNSEEN = (
    "sum_of_products", "tensordot", "aten", "normalised_later", "key_chunks", "scripted", "row_by_row", "softmin",
    "sigmoid", "relu", "linear", "convolution", "running_mean", "fourier",
)  # fmt: skip
"""Attention, and what stands in its place, that is not recognised."""
READS_FIRST = ("first", "shortcut", *EXITS)

MENDED = (
    *with_each(Recipe(readout="last"), odd=UNSEEN),
    Recipe(odd="class_row", readout="first"),
    Recipe(form="heads_first"),
    *with_each(Recipe(batch=1), order=CONTENT),
    *with_each(Recipe(batch=1), readout=READS_FIRST),
    Recipe(block="in_place"),
    Recipe(block="detached"),
    Recipe(order="flat"),
    Recipe(wrapper="fixed_batch", batch=3),
    Recipe(wrapper="features_logits"),
    *with_each(Recipe(), wrapper=COUPLED),
    *with_each(Recipe(), wrapper=("large_buffer", "counter_parameter")),
    Recipe(batch=3, mask="left", readout="last"),
    Recipe(batch=1, mask="right", readout="marker_index", length=7, seed=28),
    *with_each(Recipe(at="middle", readout="last"), odd=("normalised_later", "key_chunks")),
    Recipe(odd="linear", at="middle"),
    *with_each(Recipe(), odd=("query_chunks", "heads_last")),
    *with_each(Recipe(order="tokens_first"), batch=(2, 6)),
    *with_each(Recipe(mask="lengths"), batch=(1, 2)),
    *with_each(Recipe(order="flip_states"), mask=("float", "left")),
    *with_each(Recipe(order="flat"), odd=("bmm", "baddbmm")),
    Recipe(batch=3, order="flat", readout="max", seed=202181),
    Recipe(batch=1, readout="exit_break", seed=202003),
    Recipe(block="in_place", wrapper="coupled_states", mask="left", seed=101111),
    Recipe(odd="relu", batch=1, causal=True, readout="marker_index", seed=101008),
    Recipe(odd="sum_of_products", at="middle", block="detached", seed=202206),
    Recipe(form="aten", odd="query_chunks", length=7, seed=101224),
)
