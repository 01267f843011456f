import pytest
import torch
from layers import layer
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.capture.recording.pass_options import PassOptions
from vitrail.errors import MethodError, OptionError, TargetError
from vitrail.methods import abs_lrp, lrp, options

FAMILY = ("lrp", "partial_lrp", "transformer_attribution", "conservative_lrp", "attn_lrp", "abs_lrp")


def test_scores_of_a_picture_are_sums_over_patches():
    found = vitrail.explain(tiny("timm_vit"), MODELS["timm_vit"].inputs(), "lrp", preset="paper")
    assert found.pixels.shape == (2, 64, 64)
    for y in range(4):
        for x in range(4):
            patch = found.pixels[:, 16 * y : 16 * y + 16, 16 * x : 16 * x + 16]
            assert_close(found.scores[:, 4 * y + x], patch.sum(dim=(1, 2)))


def test_partial_lrp_is_the_positive_part_of_every_head():
    one = layer()
    relevance = torch.randn(one.probs.shape, dtype=torch.float64)
    batch, heads, _, keys = relevance.shape
    expected = torch.zeros(batch, keys, dtype=torch.float64)
    for b in range(batch):
        for k in range(keys):
            for q in range(relevance.shape[2]):
                mean = sum(max(float(relevance[b, h, q, k]), 0.0) for h in range(heads)) / heads
                expected[b, k] += one.readout[b, q] * mean
    assert_close(lrp.readout_of(relevance, one.readout), expected)


@pytest.mark.parametrize("name", ["hf_vit", "timm_vit_avg", "hf_bert", "hf_gpt2"])
def test_partial_lrp_needs_neither_rules_nor_a_graph_below_the_last_block(name, monkeypatch):
    model, inputs = tiny(name), MODELS[name].inputs()
    found = [vitrail.explain(model, inputs, "partial_lrp", target).scores for target in (0, 1)]
    assert float(torch.stack(found).abs().max()) > 0  # only the positive part is shown, which may be zero for a class
    whole = lambda **given: PassOptions(**{**given, "last_block": False})  # noqa: E731
    monkeypatch.setattr(options, "PassOptions", whole)
    for target, scores in enumerate(found):
        assert_close(scores, vitrail.explain(model, inputs, "partial_lrp", target).scores)


def test_models_in_float16_are_propagated_in_single_precision():
    torch.manual_seed(1)
    model, inputs = MODELS["timm_vit"].build().eval(), MODELS["timm_vit"].inputs().half()
    half = vitrail.explain(model.half(), inputs, "partial_lrp", 1)
    single = vitrail.explain(model.float(), inputs.float(), "partial_lrp", 1)
    assert_close(half.scores, single.scores)


def test_the_two_rule_sets_differ():
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    for method in ("lrp", "partial_lrp"):
        a, b = (vitrail.explain(model, inputs, method, 1, rules=rules).scores for rules in ("orig", "conserving"))
        assert float((a / a.abs().max() - b / b.abs().max()).abs().max()) > 1e-3


def test_a_contrast_has_an_absolute_maximum_of_one():
    found = abs_lrp.contrast(torch.rand(2, 3, 4).double(), torch.rand(2, 3, 4).double())
    assert_close(found.abs().amax(dim=(1, 2)), torch.ones(2).double())
    assert_close(abs_lrp.contrast(torch.ones(1, 2), torch.ones(1, 2)), torch.zeros(1, 2))


def test_abs_lrp_contrasts_one_class_with_all_others_and_nothing_else():
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    with pytest.raises(TargetError, match="one class with all others"):
        vitrail.explain(model, inputs, "abs_lrp", vitrail.targets.difference(0, 1))


@pytest.mark.parametrize("method", FAMILY)
def test_numbers_come_in_the_models_own_kind_of_precision(method):
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    single = vitrail.explain(MODELS["timm_vit"].build().eval(), inputs.float(), method)
    assert single.scores.dtype == torch.float32
    assert vitrail.explain(model, inputs, method).scores.dtype == torch.float64


def test_a_single_precision_model_is_propagated_in_double():
    torch.manual_seed(1)
    model, inputs = MODELS["timm_vit"].build().eval(), MODELS["timm_vit"].inputs().float()
    found = vitrail.explain(model, inputs, "lrp", 1, preset="paper")
    exact = vitrail.explain(model.double(), inputs.double(), "lrp", 1, preset="paper")
    assert_close(found.scores.double(), exact.scores, atol=0, rtol=1e-5)


@pytest.mark.parametrize("method", FAMILY)
def test_clip_is_refused_before_it_runs(method):
    model = tiny("hf_clip")
    model.forward = lambda *args, **kwargs: pytest.fail("the model ran")
    try:
        with pytest.raises(MethodError, match="no rule for the cosine"):
            vitrail.explain(model, MODELS["hf_clip"].inputs(), method)
    finally:
        del model.forward


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("lrp", {"rules": "other"}, "Known: conserving, orig"),
        ("lrp", {"level": "inputs_embeds"}, "for text inputs"),
        ("lrp", {"precision": "float16"}, "float32"),
        ("conservative_lrp", {"rules": "lxt", "detach_mean": True}, "rules='paper' only"),
        ("attn_lrp", {"level": "nowhere"}, "embedding_output"),
    ],
)
def test_wrong_options_are_named(method, options, message):
    with pytest.raises(OptionError, match=message):
        vitrail.explain(tiny("timm_vit"), MODELS["timm_vit"].inputs(), method, **options)


@pytest.mark.parametrize("method", ["vit_cx", "tis", "dix", "tam", "lrp"])
def test_methods_of_every_kind_explain_a_function_of_the_logits(method):
    options = {"vit_cx": {"threshold": 0.7}, "tis": {"clusters": 4}, "dix": {"steps": 1}, "tam": {"steps": 2}}
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    found = vitrail.explain(
        model, inputs, method, lambda logits: logits[:, 1] - logits[:, 2], **options.get(method, {})
    )
    expected = vitrail.explain(model, inputs, method, vitrail.targets.difference(1, 2), **options.get(method, {}))
    assert_close(found.scores, expected.scores)
