"""Kinds of random models that are known to fail, each with what is wrong, and recipes that failed once.

Each kind holds its smallest recipes. `test_random_models` runs them and expects them to fail. Where one is right or
refused, that test fails until the recipe is deleted here. Recipes that are drawn are not judged by the methods that are
known to fail on their kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from random_models import CONTENT, COUPLED, EXITS, Recipe


@dataclass(frozen=True)
class Known:
    """A kind of model that fails.

    Args:
        reason: what is wrong.
        methods: that fail; the first of them fails on each of the recipes.
        recipes: the smallest of this kind.
        holds: says of a recipe whether it is of this kind.
    """

    reason: str
    methods: tuple[str, ...]
    recipes: tuple[Recipe, ...]
    holds: Callable[[Recipe], bool]


def with_each(usual: Recipe, **choices: Sequence[Any]) -> tuple[Recipe, ...]:
    """The recipe with each of the values of one part."""
    ((name, values),) = choices.items()
    return tuple(replace(usual, **{name: value}) for value in values)


UNSEEN = (
    "sum_of_products", "tensordot", "aten", "normalised_later", "key_chunks", "scripted", "row_by_row", "softmin",
    "sigmoid", "relu", "linear", "convolution", "running_mean", "fourier",
)  # fmt: skip
"""Attention, and what stands in its place, that is not recognised."""
IN_PARTS = ("normalised_later", "key_chunks")
READS_FIRST = ("first", "shortcut", *EXITS)


KNOWN = (
    Known(
        "AttnLRP takes a softmax in parts that is divided after the product for other functions, and answers",
        ("auto",),
        with_each(Recipe(at="middle", readout="last"), odd=IN_PARTS),
        lambda recipe: bool(set(recipe.forms) & set(IN_PARTS)),
    ),
    Known(
        "AttnLRP has no rule for linear attention, takes its quotient for a gate, and answers",
        ("auto",),
        (Recipe(odd="linear", at="middle"),),
        lambda recipe: "linear" in recipe.forms,
    ),
    Known(
        "of attention in chunks of queries, TokenTM reads another map than the model's",
        ("tokentm",),
        (Recipe(odd="query_chunks"),),
        lambda recipe: "query_chunks" in recipe.forms,
    ),
    Known(
        "einsums with heads last count as two calls of attention, and the default reads relevance in another place",
        ("auto",),
        (Recipe(odd="heads_last"),),
        lambda recipe: "heads_last" in recipe.forms,
    ),
    Known(
        "where blocks work on states [n, b, d], what enters their feed-forward part keeps its tokens first",
        ("tokentm",),
        (Recipe(order="tokens_first"),),
        lambda recipe: recipe.order == "tokens_first",
    ),
    Known(
        "where the model is given lengths, a word is cut out, but the length stays",
        ("leave_one_out",),
        (Recipe(mask="lengths"),),
        lambda recipe: recipe.mask == "lengths",
    ),
)

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
)
"""The smallest recipes of kinds that were explained wrongly once, without a word."""


def known_to_fail(recipe: Recipe) -> set[str]:
    """The methods that are known to fail on recipes of a kind."""
    return {method for one in KNOWN if one.holds(recipe) for method in one.methods}
