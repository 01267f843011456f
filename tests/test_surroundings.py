"""What the caller may have around a model: threads, autocast, compilation, masks of every form."""

import threading

import numpy as np
import pytest
import torch
import transformers
from applying import WALKING
from tiny_models import BERT, DECODER, IMAGE, MODELS, WIDTH, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.errors import ModelError, OptionError, TargetError

METHODS = WALKING
PAIRS = {
    "hf_vit": ("ViTForImageClassification", "ViTConfig", {**WIDTH, **IMAGE}),
    "hf_bert": ("BertForSequenceClassification", "BertConfig", BERT),
    "hf_llama": ("LlamaForCausalLM", "LlamaConfig", DECODER),
    "hf_gpt2": ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 60, "n_embd": 24, "n_layer": 3, "n_head": 3}),
}


def check_same(found, expected, **tolerance):
    for a, b in zip(found, expected, strict=True):
        assert_close(a.scores, b.scores, msg=lambda m, a=a: f"{a.method}: {m}", **tolerance)


@pytest.mark.parametrize("name", PAIRS)
def test_hand_written_and_fused_attention_give_the_same(name):
    model_class, config_class, options = PAIRS[name]
    torch.manual_seed(0)
    fused, eager = (
        getattr(transformers, model_class)(
            getattr(transformers, config_class)(**options, attn_implementation=path)
        ).double().eval()
        for path in ("sdpa", "eager")
    )  # fmt: skip
    eager.load_state_dict(fused.state_dict())
    methods = [*METHODS, ("gradtoken", {"heads": "mean"})]
    kinds = [vitrail.record(m, MODELS[name].inputs()).layers[0].weights is None for m in (fused, eager)]
    assert kinds == [True, False]
    found, expected = (vitrail.compare(m, MODELS[name].inputs(), methods, 1) for m in (eager, fused))
    for a, b in zip(found, expected, strict=True):  # the hand-written softmax is computed in float32
        assert_close(a.scores, b.scores, atol=1e-4 * float(b.scores.abs().max()), rtol=1e-4)


def test_a_plain_run_in_another_thread_disturbs_nothing_and_is_not_disturbed():
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    expected, logits = vitrail.explain(model, inputs).scores, model(**inputs).logits.detach()
    errors, stop = [], threading.Event()

    def plain():
        try:
            while not stop.is_set():
                assert torch.equal(model(**inputs).logits.detach(), logits)
        except Exception as error:  # a thread's error would be lost otherwise
            errors.append(error)

    thread = threading.Thread(target=plain)
    thread.start()
    try:
        for _ in range(30):
            assert_close(vitrail.explain(model, inputs).scores, expected)
    finally:
        stop.set()
        thread.join()
    assert errors == []


def test_under_autocast_the_model_runs_in_half_precision_and_the_algebra_does_not():
    torch.manual_seed(0)
    model, inputs = MODELS["timm_vit"].build().eval(), MODELS["timm_vit"].inputs(dtype=torch.float32)
    expected = vitrail.compare(model, inputs, METHODS, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = vitrail.compare(model, inputs, METHODS, 0)
    for a, b in zip(found, expected, strict=True):
        assert a.scores.dtype == torch.float32
        if a.method in {"rollout", "gae", "tokentm", "att_grads"}:
            assert_close(a.scores, b.scores, rtol=0.1, atol=float(b.scores.abs().max()) * 0.05)  # bfloat16 inside


@pytest.mark.parametrize("part", ["all", "base"])
def test_compiled_code_is_run_as_it_was_written(part):
    model, inputs = MODELS["hf_bert"].build().double().eval(), MODELS["hf_bert"].inputs()
    expected = vitrail.explain(model, inputs).scores
    if part == "all":
        compiled = torch.compile(model, backend="aot_eager")
    else:
        model.bert = torch.compile(model.bert, backend="aot_eager")
        compiled = model
    assert_close(vitrail.explain(compiled, inputs).scores, expected)


LOWEST = float(torch.finfo(torch.float64).min)


@pytest.mark.parametrize("masked", [-1e9, LOWEST, -torch.inf])
@pytest.mark.parametrize("name", ["hf_bert", "hf_bert_eager"])
def test_a_mask_of_four_axes_hides_what_one_of_two_hides(name, masked):
    model = tiny(name)
    ids = torch.tensor([[1, 5, 9, 2, 0, 0], [1, 7, 8, 4, 3, 2]])
    real = (ids != 0).long()
    added = torch.zeros(2, 1, 1, 6, dtype=torch.float64).masked_fill(real[:, None, None] == 0, masked)
    two, four = (
        vitrail.compare(model, {"input_ids": ids, "attention_mask": mask}, METHODS, 1)
        for mask in (real, added.expand(2, 1, 6, 6))
    )
    check_same(four, two, atol=1e-9, rtol=1e-6)


def test_an_answer_given_as_a_tuple_is_still_an_answer():
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40
    )
    model, inputs = transformers.BertForQuestionAnswering(config).double().eval(), MODELS["hf_bert"].inputs(batch=1)
    expected = vitrail.explain(model, inputs, "attcat")
    found = vitrail.explain(model, {**inputs, "return_dict": False, "start_positions": torch.tensor([1])}, "attcat")
    assert found.target == targets.answer_span()
    assert_close(found.scores, expected.scores)


