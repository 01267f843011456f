import copy

import pytest
import torch
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.errors import OptionError

METHOD = "input_x_gradient"
PLACES = [("embedding_output", "embeddings"), ("inputs_embeds", "embeddings.word_embeddings")]


def logit_on(model, inputs, module, x):
    handle = module.register_forward_hook(lambda module, args, out: x)
    logits = model(**inputs).logits
    handle.remove()
    return logits[:, 1]


@pytest.mark.parametrize(("level", "path"), PLACES)
def test_the_score_is_the_derivative_as_one_token_grows(level, path):
    """d/da F(..., a x_t, ...) at a = 1 is x_t times the gradient, summed over channels: a central difference."""
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    module, kept = model.bert.get_submodule(path), []
    handle = module.register_forward_hook(lambda module, args, out: kept.append(out.detach()))
    model(**inputs)
    handle.remove()
    scores = vitrail.explain(model, inputs, METHOD, 1, level=level).scores
    for token in (0, 4, 8):
        ends = []
        for factor in (1 - 1e-5, 1 + 1e-5):
            x = kept[0].clone()
            x[:, token] *= factor
            ends.append(logit_on(model, inputs, module, x).detach())
        assert_close(scores[:, token], (ends[1] - ends[0]) / 2e-5, atol=1e-8, rtol=1e-6)


def test_pixels_are_a_map_of_the_picture():
    model, x = tiny("timm_vit_avg"), MODELS["timm_vit_avg"].inputs()
    leaf = x.clone().requires_grad_()
    expected = (x * torch.autograd.grad(model(leaf)[:, 3].sum(), leaf)[0]).sum(dim=1)
    found = vitrail.explain(model, x, METHOD, 3, level="pixels")
    assert_close(found.pixels, expected)
    assert_close(found.scores, expected.unflatten(1, (3, 16)).unflatten(3, (5, 16)).sum(dim=(2, 4)).flatten(1))


def test_the_negated_target_negates_the_scores():
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    found = vitrail.explain(model, inputs, METHOD, vitrail.targets.difference(0, 2))
    other = vitrail.explain(model, inputs, METHOD, vitrail.targets.difference(2, 0))
    assert found.signed
    assert_close(found.scores, -other.scores)


def test_single_precision_agrees_with_double():
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    double = vitrail.explain(model, inputs, METHOD, 1).scores
    half = vitrail.explain(copy.deepcopy(model).float(), {"pixel_values": inputs["pixel_values"].float()}, METHOD, 1)
    assert half.scores.dtype == torch.float32
    assert_close(half.scores.double(), double, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "level", "words"),
    [
        ("hf_bert", "pixels", "for image inputs"),
        ("hf_vit", "inputs_embeds", "for text inputs"),
        ("hf_vit", "pixel", "not a choice"),
    ],
)
def test_a_level_the_inputs_do_not_have_is_refused(name, level, words):
    with pytest.raises(OptionError, match=words):
        vitrail.explain(tiny(name), MODELS[name].inputs(), METHOD, level=level)


def test_the_first_blocks_input_needs_blocks():
    anatomy = vitrail.Anatomy(prefix=1, readout="cls")
    with pytest.raises(OptionError, match="needs the model's blocks"):
        vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), METHOD, anatomy=anatomy)
