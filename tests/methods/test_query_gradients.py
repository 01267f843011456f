"""The gradient of the query in whole models, against the gradient that autograd gives the model's own query tensor."""

from importlib import import_module
from unittest.mock import patch

import pytest
import torch
from tiny_models import DECODER, MODELS, VOCABULARY, WIDTH, tiny
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from vitrail.errors import MissingTensorError, SeamError
from vitrail.methods import gradtoken

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[1, 9, 12, 33, 7, 41, 2], [1, 5, 6, 7, 8, 50, 2]])
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
DECODING = vitrail.Anatomy(blocks="model.layers", readout="last", causal=True)


def decoder(name, **more):
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**DECODER, head_dim=8, attn_implementation="eager", **more)
    model = getattr(transformers, f"{name}ForCausalLM")(config).double().eval()
    for parameter in model.parameters():  # the usual start is so small that attention is uniform
        nn.init.normal_(parameter, std=0.5)
    return model


def deberta(kind="DebertaV2"):
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(
        **{**WIDTH, **VOCABULARY}, num_labels=3, relative_attention=True, pos_att_type=["p2c", "c2p"],
        position_buckets=4, max_relative_positions=8, max_position_embeddings=20, type_vocab_size=0,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def kept(function, tensors):
    """The function; the tensors it is called with, or gives, are kept with their gradients."""

    def keep(*args, **kwargs):
        out = function(*args, **kwargs)
        tensors.append((args, out))
        return out

    return keep


def expected_map(query, key, gradient, position):
    """M_h[j] = k_j . dy/dq of the readout."""
    return torch.einsum("bhkd,bhd->bhk", key, gradient[:, :, position])


def explained(model, anatomy, target, **inputs):
    return vitrail.explain(model, inputs, "gradtoken", target, scheme="none", heads="mean", anatomy=anatomy)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Llama", {}),
        ("Gemma2", {"attn_logit_softcapping": 0.7, "query_pre_attn_scalar": 3}),
        ("Gemma2", {"attn_logit_softcapping": None}),
        ("Qwen3", {}),
    ],
)
def test_in_decoders_it_is_the_gradient_of_the_rotated_query(name, options):
    model = decoder(name, **options)
    module = import_module(f"transformers.models.{name.lower()}.modeling_{name.lower()}")
    seen = []
    with patch.object(module, "eager_attention_forward", kept(module.eager_attention_forward, seen)):
        logits = model(**INPUTS).logits
    (_, query, key, *_), _ = seen[-1]
    (gradient,) = torch.autograd.grad(logits[:, -1, 5].sum(), query)
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    expected = expected_map(query, key, gradient, -1).mean(dim=1)
    found = explained(model, DECODING, 5, **INPUTS)
    assert float(expected.abs().max()) > 1e-3
    assert_close(found.scores, expected.detach(), atol=1e-9, rtol=1e-6)


def test_disentangled_attention_has_one_query_in_two_products():
    model = deberta()
    attention = type(model.deberta.encoder.layer[-1].attention.self)
    seen = []
    with patch.object(attention, "transpose_for_scores", kept(attention.transpose_for_scores, seen)):
        logits = model(**INPUTS).logits
    last = seen[-len(seen) // 3 :]  # query, key, value, and those of positions
    query, key = last[0][1], last[1][1]
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), query)
    query, key, gradient = (x.unflatten(0, (2, -1)) for x in (query, key, gradient))
    expected = expected_map(query, key, gradient, 0).mean(dim=1)
    expected[:, 0] = 0
    anatomy = vitrail.Anatomy(blocks="deberta.encoder.layer", readout="cls", prefix=1)
    found = explained(model, anatomy, 1, **INPUTS).scores
    scale = (24 / 3 * 3) ** 0.5  # the model divides keys, not scores
    assert_close(found * scale, expected.detach(), atol=1e-9, rtol=1e-6)


class Own(nn.Module):
    """Blocks whose attention is a function of queries, keys and values `[b, h, t, d]`."""

    def __init__(self, attend, *, depth=2):
        super().__init__()
        torch.manual_seed(4)
        self.embed = nn.Embedding(60, 12)
        self.blocks = nn.ModuleList(OwnBlock(attend) for _ in range(depth))
        self.head = nn.Linear(12, 3)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class OwnBlock(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(12, 12) for _ in range(4))
        self.attend = attend

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (3, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return x + self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))


def two_terms(q, k, v):
    """As in Transformer-XL and XLNet: content and position have queries of their own."""
    r = torch.linspace(-1, 1, 7 * 4, dtype=q.dtype).view(1, 1, 7, 4).expand_as(k)
    return ((q + 0.3) @ k.mT / 2 + (q - 0.2) @ r.mT).softmax(dim=-1) @ v


def same_query_twice(q, k, v):
    r = torch.linspace(-1, 1, 7 * 4, dtype=q.dtype).view(1, 1, 7, 4).expand_as(k)
    return (q @ k.mT / 2 + q @ r.mT).softmax(dim=-1) @ v


def mixed_before(q, k, v):
    mix = torch.linspace(-1, 1, 9, dtype=q.dtype).view(3, 3)
    return torch.einsum("bhqk,hg->bgqk", q @ k.mT, mix).softmax(dim=-1) @ v


def turned(q, k, v):
    """Scores made the other way round: the keys' rows first."""
    return (k @ q.mT).mT.softmax(dim=-1) @ v


