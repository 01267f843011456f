from dataclasses import replace

import pytest
import torch
from layers import B, T, random, stack
from plain_vit import plain_vit, watched
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.errors import AnatomyError, OptionError, TargetError
from vitrail.methods import dix


def rolled(maps):
    """The class token's row of the product of row-normalised (P + I), as whole matrices."""
    product = torch.eye(maps[0].shape[-1], dtype=torch.float64)
    for mixing in maps:
        factor = mixing + torch.eye(mixing.shape[-1], dtype=torch.float64)
        product = (factor / factor.sum(dim=-1, keepdim=True)) @ product
    return product[..., 0, :]


def by_hooks(model, images, target, *, steps, inject):
    """Each of the last two blocks in turn gets tau times a map; gradients by plain autograd."""
    with watched(model) as seen:
        model(images)
    clean, last, total = [x.detach() for x in seen["maps"]], len(model.blocks) - 1, 0
    for place in (last, last - 1):
        sums = [0.0] * len(clean)
        for step in range(steps + 1):
            given = (step / steps * clean[last if inject == "last" else place]).requires_grad_()
            with watched(model, lambda block, x, place=place, given=given: given if block == place else x) as seen:
                logits = model(images)
            gradients = torch.autograd.grad(logits[:, target].sum(), seen["maps"])
            for index, (g, a) in enumerate(zip(gradients, seen["maps"], strict=True)):
                sums[index] = sums[index] + (g * a).clamp(min=0).mean(dim=1).detach() / (steps + 1)
        total = total + rolled(sums)
    return total[:, 1:]


@pytest.mark.parametrize(("inject", "fused"), [("own", True), ("last", False)])
def test_a_model_gives_what_hooks_and_whole_matrices_give(inject, fused):
    model, images = plain_vit()
    expected = by_hooks(model, images, 3, steps=2, inject=inject)
    for block in model.blocks:
        block.attn.fused_attn = fused
    assert_close(vitrail.explain(model, images, "dix", 3, steps=2, inject=inject).scores, expected)


def test_the_rollout_of_random_maps_is_the_product_of_normalised_matrices():
    maps = [random(B, T, T).abs() for _ in range(3)]
    assert_close(dix.rollout(maps, stack()), rolled(maps))


def test_maps_of_zeros_leave_the_readout_to_itself():
    layers = stack()
    assert_close(dix.rollout([torch.zeros(B, T, T).double()] * 3, layers), layers[0].readout)


def test_one_even_map_solved_by_hand():
    """P = 1 everywhere: the row of P + I is 2, 1, 1, 1, 1 and its sum 6."""
    expected = torch.tensor([2.0, 1, 1, 1, 1]).double().expand(B, T) / 6
    assert_close(dix.rollout([torch.ones(B, T, T).double()], stack(depth=1)), expected)


def test_a_pooling_layer_has_no_skip_connection_and_may_be_empty():
    one = replace(stack(depth=1)[0], pooling=True)
    even = torch.full((B, T), 1 / T).double()
    assert_close(dix.roll(one.readout, torch.ones(B, T, T).double(), one), even)
    assert_close(dix.roll(one.readout, torch.zeros(B, T, T).double(), one), 0 * even)


def test_the_released_code_injects_the_last_blocks_attention_twice():
    assert vitrail.METHODS["dix"].preset("official") == {"inject": "last"}
    assert vitrail.METHODS["dix"].resolve("paper", {}, "image") == {"steps": 10, "inject": "own"}


def test_options_that_cannot_be_are_refused():
    model, images = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    with pytest.raises(OptionError, match="steps=0"):
        vitrail.explain(model, images, "dix", steps=0)
    with pytest.raises(OptionError, match="inject='first'"):
        vitrail.explain(model, images, "dix", inject="first")


def test_two_blocks_are_needed():
    model = MODELS["hf_bert"].build().double()
    model.bert.encoder.layer = model.bert.encoder.layer[:1]
    with pytest.raises(AnatomyError, match="at least 2 blocks"):
        vitrail.explain(model, MODELS["hf_bert"].inputs(), "dix")


def test_the_model_is_restored_after_an_error_on_the_way():
    model, images = plain_vit()
    before, calls = model(images), []

    def target(logits):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("enough")
        return logits[:, 0]

    with pytest.raises(TargetError, match="enough"):
        vitrail.explain(model, images, "dix", target)
    assert torch.equal(model(images), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
