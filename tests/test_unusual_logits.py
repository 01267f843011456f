"""Logits that are no numbers: NaN where nobody reads, and minus infinity where the model excludes a class."""

import math

import pytest
import torch
import transformers
from applying import CHEAP
from tiny_models import DECODER, MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.errors import InputError, TargetError

IDS = torch.tensor([[0, 0, 5, 9, 2], [1, 7, 8, 4, 2]])
MASK = (IDS != 0).long()
ANATOMY = vitrail.Anatomy(blocks="layers", causal=True, output="o", attention_norm="norm")


class Block(nn.Module):
    """Attention written by hand, whose rows are NaN where everything is masked."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o, self.ffn = (nn.Linear(12, 12) for _ in range(5))
        self.norm = nn.LayerNorm(12)

    def forward(self, x, mask):
        normed = self.norm(x)
        q, k, v = (part(normed).unflatten(2, (3, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        attention = (q @ k.transpose(-1, -2) / 2 + mask).softmax(dim=-1)
        x = x + self.o((attention @ v).transpose(1, 2).flatten(2))
        return x + torch.relu(self.ffn(x))


class Decoder(nn.Module):
    """Its padded rows are NaN in the last layer, or in every layer."""

    def __init__(self, layers, *, everywhere=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.everywhere = nn.Embedding(20, 12), everywhere
        self.layers = nn.ModuleList([Block() for _ in range(layers)])
        self.head = nn.Linear(12, 20)
        self.double()

    def forward(self, input_ids, attention_mask):
        length, x = input_ids.shape[1], self.embed(input_ids)
        seen = torch.ones(length, length).tril().bool() & attention_mask.bool()[:, None, None]
        for index, layer in enumerate(self.layers):
            own = torch.eye(length).bool() if index < len(self.layers) - 1 and not self.everywhere else False
            x = layer(x, torch.zeros(seen.shape).masked_fill(~(seen | own), -math.inf))
        return self.head(x)


@pytest.mark.parametrize("method", ["gae", "rollout", "attn_lrp", "attcat", "integrated_gradients", "le_grad", "auto"])
@pytest.mark.parametrize("layers", [1, 2])
def test_padding_whose_logits_are_nan_changes_nothing(method, layers):
    model = Decoder(layers)
    assert model(IDS, MASK).isnan().any(dim=2)[0].tolist() == [True, True, False, False, False]
    inputs, alone = ({"input_ids": IDS[:n, k:], "attention_mask": MASK[:n, k:]} for n, k in ((2, 0), (1, 2)))
    options = {"anatomy": ANATOMY, **CHEAP.get(method, {})}
    found, expected = (vitrail.explain(model, x, method, 3, **options).scores[0] for x in (inputs, alone))
    assert_close(found[2:], expected)
    assert found[:2].tolist() == [0, 0]


def test_a_position_whose_logits_are_nan_is_refused():
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    with pytest.raises(InputError, match=r"samples \[0\]"):
        vitrail.explain(Decoder(1), inputs, "gae", targets.logit(3, position=0), anatomy=ANATOMY)
    with pytest.raises(TargetError, match="padded position"):
        vitrail.explain(Decoder(1), inputs, "gae", lambda logits: logits[:, 0, 3], anatomy=ANATOMY)


@pytest.mark.parametrize("method", ["gae", "rollout", "attn_lrp"])
def test_nan_of_padding_that_reaches_the_answer_is_left_out_and_said(method):
    """Eager attention of transformers gives this in float64 after left padding."""
    model = Decoder(2, everywhere=True)
    assert bool(model(IDS, MASK)[0].isnan().all())
    inputs, alone = ({"input_ids": IDS[:n, k:], "attention_mask": MASK[:n, k:]} for n, k in ((2, 0), (1, 2)))
    found, expected = (vitrail.explain(model, x, method, 3, anatomy=ANATOMY) for x in (inputs, alone))
    assert_close(found.scores[0, 2:], expected.scores[0])
    assert any("NaN" in said for said in found.provenance["assumed"])
    assert not any("NaN" in said for said in expected.provenance.get("assumed", ()))


def test_a_broken_model_is_refused():
    model = MODELS["hf_bert"].build().eval()
    model.classifier.bias.data[1] = torch.nan
    with pytest.raises(InputError, match="Check the weights"):
        vitrail.explain(model, MODELS["hf_bert"].inputs(), "gae", 0)


WAYS = {
    "filled": lambda logits, hidden: logits.masked_fill(hidden, -math.inf),
    "added": lambda logits, hidden: logits + torch.zeros(len(hidden)).masked_fill(hidden, -math.inf),
    "chosen": lambda logits, hidden: torch.where(hidden, -math.inf, logits),
}


class Excluding(nn.Module):
    """A classifier or language model that excludes some classes or tokens."""

    def __init__(self, model, way):
        super().__init__()
        self.model, self.way = model, way

    @property
    def config(self):
        return self.model.config

    def forward(self, **inputs):
        logits = self.model(**inputs).logits
        return WAYS[self.way](logits, torch.arange(logits.shape[-1]) % 3 == 2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["hf_bert", "hf_llama"])
@pytest.mark.parametrize("method", ["gae", "attn_lrp", "integrated_gradients", "auto"])
def test_excluded_classes_do_not_stop_the_explanation_of_another(name, way, method):
    model, inputs = tiny(name), MODELS[name].inputs()
    options = CHEAP.get(method, {})
    found, expected = (vitrail.explain(m, inputs, method, 1, **options).scores for m in (Excluding(model, way), model))
    assert_close(found, expected, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_the_probability_beside_excluded_classes_is_explained(way):
    model = Excluding(tiny("hf_bert"), way)
    found = vitrail.explain(model, MODELS["hf_bert"].inputs(), "gae", targets.probability(1))
    assert bool(found.scores.isfinite().all())
    assert bool(found.scores.any())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", [2, targets.logit(2), targets.difference(1, 2), targets.difference(2, 1)])
def test_an_excluded_class_is_refused_in_words_that_fit(way, target):
    model = Excluding(tiny("hf_bert"), way)
    with pytest.raises(TargetError, match=r"inf in samples \[0, 1\]: the model excludes that class"):
        vitrail.explain(model, MODELS["hf_bert"].inputs(), "gae", target)


def test_suppressed_tokens_of_a_language_model_do_not_stop_it():
    class Suppressing(transformers.LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits[..., :5] = -torch.inf
            return out

    torch.manual_seed(0)
    model = Suppressing(transformers.LlamaConfig(**DECODER)).eval()
    found = vitrail.explain(model, MODELS["hf_llama"].inputs(), "gae", targets.next_token())
    assert bool(found.scores.isfinite().all())
    with pytest.raises(TargetError, match="excludes"):
        vitrail.explain(model, MODELS["hf_llama"].inputs(), "gae", targets.next_token(3))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.to("meta"), "meta device"),
        (lambda x: x + 0j, "complex"),
        (lambda x: x.long(), "int64"),
    ],
)
def test_logits_that_are_no_real_numbers_are_refused(change, words):
    model = MODELS["hf_bert"].build().eval()
    model.classifier.register_forward_hook(lambda module, args, output: change(output))
    with pytest.raises(InputError, match=words):
        vitrail.explain(model, MODELS["hf_bert"].inputs(), "gae")


def test_an_error_of_the_model_itself_says_so():
    model = MODELS["hf_bert"].build().eval()
    model.classifier.register_forward_hook(lambda module, args, output: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        vitrail.explain(model, MODELS["hf_bert"].inputs(), "gae")
    assert "Raised by BertForSequenceClassification itself" in caught.value.__notes__[0]
    assert "input_ids" in caught.value.__notes__[0]
