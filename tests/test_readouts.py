"""Which rows a prediction is read from: by the table where the head is the library's own, else by its gradient."""

import pytest
import torch
import transformers
from applying import WALKING
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail import targets

METHODS = WALKING


class Wrapper(nn.Module):
    """Passes on what it wraps, as many users' modules do."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


@pytest.mark.parametrize(
    "name", ["hf_bert", "hf_dinov2", "hf_gpt2", "hf_llama", "hf_vit", "timm_vit_avg", "timm_siglip"]
)
def test_a_wrapper_changes_nothing(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    for a, b in zip(
        vitrail.compare(Wrapper(model), inputs, METHODS, 1), vitrail.compare(model, inputs, METHODS, 1), strict=True
    ):
        assert_close(a.scores, b.scores)
        assert (a.readout is None) == (b.readout is None)
        assert_close(a.shown, b.shown)


class MeanBert(transformers.BertPreTrainedModel):
    """A head of one's own, written the Hugging Face way."""

    def __init__(self, config):
        super().__init__(config)
        self.bert, self.head = transformers.BertModel(config, add_pooling_layer=False), nn.Linear(24, 3)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.bert(input_ids, attention_mask).last_hidden_state.mean(dim=1))


class MeanViT(nn.Module):
    """A head of one's own on timm's features, whose own pooling is not used."""

    def __init__(self):
        super().__init__()
        self.vit, self.head = MODELS["timm_vit"].build(), nn.Linear(192, 5)

    def forward(self, images):
        return self.head(self.vit.forward_features(images)[:, 1:].mean(dim=1))


def test_a_head_of_ones_own_is_read_where_its_gradient_is():
    words, patches = MeanBert(tiny("hf_bert").config).double().eval(), MeanViT().double().eval()
    for layer in vitrail.record(words, MODELS["hf_bert"].inputs()).layers:
        assert_close(layer.readout, torch.full((2, 9), 1 / 9, dtype=torch.float64))
    for layer in vitrail.record(patches, MODELS["timm_vit"].inputs()).layers:
        expected = torch.full((2, 17), 1 / 16, dtype=torch.float64)
        expected[:, 0] = 0
        assert_close(layer.readout, expected)


@pytest.mark.parametrize("name", ["hf_gpt2_classifier", "hf_llama_classifier"])
def test_a_causal_classifier_is_read_where_the_model_reads_it(name):
    """At the last token that is not the padding token, even if that token is masked in and another follows."""
    model = tiny(name)
    ids = torch.tensor([[5, 9, 33, 21, 0, 0]])
    for inputs in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}):
        found = vitrail.explain(model, inputs, "gae", 1)
        assert found.readout.tolist() == [3]
        assert_close(found.scores[:, 4:], torch.zeros(1, 2, dtype=torch.float64))


def rows(layer, weigh):
    """The weighed map of each sample, mean over heads, entry by entry."""
    batch, heads, queries, keys = layer.probs.shape
    found = torch.zeros(batch, queries, keys, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for q in range(queries):
                for k in range(keys):
                    found[b, q, k] += weigh(float(layer.probs[b, h, q, k]), float(layer.probs_grad[b, h, q, k])) / heads
    return found


READ = {
    "hf_dinov2": lambda n: [0.5, *[0.5 / (n - 1)] * (n - 1)],
    "hf_deit_teacher": lambda n: [0.5, 0.5, *[0.0] * (n - 2)],
    "hf_beit": lambda n: [0.0, *[1 / (n - 1)] * (n - 1)],
    "hf_modernbert_mean": lambda n: [1 / n] * n,
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize(("method", "weigh"), [("gae", lambda a, g: max(a * g, 0)), ("rollout", lambda a, g: a)])
def test_several_rows_are_read_with_their_weights(name, method, weigh):
    model, inputs = tiny(name), MODELS[name].inputs(batch=1)
    layers = vitrail.record(model, inputs, 1).layers
    eye = torch.eye(layers[0].valid.shape[1], dtype=torch.float64)
    product = eye
    for layer in layers:
        product = (eye + rows(layer, weigh)[0]) / (2 if method == "rollout" else 1) @ product
    expected = torch.tensor(READ[name](len(eye)), dtype=torch.float64) @ product
    prefix = MODELS[name].prefix if MODELS[name].kind == "image" else 0
    atol = 1e-5 if name == "hf_modernbert_mean" else 1e-9  # its norms and rotary tables are float32
    assert_close(vitrail.explain(model, inputs, method, 1).scores[0], expected[prefix:], atol=atol, rtol=0)


def test_a_pooling_query_reads_every_token_once_and_none_of_them_itself():
    model, inputs = tiny("timm_siglip"), MODELS["timm_siglip"].inputs(batch=1)
    *blocks, pool = vitrail.record(model, inputs, 1).layers
    eye = torch.eye(16, dtype=torch.float64)
    for method, weigh, share in (("gae", lambda a, g: max(a * g, 0), 1), ("rollout", lambda a, g: a, 2)):
        product = eye
        for layer in blocks:
            product = (eye + rows(layer, weigh)[0]) / share @ product
        expected = rows(pool, weigh)[0] @ product
        assert_close(vitrail.explain(model, inputs, method, 1).scores, expected)
    plain = vitrail.explain(model, inputs, "tokentm", 1, length=False, direction=False, ffn=False, initial="identity",
                            scalar="logit")  # fmt: skip
    assert_close(plain.scores, vitrail.explain(model, inputs, "gae", 1).scores)
    query = pool.query.clone().requires_grad_()
    output = nn.functional.scaled_dot_product_attention(query, pool.key, pool.value, scale=pool.scale)
    (gradient,) = torch.autograd.grad((output * pool.output_grad).sum(), query)
    maps = torch.einsum("bhkd,bhqd->bhk", pool.keys, gradient)
    found = vitrail.explain(model, inputs, "gradtoken", 1, scheme="average_elementwise", heads="mean")
    row = pool.probs.mean(dim=1)[:, 0] @ sum(layer.probs.mean(dim=1)[0] for layer in blocks) / 3
    assert_close(found.scores, (row[:, None] * maps).mean(dim=1))


def test_pictures_leave_out_what_every_token_holds_for_being_read_itself():
    """Without it a signed map of a model that reads the mean would be one colour."""
    found = vitrail.explain(tiny("timm_vit_avg"), MODELS["timm_vit_avg"].inputs(), "complete_gradient", 1)
    assert_close(found.scores - found.shown, torch.full_like(found.scores, 1 / 15))
    assert bool((found.shown < 0).any())
    assert bool((found.scores > 0).all())


def test_a_position_of_a_causal_model_credits_nothing_behind_it():
    for method in METHODS:
        found = vitrail.explain(tiny("hf_gpt2"), MODELS["hf_gpt2"].inputs(), method, targets.logit(5, position=3))
        assert_close(found.scores[:, 4:], torch.zeros(2, 5, dtype=torch.float64), msg=lambda m, n=method: f"{n}: {m}")
