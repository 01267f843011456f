"""Kinds of random models that are known to fail, each with what is wrong.

Each kind holds its smallest recipes. `test_random_models` runs them and expects them to fail. Where one is right or
refused, that test fails until the recipe is deleted here. Recipes that are drawn are not judged by the methods that are
known to fail on their kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from random_models import CONTENT, COUPLED, EXITS, Recipe

MAPS = ("gae", "rollout", "tokentm")
ALL = (*MAPS, "auto", "leave_one_out")


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
        "unrecognised attention in the last block is left out: the layer counts as a readout of all rows",
        (*MAPS, "auto"),
        with_each(Recipe(readout="last"), odd=UNSEEN),
        lambda recipe: recipe.forms[-1] in UNSEEN,
    ),
    Known(
        "attention of the class row alone in the last block is left out",
        (*MAPS, "auto"),
        (Recipe(odd="class_row", readout="first"),),
        lambda recipe: recipe.forms[-1] == "class_row",
    ),
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
        "states of heads [h, b, n, d] are taken for samples",
        ("auto", "leave_one_out"),
        (Recipe(form="heads_first"),),
        lambda recipe: "heads_first" in recipe.forms,
    ),
    Known(
        "einsums with heads last count as two calls of attention, and the default reads relevance in another place",
        ("auto",),
        (Recipe(odd="heads_last"),),
        lambda recipe: "heads_last" in recipe.forms,
    ),
    Known(
        "an order that depends on the content is measured on earlier inputs",
        ALL,
        with_each(Recipe(batch=1), order=CONTENT),
        lambda recipe: recipe.order in CONTENT,
    ),
    Known(
        "the first word gets zero where the head reads its state",
        ("auto",),
        with_each(Recipe(batch=1), readout=READS_FIRST),
        lambda recipe: recipe.readout in READS_FIRST,
    ),
    Known(
        "what the model changes in place cannot be differentiated any more: a raw error",
        ALL,
        (Recipe(block="in_place"),),
        lambda recipe: recipe.block == "in_place",
    ),
    Known(
        "a block without gradient is answered as if it were not there",
        ("gae", "tokentm", "auto"),
        (Recipe(block="detached"),),
        lambda recipe: recipe.block == "detached",
    ),
    Known(
        "where blocks work on states [n, b, d], what enters their feed-forward part keeps its tokens first",
        ("tokentm",),
        (Recipe(order="tokens_first"),),
        lambda recipe: recipe.order == "tokens_first",
    ),
    Known(
        "blocks on states [b n, d]: a raw error",
        ALL,
        (Recipe(order="flat"),),
        lambda recipe: recipe.order == "flat",
    ),
    Known(
        "a model of a fixed batch is run on another one: a raw error",
        ALL,
        (Recipe(wrapper="fixed_batch", batch=3),),
        lambda recipe: recipe.wrapper == "fixed_batch",
    ),
    Known(
        "of (features, logits), the features are explained",
        ALL,
        (Recipe(wrapper="features_logits"),),
        lambda recipe: recipe.wrapper == "features_logits",
    ),
    Known(
        "samples that depend on each other are answered one by one",
        ("auto", "leave_one_out"),
        with_each(Recipe(), wrapper=COUPLED),
        lambda recipe: recipe.wrapper in COUPLED,
    ),
    Known(
        "what the model writes into a large buffer or a parameter stays written",
        ALL,
        with_each(Recipe(), wrapper=("large_buffer", "counter_parameter")),
        lambda recipe: recipe.wrapper in ("large_buffer", "counter_parameter"),
    ),
    Known(
        "a text without a word is padded on the right by words it does not have, masked or not",
        ("leave_one_out",),
        (
            Recipe(batch=3, mask="left", readout="last"),
            Recipe(batch=1, mask="right", readout="marker_index", length=7, seed=28),
        ),
        lambda recipe: recipe.mask != "none" and (recipe.mask == "left" or recipe.readout.startswith("marker")),
    ),
    Known(
        "where the model is given lengths, a word is cut out, but the length stays",
        ("leave_one_out",),
        (Recipe(mask="lengths"),),
        lambda recipe: recipe.mask == "lengths",
    ),
)


def known_to_fail(recipe: Recipe) -> set[str]:
    """The methods that are known to fail on recipes of a kind."""
    return {method for one in KNOWN if one.holds(recipe) for method in one.methods}
