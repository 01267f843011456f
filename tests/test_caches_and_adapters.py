"""Caches of keys and values, and adapters of peft: the caller's objects stay, and what is explained is the text."""

import copy

import pytest
import torch
import transformers
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.errors import VitrailError
from vitrail.models.taking import every_module

SOME = ["gae", "attn_lrp", "tokentm", "auto"]


def empty_caches(model):
    return {
        "none": {"use_cache": True},
        "dynamic": {"past_key_values": transformers.DynamicCache()},
        "sized": {"past_key_values": transformers.DynamicCache(config=model.config)},
        "static": {"past_key_values": transformers.StaticCache(config=model.config, max_cache_len=16)},
    }


@pytest.mark.parametrize("which", ["none", "dynamic", "sized", "static"])
@pytest.mark.parametrize("method", SOME)
def test_an_empty_cache_changes_nothing_and_stays_empty(which, method):
    model, inputs = tiny("hf_llama"), MODELS["hf_llama"].inputs()
    extra = empty_caches(model)[which]
    expected = vitrail.explain(model, inputs, method, 1).scores
    for _ in range(2):
        assert torch.equal(vitrail.explain(model, {**inputs, **extra}, method, 1).scores, expected)
    cache = extra.get("past_key_values")
    assert cache is None or int(cache.get_seq_length()) == 0


def filled_caches(model, ids):
    cache = transformers.DynamicCache()
    model(input_ids=ids[:, :4], past_key_values=cache)
    legacy = tuple((layer.keys, layer.values) for layer in cache.layers)
    return {"cache": cache, "tuples": legacy}


@pytest.mark.parametrize("which", ["cache", "tuples"])
@pytest.mark.parametrize("method", ["gae", "attn_lrp", "auto", "rollout"])
def test_a_cache_that_holds_tokens_is_refused_and_does_not_grow(which, method):
    model, ids = tiny("hf_llama"), MODELS["hf_llama"].inputs()["input_ids"]
    cache = filled_caches(model, ids)[which]
    with pytest.raises(VitrailError, match=r"holds 4 earlier tokens.*whole text"):
        vitrail.explain(model, {"input_ids": ids[:, 4:], "past_key_values": cache}, method, 1)
    assert which == "tuples" or int(cache.get_seq_length()) == 4


def adapted(name, kind):
    peft = pytest.importorskip("peft")
    task = "CAUSAL_LM" if name == "hf_llama" else "SEQ_CLS"
    config = {
        "lora": lambda: peft.LoraConfig(task_type=task, r=4, init_lora_weights=False, target_modules="all-linear"),
        "prefix": lambda: peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=4),
        "prompt": lambda: peft.PromptTuningConfig(task_type=task, num_virtual_tokens=4),
        "p-tuning": lambda: peft.PromptEncoderConfig(task_type=task, num_virtual_tokens=4, encoder_hidden_size=16),
    }[kind]()
    torch.manual_seed(0)
    return peft.get_peft_model(MODELS[name].build(), config).double().train()


def state_of(model):
    return [
        (
            id(module),
            module.training,
            [(name, id(x)) for name, x in vars(module).items()],
            [(name, id(x), x._version, type(x)) for name, x in module._parameters.items() if x is not None],
        )
        for module in every_module(model)
    ]


def scores_or_words(model, inputs, method):
    try:
        return vitrail.explain(model, inputs, method, 1)
    except VitrailError as error:
        return str(error)


@pytest.mark.parametrize("kind", ["lora", "prefix", "prompt", "p-tuning"])
@pytest.mark.parametrize("name", ["hf_bert", "hf_llama"])
def test_no_method_changes_an_adapted_model_and_each_gives_one_score_per_word_or_says_why_not(name, kind):
    model, inputs = adapted(name, kind), MODELS[name].inputs()
    before = state_of(model)
    given = copy.deepcopy(dict(inputs))
    for method in SOME:
        found = scores_or_words(model, inputs, method)
        if isinstance(found, str):
            assert kind != "lora"
            assert "13" in found  # it says what was seen: four virtual tokens beside nine of the text
        else:
            assert found.scores.shape == inputs["input_ids"].shape
            assert bool(found.scores.any())
            assert found.provenance.get("virtual_tokens") == (4 if kind == "prefix" else None)
    assert state_of(model) == before
    assert all(torch.equal(inputs[key], given[key]) for key in given)


def test_gradients_of_a_prefix_tuned_model_are_those_of_autograd():
    model, inputs = adapted("hf_bert", "prefix"), MODELS["hf_bert"].inputs()
    found = vitrail.explain(model, inputs, "input_x_gradient", 1, level="inputs_embeds").scores
    model.eval()
    kept = []
    words = next(m for n, m in model.named_modules() if n.endswith("word_embeddings") and hasattr(m, "num_embeddings"))
    handle = words.register_forward_hook(
        lambda module, args, out: kept.append(out.detach().requires_grad_()) or kept[0]
    )
    logits = model(**inputs).logits
    handle.remove()
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), kept[0])
    assert_close(found, (gradient * kept[0]).sum(dim=2).detach().to(found.dtype))


def test_adapters_that_are_switched_off_or_merged_count_at_once():
    model, inputs = adapted("hf_bert", "lora"), MODELS["hf_bert"].inputs()
    with_adapter = vitrail.explain(model, inputs, "gae", 1).scores
    with model.disable_adapter():
        without = vitrail.explain(model, inputs, "gae", 1).scores
    assert not torch.equal(with_adapter, without)
    base = copy.deepcopy(model)
    for layer in base.modules():
        if hasattr(layer, "lora_B"):
            for part in layer.lora_B.values():
                torch.nn.init.zeros_(part.weight)
    assert_close(without, vitrail.explain(base, inputs, "gae", 1).scores)
    model.merge_adapter()
    assert_close(vitrail.explain(model, inputs, "gae", 1).scores, with_adapter)
    model.unmerge_adapter()
    assert_close(vitrail.explain(model, inputs, "gae", 1).scores, with_adapter)
