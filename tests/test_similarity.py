"""Similarity of encodings as a target. Expected: autograd on the model as it is, and Chefer's equations by matrices."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from any_models import BERT, PICTURE, hf, noise, words
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.errors import InputError, TargetError

TOWER = {**BERT, "bos_token_id": 1, "eos_token_id": 2}


def mean_of_words(out, inputs):
    mask = inputs["attention_mask"][..., None].double()
    return (out.last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)


def text():
    inputs = words(2)
    inputs["attention_mask"][1, 6:] = 0
    return inputs


def picture():
    return {"pixel_values": noise(2, 3, 32, 32)}


CASES = {
    "mean of words": (hf("BertModel", **BERT), text, {}, mean_of_words),
    "first word": (hf("BertModel", **BERT), text, {"pooling": "first"}, lambda out, _: out.last_hidden_state[:, 0]),
    "modernbert": (
        hf("ModernBertModel", **BERT, cls_token_id=1, sep_token_id=2, reference_compile=False), text, {}, mean_of_words,
    ),
    "clip text": (hf("CLIPTextModelWithProjection", **TOWER, projection_dim=8), text, {},
                  lambda out, _: out.text_embeds),
    "clip picture": (hf("CLIPVisionModelWithProjection", **PICTURE, projection_dim=8), picture, {},
                     lambda out, _: out.image_embeds),
}  # fmt: skip


def made(name):
    torch.manual_seed(0)
    build, inputs, options, encode = CASES[name]
    model, other = build(attn_implementation="eager").double().eval(), None
    with torch.no_grad():
        other = torch.randn(2, encode(model(**inputs()), inputs()).shape[1], dtype=torch.float64)
    return model, inputs(), options, encode, other


@pytest.mark.parametrize("name", CASES)
def test_gae_follows_the_gradient_of_the_similarity(name):
    model, inputs, options, encode, other = made(name)
    out = model(**inputs, output_attentions=True, output_hidden_states=True)
    scalar = F.cosine_similarity(encode(out, inputs), other)
    *grads, arriving = torch.autograd.grad(scalar.sum(), [*out.attentions, out.hidden_states[-1]])
    total = torch.eye(grads[0].shape[-1], dtype=torch.float64).repeat(2, 1, 1)
    for attention, gradient in zip(out.attentions, grads, strict=True):
        total = total + (attention * gradient).clamp(min=0).mean(dim=1) @ total
    read = (arriving != 0).any(dim=-1).double()
    expected = ((read / read.sum(dim=1, keepdim=True))[:, None] @ total)[:, 0]
    found = vitrail.explain(model, inputs, "gae", targets.similarity(other, **options))
    real = inputs.get("attention_mask", torch.ones(found.scores.shape))
    assert_close(found.scores, expected[:, -found.scores.shape[1] :] * real, atol=1e-9, rtol=1e-7)
    assert str(found.target) == "similarity"


def test_input_times_gradient_is_that_of_the_similarity():
    model, inputs, _, encode, other = made("mean of words")
    found = vitrail.explain(model, inputs, "input_x_gradient", targets.similarity(other)).scores
    kept = []
    model.embeddings.register_forward_hook(lambda module, args, out: kept.append(out))
    scalar = F.cosine_similarity(encode(model(**inputs), inputs), other)
    (gradient,) = torch.autograd.grad(scalar.sum(), kept[0])
    expected = (kept[0] * gradient).sum(dim=-1) * inputs["attention_mask"]
    assert_close(found, expected.detach())


@pytest.mark.parametrize("index", [0, 1])
def test_a_pooling_attention_is_followed(index):
    torch.manual_seed(0)
    model, inputs = hf("SiglipVisionModel", **PICTURE)().double().eval(), picture()
    other = torch.randn(2, 32, dtype=torch.float64)
    found = vitrail.explain(model, inputs, "gae", targets.similarity(other)).scores
    classes = vitrail.explain(Compared(model, other), inputs["pixel_values"], "gae", index).scores
    assert_close(found[index], classes[index], atol=1e-9, rtol=1e-7)


class Compared(torch.nn.Module):
    """A model whose classes are its similarities to each of some encodings."""

    def __init__(self, inner, others):
        super().__init__()
        self.inner = inner
        self.register_buffer("others", others)

    def forward(self, pixel_values):
        encodings = self.inner(pixel_values=pixel_values).pooler_output
        return F.cosine_similarity(encodings[:, None], self.others[None], dim=-1)


def test_one_encoding_serves_all_samples_and_may_be_an_array():
    model, inputs, _, _, other = made("mean of words")
    one = vitrail.explain(model, inputs, "gae", targets.similarity(other[0].numpy())).scores
    both = vitrail.explain(model, inputs, "gae", targets.similarity(other[:1].repeat(2, 1))).scores
    assert_close(one, both)
    each = vitrail.explain(model, inputs, "gae", targets.similarity(other)).scores
    assert_close(each[0], one[0])
    assert float((each[1] - one[1]).abs().max()) > 1e-9


@pytest.mark.parametrize("method", ["auto", "tokentm", "attcat", "gradtoken", "attn_lrp"])
def test_other_methods_take_it(method):
    model, inputs, _, _, other = made("mean of words")
    single = {name: x[:1] for name, x in inputs.items()}
    whole = vitrail.explain(model, inputs, method, targets.similarity(other)).scores
    assert bool(torch.isfinite(whole).all())
    assert_close(vitrail.explain(model, single, method, targets.similarity(other[0])).scores, whole[:1])


def test_what_has_no_meaning_is_refused():
    model, inputs, _, _, other = made("mean of words")
    with pytest.raises(InputError, match="similarity"):
        vitrail.explain(model, inputs, "gae")
    with pytest.raises(InputError, match="similarity"):
        vitrail.explain(model, inputs, "gae", 1)
    with pytest.raises(TargetError, match="runs the model on 8 of 9 tokens"):
        vitrail.explain(model, inputs, "leave_one_out", targets.similarity(other))
    with pytest.raises(TargetError, match="one vector of 32 numbers"):
        vitrail.explain(model, inputs, "gae", targets.similarity(other[:, :5]))
    with pytest.raises(TargetError, match="no direction"):
        targets.similarity(torch.zeros(4))
    with pytest.raises(TargetError, match="Encode what is compared"):
        targets.similarity("a text")
    with pytest.raises(TargetError, match="real numbers"):
        targets.similarity(np.arange(4))
    with pytest.raises(TargetError, match="pooling"):
        targets.similarity(other, pooling="max")


@pytest.mark.parametrize("method", ["gae", "lrp"])  # as it is, and in float64
@pytest.mark.parametrize("setting", [{"return_dict": False}, {}])
def test_encodings_in_a_tuple_are_no_logits(setting, method):
    model, inputs = hf("GPT2Model", n_embd=12, n_layer=1, n_head=3, vocab_size=80, **setting)().eval(), words(1)
    given = inputs if setting else {**inputs, "return_dict": False}
    with pytest.raises(InputError, match="the model returned encodings of shape"):
        vitrail.explain(model, given, method, 1)
