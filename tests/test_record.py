"""The recorder leaves nothing behind, and what it hands out is what autograd says."""

import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from applying import WALKING
from golden_sets import golden
from tiny_models import MODELS, VOCABULARY, WIDTH, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.capture.recording.forward import find_body, forward
from vitrail.capture.recording.pass_options import ComputeSettings, Wanted
from vitrail.capture.shadow import shadow
from vitrail.errors import InputError, OptionError, SeamError, TargetError
from vitrail.models.inputs import read_inputs
from vitrail.relevance import walk

METHODS = WALKING


def hook_count(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


def state(model):
    flags = [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]
    return hook_count(model), *flags, [p.grad for p in model.parameters()]


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert", "torchvision_vit", "timm_siglip"])
def test_the_model_is_as_it_was(name):
    model = MODELS[name].build().double()
    model.train()
    next(iter(model.children())).eval()
    next(iter(model.parameters())).requires_grad = False
    before = state(model)
    vitrail.compare(model, MODELS[name].inputs(), METHODS)
    assert state(model) == before


def test_the_model_is_as_it_was_after_an_error():
    model = MODELS["hf_bert"].build().double().train()
    before = state(model)
    handle = model.classifier.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        vitrail.explain(model, MODELS["hf_bert"].inputs())
    handle.remove()
    assert state(model) == before
    assert torch.overrides._get_current_function_mode() is None


def test_an_error_inside_the_backward_pass_reaches_the_caller_and_leaves_no_hook(monkeypatch):
    model = tiny("hf_bert")
    before = state(model)

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("vitrail.methods.gae.pull", broken)
    with pytest.raises(ZeroDivisionError):
        vitrail.explain(model, MODELS["hf_bert"].inputs(), "gae")
    assert state(model) == before


def test_train_mode_is_explained_without_dropout():
    model, inputs = MODELS["hf_bert"].build().double(), MODELS["hf_bert"].inputs()
    expected = vitrail.explain(model.eval(), inputs).scores
    assert_close(vitrail.explain(model.train(), inputs).scores, expected)


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert", "torchvision_vit", "own_post_norm", "hf_llama"])
def test_frozen_models_give_the_same(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name].build().double().eval(), MODELS[name].inputs()
    expected = vitrail.compare(model, inputs, METHODS)
    for parameter in model.parameters():
        parameter.requires_grad = False
    for a, b in zip(vitrail.compare(model, inputs, METHODS), expected, strict=True):
        assert_close(a.scores, b.scores, atol=1e-9, rtol=1e-7)


def test_inside_inference_mode_it_gives_the_same():
    model = tiny("timm_vit")
    expected = vitrail.explain(model, MODELS["timm_vit"].inputs()).scores
    with torch.inference_mode():
        inputs = MODELS["timm_vit"].inputs()
        assert inputs.is_inference()
        found = vitrail.explain(model, inputs).scores
        assert torch.is_inference_mode_enabled()
    assert_close(found, expected)


def test_a_model_made_inside_inference_mode_is_refused_with_a_reason():
    with torch.inference_mode():
        model = MODELS["hf_bert"].build()
    with pytest.raises(InputError, match=r"made inside torch\.inference_mode"):
        vitrail.explain(model, MODELS["hf_bert"].inputs())


@pytest.mark.parametrize(("dtype", "least"), [(torch.bfloat16, 0.9), (torch.float16, 0.995)])
@pytest.mark.parametrize("method", ["gae", "tokentm", "att_grads", "attcat"])
def test_half_precision_models_are_explained_in_single_precision(dtype, least, method):
    torch.manual_seed(0)
    model, inputs = MODELS["timm_vit"].build().eval(), MODELS["timm_vit"].inputs(dtype=torch.float32)
    expected = vitrail.explain(model, inputs, method, 0).scores
    found = vitrail.explain(model.to(dtype), inputs.to(dtype), method, 0).scores
    assert found.dtype == torch.float32
    cosine = nn.functional.cosine_similarity(found, expected, dim=1)
    assert float(cosine.min()) > least


def test_a_probability_too_small_for_float16_still_has_a_gradient():
    torch.manual_seed(0)
    model, inputs = MODELS["timm_vit"].build().eval(), MODELS["timm_vit"].inputs(dtype=torch.float32)
    model.head.bias.data[0] = 14.0  # the other classes' probabilities are near 1e-6
    expected = vitrail.explain(model, inputs, "tokentm", 1).scores
    found = vitrail.explain(model.half(), inputs.half(), "tokentm", 1).scores
    assert_close(found, expected, rtol=0.02, atol=0)  # half precision inside the model


def test_two_threads_record_two_models_at_once():
    names = ["hf_vit", "hf_bert"]
    inputs = {n: MODELS[n].inputs() for n in names}  # made once: the seed is the whole process's
    expected = {n: vitrail.explain(tiny(n), inputs[n], "tokentm").scores for n in names}
    found, errors = {n: [] for n in names}, []

    def work(name):
        try:
            for _ in range(5):
                found[name].append(vitrail.explain(tiny(name), inputs[name], "tokentm").scores)
        except Exception as error:  # a thread's error would be lost otherwise
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in names for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for name in names:
        assert len(found[name]) == 10
        for scores in found[name]:
            assert_close(scores, expected[name])


@pytest.mark.parametrize("name", ["timm_vit", "hf_bert", "hf_llama", "timm_siglip", "own_time_first"])
def test_a_walk_over_the_finished_recording_is_the_walk_inside_the_backward_pass(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    recording = vitrail.record(model, inputs, 1)
    for method in ("rollout", "gae", "complete_gradient", "gradtoken", "attcat"):
        found = walk(vitrail.METHODS[method].build(), recording).scores
        expected = vitrail.explain(model, inputs, method, 1).scores
        assert_close(found[:, found.shape[1] - expected.shape[1] :], expected)


@pytest.mark.parametrize("folder", ["v_tiny", "b_tiny"])
def test_attention_and_its_gradient_are_the_golden_ones(folder):
    case = golden(folder)
    unit = "block" if folder == "v_tiny" else "layer"
    checked = 0
    for key in [k for k in case.expected if f"/model/attention_grad_{unit}4/" in k]:
        item, target = key.split("/")[0], int(key.rsplit("t", 1)[1])
        last = vitrail.record(case.model, case.item(item), target).layers[-1]
        np.testing.assert_allclose(last.probs_grad[0].numpy(), case.expected[key], atol=1e-10)
        expected = case.expected[f"{item}/model/attention_{unit}4"]
        np.testing.assert_allclose(last.probs[0].numpy(), expected, atol=1e-10)
        checked += 1
    assert checked >= 4


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert", "hf_mpnet", "hf_qwen3"])
def test_the_recorded_query_gradient_is_the_chain_rule_through_the_softmax(name):
    for layer in vitrail.record(tiny(name), MODELS[name].inputs(), 1).layers:
        product = layer.probs * layer.probs_grad
        scores = product - layer.probs * product.sum(dim=3, keepdim=True)
        assert_close(layer.query_grad, scores @ layer.keys * layer.scale, atol=1e-8, rtol=1e-5)


def test_only_what_is_asked_for_is_kept():
    layer = vitrail.record(tiny("hf_vit"), MODELS["hf_vit"].inputs(), keep={"output_grad"}).layers[0]
    assert layer.output_grad is not None
    assert layer.query_grad is None
    assert all(x is None for x in vars(layer.stream).values())


def test_what_cannot_be_kept_is_named():
    with pytest.raises(OptionError, match="Did you mean entering_grad"):
        vitrail.record(tiny("hf_vit"), MODELS["hf_vit"].inputs(), keep={"enterin_grad"})


def test_the_state_that_enters_a_block_is_what_left_the_one_before():
    layers = vitrail.record(tiny("hf_bert"), MODELS["hf_bert"].inputs()).layers
    for below, above in pairwise(layers):
        assert_close(below.stream.leaving, above.stream.entering)
        assert_close(below.stream.leaving_grad, above.stream.entering_grad)


@pytest.mark.parametrize("name", ["timm_deit3", "hf_dinov2", "hf_beit", "timm_eva02", "hf_llama", "hf_gpt2"])
def test_in_pre_norm_models_the_ffn_adds_what_it_is_said_to_add(name):
    tolerance = {"atol": 1e-6, "rtol": 1e-6} if name == "hf_llama" else {}
    for layer in vitrail.record(tiny(name), MODELS[name].inputs()).layers:
        scale = 1 if layer.ffn_scale is None else layer.ffn_scale
        assert_close(layer.stream.ffn_entering + scale * layer.stream.ffn_added, layer.stream.leaving, **tolerance)


@pytest.mark.parametrize("name", ["timm_deit3", "hf_dinov2", "hf_beit", "timm_eva02", "hf_gpt2", "torchvision_vit"])
def test_the_output_projection_turns_head_outputs_into_what_attention_adds(name):
    model = tiny(name)
    for layer in vitrail.record(model, MODELS[name].inputs()).layers:
        heads = layer.output.transpose(1, 2).flatten(2)
        added = layer.stream.ffn_entering - layer.stream.entering
        scale = 1 if layer.attention_scale is None else layer.attention_scale
        rest = added - scale * (heads @ layer.output_weight.T)  # the output bias, the same for every token
        assert_close(rest, rest[:1, :1].expand_as(rest), atol=1e-10, rtol=0)


def test_calls_know_the_module_that_made_them():
    owners = [layer.owner for layer in vitrail.record(tiny("hf_bert"), MODELS["hf_bert"].inputs()).layers]
    assert owners == [f"bert.encoder.layer.{i}.attention.self" for i in range(3)]


class Silent(nn.Module):
    """Blocks without any attention."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x):
        return self.layers[0](x.mean(dim=(2, 3)).repeat(1, 2)[:, :4])


def test_a_model_without_attention_is_an_error_that_says_what_was_listened_for():
    with pytest.raises(SeamError, match="scaled_dot_product_attention"):
        vitrail.explain(Silent(), torch.randn(1, 3, 8, 8), anatomy=vitrail.Anatomy(blocks="layers"))


def test_a_model_that_sees_both_ways_is_not_taken_for_a_causal_one_when_its_layers_were_read():
    """Calls are freed with the last layers, and whether none of them is causal cannot be told from none at all."""
    from transformers import BertConfig, BertForTokenClassification

    model = BertForTokenClassification(BertConfig(**WIDTH, **VOCABULARY)).double().eval()
    read, wanted = read_inputs(MODELS["hf_bert"].inputs()), Wanted.of(frozenset({"output_grad"}))
    with shadow(model) as own, forward(own, read, find_body(own, None, read), wanted, ComputeSettings()) as run:
        (part,) = run.parts(targets.logit(0, position=3))
        assert len(list(run.layers(part, wanted, again=False))) == 3
        with pytest.raises(TargetError, match="answers at every token"):
            run.parts(targets.logit(1))
