"""Conservative LRP and AttnLRP: which factors are constant, and what is conserved."""

import copy
from functools import cache
from pathlib import Path

import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from vitrail import zoo
from vitrail.methods import conservative_lrp
from vitrail.methods.attn_lrp import ATTN
from vitrail.relevance.lrp import Operation
from vitrail.relevance.lrp.operation import Flow


def layer_norm_with(x, weight, bias, *, mean_too):
    mean = x.mean(dim=-1, keepdim=True)
    std = (x.var(dim=-1, correction=0, keepdim=True) + 1e-5).sqrt().detach()
    return (x - (mean.detach() if mean_too else mean)) / std * weight + bias


@pytest.mark.parametrize("mean_too", [False, True])
def test_a_layer_norm_has_a_constant_deviation(mean_too):
    x, g = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True), torch.randn(2, 3, 5, dtype=torch.float64)
    weight, bias = torch.randn(2, 5, dtype=torch.float64)
    (expected,) = torch.autograd.grad(layer_norm_with(x, weight, bias, mean_too=mean_too), x, g)
    assert_close(conservative_lrp.norm_gradient(g, x.detach(), weight, 1e-5, [-1], centered=not mean_too), expected)


KERNEL_DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * torch.cuda.is_available()


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 3, 130), (40, 2)])
def test_kernels_of_entrywise_rules_give_what_torch_gives(dtype, shape):
    pytest.importorskip("triton", reason="Triton is not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    g, value, x = (torch.randn(shape, device=device).to(dtype) for _ in range(3))
    weight = torch.randn(shape[-1], device=device).to(dtype)
    wide = [y.double() for y in (g, value, x)]
    rounding = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 8 * torch.finfo(dtype).eps}
    assert_close(
        conservative_lrp.quotient_by_kernel(g, value, x).double(), conservative_lrp.quotient(*wide), **rounding
    )
    for centered, used in ((True, weight), (False, None)):
        found = conservative_lrp.norm_by_kernel(g, x, used, 1e-5, centered=centered)
        exact = None if used is None else used.double()
        expected = conservative_lrp.norm_gradient(wide[0], wide[2], exact, 1e-5, [-1], centered=centered)
        scale = expected.abs().max().clamp(min=1)
        assert found.dtype is dtype
        assert_close(found.double() / scale, expected / scale, **rounding)