def test_the_probability_of_a_single_logit_is_its_sigmoid():
    logits = torch.tensor([[0.3], [-2.0]], dtype=torch.float64)
    assert_close(targets.probability()(logits), logits[:, 0].sigmoid())


@pytest.mark.parametrize("target", [np.int64(1), np.array([1, 2]), [np.int64(1), 2], (1, 2)])
def test_numbers_of_numpy_are_class_indices(target):
    found = vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), "rollout", target)
    assert found.target.first in {(1, 1), (1, 2)}


@pytest.mark.parametrize("wrong", [torch.tensor(1.5), torch.tensor([[1], [2]]), [0.5, 1.0], "tabby"])
def test_what_is_no_class_index_is_a_target_error(wrong):
    with pytest.raises(TargetError, match="whole number"):
        targets.as_target(wrong)


def test_an_image_that_patches_do_not_fill_is_explained_as_far_as_they_go():
    inputs = {"pixel_values": torch.randn(1, 3, 33, 47, dtype=torch.float64), "interpolate_pos_encoding": True}
    assert vitrail.explain(tiny("hf_vit"), inputs, "gae", 1).grid == (4, 5)


class WithState(nn.Linear):
    def get_extra_state(self):
        return {"more": "than tensors"}

    def set_extra_state(self, state):
        pass


def test_a_model_may_keep_more_than_tensors_in_its_state():
    model = MODELS["hf_bert"].build().eval()
    model.classifier = WithState(24, 3)
    assert vitrail.explain(model, MODELS["hf_bert"].inputs(), "gae").scores.shape == (2, 9)


def test_a_single_block_has_nothing_to_propagate_through():
    config = transformers.BertConfig(**{**BERT, "num_hidden_layers": 1})
    model, inputs = transformers.BertForSequenceClassification(config).eval(), MODELS["hf_bert"].inputs()
    assert vitrail.explain(model, inputs, "gradtoken", scheme="none").scores.shape == (2, 9)
    with pytest.raises(OptionError, match="no block lies below"):
        vitrail.explain(model, inputs, "gradtoken")


def test_arguments_of_ones_own_names_are_passed_on():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = MODELS["own_post_norm"].build()

        def forward(self, words):
            return self.inner(words)

    ids = MODELS["own_post_norm"].inputs()
    assert vitrail.explain(Own(), {"words": ids}, "gae").scores.shape == ids.shape


@pytest.mark.parametrize("method", ["gae", "attn_lrp", "integrated_gradients", "auto"])
@pytest.mark.parametrize("name", ["hf_vit", "hf_bert"])
def test_a_default_device_of_the_callers_changes_nothing(name, method):
    """On the meta device tensors hold no values, so one that is made there by accident fails."""
    model, inputs = tiny(name), MODELS[name].inputs()
    options = {"steps": 2} if method == "integrated_gradients" else {}
    expected = vitrail.explain(model, inputs, method, 1, **options).scores
    with torch.device("meta"):
        found = vitrail.explain(model, inputs, method, 1, **options).scores
        assert torch.zeros(1).is_meta
    assert torch.equal(found, expected)


def test_a_model_makes_its_tensors_where_the_caller_says():
    made, inputs = [], MODELS["hf_bert"].inputs()
    model = MODELS["hf_bert"].build().eval()
    model.register_forward_pre_hook(lambda *_: made.append(torch.zeros(1).device.type))
    with torch.device("meta"):
        vitrail.explain(model, inputs, "gae", 1)
    assert set(made) == {"meta"}


@pytest.mark.parametrize("method", ["gae", "attn_lrp", "auto"])
def test_weights_without_values_are_refused(method):
    with torch.device("meta"):
        model = MODELS["hf_bert"].build().eval()
    with pytest.raises(ModelError, match=r"on the meta device and hold no values\. Load them"):
        vitrail.explain(model, MODELS["hf_bert"].inputs(), method, 1)