ANATOMY = vitrail.Anatomy(blocks="blocks", readout="cls", prefix=1)


@pytest.mark.parametrize("attend", [two_terms, mixed_before, turned])
def test_where_there_is_no_one_query_the_method_says_so(attend):
    model = Own(attend).double().eval()
    assert vitrail.explain(model, IDS, "gae", 1, anatomy=ANATOMY).scores.shape == (2, 7)
    with pytest.raises(MissingTensorError, match=r"of attention layer 1, .*(one query|rearranged|all samples share)"):
        vitrail.explain(model, IDS, "gradtoken", 1, anatomy=ANATOMY)


def test_xlnet_has_two_queries():
    config = transformers.XLNetConfig(vocab_size=60, d_model=24, n_layer=2, n_head=3, d_inner=40, num_labels=3)
    model = transformers.XLNetForSequenceClassification(config).double().eval()
    ids = IDS[:, :2].repeat(1, 1)  # as many tokens as samples, so that both readings of its [t, b, d] stream fit
    calls = []
    from vitrail.capture.seams import attention_calls

    with attention_calls(calls.append):
        model(input_ids=ids)
    assert [call.query for call in calls] == [None, None]
    assert all("do not read one query" in call.no_query for call in calls)


FORMS = {
    "matmul": lambda q, k, v: (q @ k.mT / 2).softmax(dim=-1) @ v,
    "keywords": lambda q, k, v: torch.matmul(
        input=F.softmax(input=torch.matmul(input=q, other=k.mT) * 0.5, dim=-1), other=v
    ),
    "baddbmm": lambda q, k, v: (
        torch.baddbmm(torch.zeros(1, 1, 7, dtype=q.dtype), q.flatten(0, 1), k.flatten(0, 1).mT, alpha=0.5)
        .unflatten(0, q.shape[:2])
        .softmax(dim=-1)
        @ v
    ),
    "einsum": lambda q, k, v: torch.einsum(
        "bhij,bhjd->bhid", (torch.einsum("bhid,bhjd->bhij", q, k) / 2).softmax(-1), v
    ),
    "soft-capped": lambda q, k, v: (0.5 * torch.tanh(q @ k.mT)).softmax(dim=-1) @ v,
    "same query twice": same_query_twice,
}


@pytest.mark.parametrize("name", FORMS)
def test_it_is_the_gradient_of_the_query_however_attention_is_written(name):
    seen = []

    def attend(q, k, v):
        seen.append((q, k))
        return FORMS[name](q, k, v)

    model = Own(attend).double().eval()
    scalar = model(IDS)[:, 1].sum()
    query, key = seen[-1]
    (gradient,) = torch.autograd.grad(scalar, query)
    expected = expected_map(query, key, gradient, 0)
    expected[:, :, 0] = 0
    found = vitrail.explain(model, IDS, "gradtoken", 1, scheme="none", heads="mean", anatomy=ANATOMY).scores
    assert_close(found, expected.mean(dim=1).detach(), atol=1e-12, rtol=1e-9)


def test_queries_in_another_order_of_axes_keep_their_gradient():
    """[b, t, h, d] all the way, as einsum models write it."""

    def swapped(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        scores = torch.einsum("bqhd,bkhd->bqhk", q, k) / 2
        return torch.einsum("bqhk,bkhd->bqhd", scores.softmax(dim=-1), v).transpose(1, 2)

    found = vitrail.explain(Own(swapped).double().eval(), IDS, "gradtoken", 1, anatomy=ANATOMY).scores
    expected = vitrail.explain(Own(FORMS["matmul"]).double().eval(), IDS, "gradtoken", 1, anatomy=ANATOMY).scores
    assert float(expected.abs().max()) > 1e-6
    assert_close(found, expected, atol=1e-12, rtol=1e-9)


def test_a_query_that_all_samples_share_has_no_gradient_in_each():
    def shared(q, k, v):
        return F.scaled_dot_product_attention(q[:1].mean(dim=0, keepdim=True), k, v)

    model = Own(shared).double().eval()
    with pytest.raises(SeamError, match="depends on the tokens of others"):
        vitrail.explain(model, IDS, "gradtoken", 1, anatomy=ANATOMY)


def test_a_map_that_all_samples_share_has_no_gradient_in_each():
    def shared(q, k, v):
        return (q[:1] @ k[:1].mT).softmax(dim=-1) @ v

    model = Own(shared).double().eval()
    with pytest.raises(SeamError, match="depends on the tokens of others"):
        vitrail.explain(model, IDS, "gae", 1, anatomy=ANATOMY)
    assert vitrail.explain(model, IDS[:1], "gae", 1, anatomy=ANATOMY).scores.shape == (1, 7)


def test_a_pooling_query_has_the_gradient_of_the_chain_rule_also_where_weights_are_frozen():
    model, inputs = tiny("timm_siglip"), MODELS["timm_siglip"].inputs()
    expected = vitrail.explain(model, inputs, "gradtoken", 1).scores
    model.requires_grad_(False)  # noqa: FBT003
    try:
        assert_close(vitrail.explain(model, inputs, "gradtoken", 1).scores, expected, atol=1e-12, rtol=1e-9)
    finally:
        model.requires_grad_(True)  # noqa: FBT003


def test_the_needs_of_gradtoken_name_the_query_gradient():
    assert "query_grad" in gradtoken.build().needs