class Bare(nn.Module):
    """A Transformer without biases, with ReLU: homogeneous but for attention and norms."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList(
            nn.ModuleDict({n: nn.Linear(i, o, bias=False) for n, i, o in (
                ("q", 8, 8), ("k", 8, 8), ("v", 8, 8), ("o", 8, 8), ("up", 8, 16), ("down", 16, 8))})
            for _ in range(2)
        )  # fmt: skip
        self.blocks = nn.ModuleList(BareBlock(layer) for layer in self.layers)
        self.head = nn.Linear(8, 3, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class BareBlock(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, x):
        h = F.layer_norm(x, (8,), eps=0.0)
        q, k, v = (self.parts[n](h).unflatten(-1, (2, 4)).transpose(1, 2) for n in "qkv")
        x = x + self.parts["o"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.parts["down"](self.parts["up"](F.layer_norm(x, (8,), eps=0.0)).relu())


PICTURE = Path(vitrail.__file__).parent / "apps" / "demo" / "pictures" / "golf_ball.jpg"
ANATOMY = vitrail.Anatomy(blocks="blocks", readout="cls")


def test_conservative_relevance_adds_up_to_the_logit():
    """Ali et al., Eq. 12: with attention and deviations constant, a model without biases conserves."""
    model, x = Bare().double(), torch.randn(2, 5, 8, dtype=torch.float64)
    found = vitrail.explain(model, x, "conservative_lrp", target=1, anatomy=ANATOMY)
    assert_close(found.scores.sum(dim=1), model(x)[:, 1].detach(), atol=1e-9, rtol=0)


def test_plain_gradient_times_input_does_not():
    model, x = Bare().double(), torch.randn(2, 5, 8, dtype=torch.float64)
    found = vitrail.explain(model, x, "input_x_gradient", target=1, anatomy=ANATOMY)
    assert float((found.scores.sum(dim=1) - model(x)[:, 1].detach()).abs().max()) > 1e-3


def attention_of(q, k, v, flow=None):
    return ATTN.rules["attention"](
        Operation("attention", F.scaled_dot_product_attention, (q, k, v), {}, "", None, (q, k, v), print, flow=flow)
    )


def test_halves_and_quarters_of_attnlrp():
    q, k, v = (torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    plain = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v).sum(), (q, k, v))
    found = torch.autograd.grad(attention_of(q, k, v).sum(), (q, k, v))
    for a, b, share in zip(found, plain, (0.25, 0.25, 0.5), strict=True):
        assert_close(a, share * b)


def test_one_graph_gives_relevance_gradients_and_gradients_of_single_blocks():
    q, k, v = (torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    flow = Flow()
    shared, alone = attention_of(q, k, v, flow), attention_of(q, k, v)
    for kind, expected in (("relevance", alone), ("gradient", F.scaled_dot_product_attention(q, k, v))):
        flow.kind = kind
        found = torch.autograd.grad(shared.sum(), (q, k, v), retain_graph=True)
        assert_close(found, torch.autograd.grad(expected.sum(), (q, k, v), retain_graph=True))
    flow.kind = "block"
    assert torch.autograd.grad(shared.sum(), (q, k, v), allow_unused=True) == (None, None, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_propagated_as_it_is_and_keeps_the_order_of_the_scores(dtype):
    torch.manual_seed(2)
    model, x = Bare(), torch.randn(2, 5, 8)
    exact = vitrail.explain(model, x, "attn_lrp", target=1, anatomy=ANATOMY, precision="float64").scores
    half = vitrail.explain(model.to(dtype), x.to(dtype), "attn_lrp", target=1, anatomy=ANATOMY)
    assert half.options["precision"] == "model"
    assert half.scores.dtype is torch.float32
    assert_close(half.scores / exact.abs().max(), exact / exact.abs().max(), atol=0.05, rtol=0)  # 8 bits of bfloat16


SENTENCES = (
    "a moving story and great acting", "the plot is dull and flat",
    "I expected little, but this film surprised me with its warmth and its wonderful cast",
    "not a single joke works, and the ending is a disgrace",
)  # fmt: skip


@cache
def pictures_and_sentences():
    """Both embedded models with inputs for each; what is measured of them serves all tests."""
    photo, sentiment = zoo.load("photo"), zoo.load("sentiment")
    pictures = [photo.preprocess(Image.open(path).convert("RGB")) for path in sorted(PICTURE.parent.glob("*.jpg"))]
    sentences = [dict(sentiment.preprocess([text])) for text in SENTENCES]
    return (photo.model, pictures), (sentiment.model, sentences)


def moved(inputs, device, dtype):
    if isinstance(inputs, dict):
        return {name: x.to(device) for name, x in inputs.items()}
    return inputs.to(device, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["attn_lrp", "conservative_lrp"])
def test_the_precision_of_the_model_ranks_tokens_as_double_precision_does(method):
    """On a GPU in bfloat16, elsewhere in single precision. In a text of ten tokens one pair of neighbours may swap."""
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    for model, several in pictures_and_sentences():
        here = copy.deepcopy(model).to(device, dtype)
        agree = []
        for inputs in several:
            exact = vitrail.explain(model, inputs, method, 1, precision="float64").scores[0]
            found = vitrail.explain(here, moved(inputs, device, dtype), method, 1).scores[0].cpu()
            agree.append(spearmanr(exact, found)[0])
        assert sum(agree) / len(agree) >= 0.995, agree
        assert min(agree) >= 0.98, agree


@pytest.mark.slow
@pytest.mark.parametrize("method", ["partial_lrp", "transformer_attribution"])
def test_rules_that_divide_rank_tokens_as_double_precision_does(method):
    """In single precision. In bfloat16 rounding the weights alone moves scores: all else adds little to that."""
    half = torch.bfloat16 if torch.cuda.is_available() else None
    for model, several in pictures_and_sentences():
        for inputs in several:
            exact = vitrail.explain(model, inputs, method, 1, precision="float64").scores[0]
            single = vitrail.explain(model, inputs, method, 1).scores[0]
            assert spearmanr(exact, single)[0] >= 0.995
            if half is not None:
                here, there = copy.deepcopy(model).to("cuda", half), moved(inputs, "cuda", half)
                rounded = vitrail.explain(here, there, method, 1, precision="float64").scores[0].cpu()
                found = vitrail.explain(here, there, method, 1).scores[0].cpu()
                assert spearmanr(exact, found)[0] >= min(0.99, spearmanr(exact, rounded)[0] - 0.05)
