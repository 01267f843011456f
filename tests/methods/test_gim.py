"""GIM: its softmax in plain sums, fused attention against maps written out, and its baselines."""

import pytest
import torch
from tiny_models import MODELS, tiny
from torch.testing import assert_close
from transformers import BeitConfig, BeitForImageClassification

import vitrail
from vitrail import targets
from vitrail.errors import OptionError
from vitrail.methods.gim import softmax_gradient


def test_the_gradient_of_a_softmax_is_taken_at_a_temperature():
    torch.manual_seed(0)
    g, z = torch.randn(2, 3, 5, dtype=torch.float64)
    expected = torch.zeros_like(z)
    for row in range(3):
        weights = [float((z[row, k] / 2).exp()) for k in range(5)]
        weights = [w / sum(weights) for w in weights]
        mean = sum(float(g[row, k]) * weights[k] for k in range(5))
        for k in range(5):
            expected[row, k] = weights[k] * (g[row, k] - mean)
    assert_close(softmax_gradient(g, z, -1, 2.0), expected)
    assert_close(softmax_gradient(g.T, z.T, 0, 2.0), expected.T)


@pytest.mark.parametrize(("fused", "eager"), [("hf_bert", "hf_bert_eager"), ("hf_llama", "hf_llama_eager"), ("hf_vit", "hf_vit_eager")])  # fmt: skip  # noqa: E501
def test_fused_attention_gives_what_its_maps_give(fused, eager):
    inputs = MODELS[fused].inputs()
    if isinstance(inputs, dict) and "attention_mask" in inputs:
        inputs["attention_mask"][1, -2:] = 0
    model = tiny(eager)
    model.load_state_dict(tiny(fused).state_dict())
    for temperature in (1.0, 2.0, 3.5):
        found = [vitrail.explain(x, inputs, "gim", [0, 2], temperature=temperature) for x in (tiny(fused), model)]
        assert_close(found[0].scores, found[1].scores, atol=1e-7, rtol=1e-6)


def test_a_bias_that_is_added_to_the_scores_of_attention_is_divided_too():
    torch.manual_seed(0)
    config = {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40, "image_size": 32,
        "patch_size": 8, "use_relative_position_bias": True,
    }  # fmt: skip
    fused = BeitForImageClassification(BeitConfig(**config)).double().eval()
    with torch.no_grad():
        for x in fused.parameters():
            x.add_(torch.randn_like(x), alpha=0.5)
    eager = BeitForImageClassification(BeitConfig(**config, attn_implementation="eager")).double().eval()
    eager.load_state_dict(fused.state_dict())
    found = [vitrail.explain(x, torch.ones(1, 3, 32, 32).double().cumsum(3), "gim", 1).scores for x in (fused, eager)]
    assert_close(*found, atol=1e-8, rtol=1e-6)


def test_at_temperature_one_it_is_the_gradient_with_shared_products():
    """Scores of tokens after the one that is read are exactly zero, and another temperature gives other scores."""
    model, inputs = tiny("hf_gpt2"), MODELS["hf_gpt2"].inputs()
    scores = [
        vitrail.explain(model, inputs, "gim", targets.logit(5, position=4), temperature=t).scores for t in (1.0, 2.0)
    ]
    assert all(bool((x[:, 5:] == 0).all()) for x in scores)
    assert not torch.allclose(*scores)


def test_the_mean_of_the_real_tokens_is_taken_off():
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    inputs["attention_mask"][1, -3:] = 0
    found = vitrail.explain(model, inputs, "gim", 1, baseline="mean").scores
    alone = {name: x[1:, :-3] for name, x in inputs.items()}
    assert_close(found[1:, :-3], vitrail.explain(model, alone, "gim", 1, baseline="mean").scores)
    assert bool((found[1, -3:] == 0).all())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": 0.0}, "above zero"),
        ({"baseline": "noise"}, "mean"),
        ({"temperature": float("nan")}, "above zero"),
    ],
)
def test_wrong_options_are_named(options, said):
    with pytest.raises(OptionError, match=said):
        vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), "gim", 1, **options)
