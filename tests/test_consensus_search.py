"""The recipes of `benchmarks/consensus.py`: what they share with the method, and what cannot change an order."""

import sys
from pathlib import Path

import pytest
import torch
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.methods.pixel_maps import grey

HERE = Path(__file__).parents[1] / "benchmarks"
NAME = "hf_vit"


@pytest.fixture(scope="module")
def search():
    sys.path.insert(0, str(HERE))
    try:
        import consensus_fine
        import consensus_measuring
        import consensus_variants
    finally:
        sys.path.remove(str(HERE))
    return consensus_variants, consensus_fine, consensus_measuring


def ingredients(variants, inputs, names):
    specs = [variants.INGREDIENTS[name] for name in names]
    specs = [
        (method, {**options, "precision": "float64"} if "precision" in options else options)
        for method, options in specs
    ]
    found = vitrail.compare(tiny(NAME), inputs, specs, 1)
    return {name: a.scores.reshape(-1, *a.grid) for name, a in zip(names, found, strict=True)}


@pytest.fixture
def found(search):
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(3, 5, 4, generator=generator).double() for name in search[0].INGREDIENTS}


def test_the_first_recipe_is_the_sum_of_three(search):
    inputs = MODELS[NAME].inputs()
    made = search[0].RECIPES["consensus"](ingredients(search[0], inputs, ("g", "a", "l")))
    three = {"parts": "gae+attn_lrp+le_grad", "smooth": 0.0}
    assert_close(made.flatten(1), vitrail.explain(tiny(NAME), inputs, "consensus", 1, **three).scores)


def test_the_chosen_recipe_is_the_method(search):
    inputs, chosen = MODELS[NAME].inputs(), search[0].RECIPES["2: √g + 0.5 √a + √l + ½√att_grads, smooth 0.4"]
    made = chosen(ingredients(search[0], inputs, ("g", "a", "l", "att_grads")))
    # The search cuts the Gaussian off after one patch, the method where nothing is left of it.
    assert_close(made.flatten(1), vitrail.explain(tiny(NAME), inputs, "consensus", 1).scores, rtol=1e-5, atol=1e-5)


def test_the_fine_map_is_that_of_the_preset(search):
    variants, fine, measuring = search
    inputs = MODELS[NAME].inputs()
    picture = inputs["pixel_values"] if isinstance(inputs, dict) else inputs
    moves = fine.MOVES["4 x 4 px"]
    found = {move: ingredients(variants, measuring.moved(picture, *move), ("g", "a", "l")) for move in moves}
    smooth = fine.averaged(fine.BASES["consensus"], moves, found, tuple(picture.shape[2:]))
    expected = vitrail.explain(tiny(NAME), inputs, "consensus", 1, "fine", parts="gae+attn_lrp+le_grad").pixels
    assert_close(fine.Fine("consensus").finish(smooth, grey(picture)), expected)


def test_lengths_of_one_are_no_weights(search):
    inputs, bare = MODELS[NAME].inputs(), search[0].BARE
    plain, weighed = vitrail.compare(tiny(NAME), inputs, ["gae", ("tokentm", {**bare, "length": False})], 1)
    assert_close(plain.scores, weighed.scores)


def test_what_is_perturbed_once_for_several_recipes_has_one_order(search, found):
    variants = search[0]
    changed = [recipe for recipe in variants.RECIPES.values() if recipe.order != recipe]
    assert changed
    for recipe in changed:
        before, after = recipe.order(found), recipe(found)
        size = tuple(after.shape[1:])
        large = torch.nn.functional.interpolate(before[:, None], size=size, mode="bilinear", align_corners=False)
        rising = after.flatten(1).gather(1, large.flatten(1).argsort(dim=1)).diff(dim=1)
        assert rising.min() >= 0


def test_every_recipe_gives_a_finite_map_that_ignores_the_scale_of_its_parts(search, found):
    larger = {name: 7 * x for name, x in found.items()}
    for name, recipe in search[0].RECIPES.items():
        made = recipe(found)
        assert made.isfinite().all(), name
        assert_close(made, recipe(larger), msg=name)


def test_smoothing_keeps_a_constant_and_spreads_a_point(search):
    smoothed = search[0].smoothed
    assert_close(smoothed(torch.full((1, 4, 4), 2.5).double(), 0.7), torch.full((1, 4, 4), 2.5).double())
    point = torch.zeros(1, 5, 5).double()
    point[0, 2, 2] = 1
    spread = smoothed(point, 0.7)
    assert_close(spread.sum(), torch.tensor(1.0).double())
    assert_close(spread[0, 1, 2] / spread[0, 2, 2], torch.tensor(-1 / (2 * 0.49)).double().exp())
