"""Random models: every answer equals plain loops over the whole model, everything else is refused, nothing changes.

`make fuzz` draws more of them. A failing draw prints its recipe and the smallest one that fails in the same way:
`python tests/random_outcomes.py "Recipe(...)"` runs it again.
"""

from collections import Counter

import pytest
import torch
from random_mended import MENDED
from random_models import MULTIHEAD, SOFTMAX, Recipe, draw
from random_outcomes import METHODS, RIGHT, bad, outcomes, report

DRAWS = 60
FOLLOWED = (
    "fused",
    "matmul",
    "einsum",
    "bmm",
    "baddbmm",
    "keys_first",
    "log_exp",
    "in_parts",
    "shared_keys",
    MULTIHEAD,
)
"""Forms of attention in which every method answers; a refusal there is a failure as well."""
PLAIN = {
    "plain": Recipe(), "causal": Recipe(readout="last", causal=True), "class_token": Recipe(readout="class_token"),
    "moved": Recipe(order="flip_states"), "layer_scale": Recipe(block="layer_scale"), "one_head": Recipe(heads=1),
    "post_norm": Recipe(norm="post"), "padded": Recipe(mask="right", batch=3), "left": Recipe(mask="left", batch=3),
    "parallel": Recipe(wrapper="data_parallel"), "counter": Recipe(wrapper="counter"), "list": Recipe(wrapper="list"),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(DRAWS))
def test_a_random_model_is_explained_rightly_or_refused(seed):
    recipe = draw(seed)
    wrong = bad(recipe)
    assert not wrong, report(recipe, wrong)


@pytest.mark.parametrize("recipe", MENDED, ids=str)
def test_what_was_explained_wrongly_once_is_right_or_refused(recipe):
    wrong = bad(recipe)
    assert not wrong, report(recipe, wrong)


@pytest.mark.parametrize("recipe", [pytest.param(x, id=name) for name, x in PLAIN.items()])
def test_what_is_plain_is_explained_by_every_method(recipe):
    methods = METHODS if recipe.norm == "pre" else tuple(x for x in METHODS if x != "tokentm")  # no reference
    found = outcomes(recipe, methods)
    assert {one.kind for one in found} == {RIGHT}, "\n".join(map(str, found))


@pytest.mark.parametrize("form", FOLLOWED)
def test_attention_in_usual_forms_is_explained_by_every_method(form):
    found = outcomes(Recipe(form="fused", odd=form, readout="last"), ("gae", "rollout", "auto"))
    assert {one.kind for one in found} == {RIGHT}, "\n".join(map(str, found))


def test_a_map_that_is_multiplied_entry_by_entry_is_no_router_to_attn_lrp():
    """One number for each token is a constant to AttnLRP, but one for each pair of tokens is a factor of a product."""
    found = outcomes(Recipe(odd="sum_of_products", at="middle"), ("auto",))
    assert {one.kind for one in found} == {RIGHT}, "\n".join(map(str, found))


def test_the_same_seed_draws_the_same_recipe_and_its_text_makes_it_again():
    for seed in range(DRAWS):
        recipe = draw(seed)
        assert eval(str(recipe)) == draw(seed) == recipe


def test_all_parts_of_recipes_are_drawn():
    drawn = Counter(form for seed in range(3000) for form in draw(seed).forms)
    assert set(SOFTMAX) <= set(drawn)


def test_a_recipe_makes_the_same_model_every_time():
    from random_models import build

    one, other = (build(draw(3)).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
