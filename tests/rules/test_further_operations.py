"""Operations of mixture-of-experts models, of norms and activations written out, of writes and of einsum.

Expected: gradient times input sums to what the rule promises, or the pullback written slowly.
"""

import math

import pytest
import torch
import transformers
from rule_passes import B, D, T, X, Y, random, relevance
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from vitrail.errors import RuleError
from vitrail.methods.attn_lrp import ATTN
from vitrail.methods.conservative_lrp import CONSERVATIVE
from vitrail.methods.transformer_attribution import CONSERVING

TABLES = pytest.mark.parametrize("table", [ATTN, CONSERVATIVE], ids=lambda table: table.name)
EXPERTS = [random(D, D, seed=20 + i) for i in range(3)]
ROUTER = random(3, D, seed=19)


def total(table, function, *inputs):
    """The relevance that arrives at all inputs, and what the function's result had of it."""
    out, gradients, seed = relevance(table, function, *inputs)
    return sum((g * x).sum() for g, x in zip(gradients, inputs, strict=True)), (out * seed).sum()


def routed_by_topk(x):
    """Experts summed by `index_add_`, each times the weight that a router gave it."""
    tokens = x.flatten(0, 1)
    weights, chosen = torch.topk(F.softmax(F.linear(tokens, ROUTER), dim=-1), 2, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    out = torch.zeros_like(tokens)
    for index, expert in enumerate(EXPERTS):
        rows, places = torch.where(chosen == index)
        out.index_add_(0, rows, F.linear(tokens[rows], expert) * weights[rows, places, None])
    return out.view_as(x)


def routed_by_gather(x):
    """The same by sigmoids, `gather` and `scatter`: all experts run, those not chosen times zero."""
    scores = F.linear(x, ROUTER).sigmoid()
    chosen = scores.topk(2, dim=-1).indices
    weights = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
    every = torch.stack([F.linear(x, expert) for expert in EXPERTS], dim=-2)
    return (every * weights[..., None]).sum(dim=-2)


@TABLES
@pytest.mark.parametrize("mixture", [routed_by_topk, routed_by_gather])
def test_experts_conserve_and_share_by_their_gate(table, mixture):
    arrived, given = total(table, mixture, X)
    assert_close(arrived, given)
    _, (found,), seed = relevance(table, mixture, X)
    x = X.clone().requires_grad_()
    weights = weights_of(mixture, X)
    plain = sum(F.linear(x, expert) * weights[..., i, None] for i, expert in enumerate(EXPERTS))
    assert_close(found, torch.autograd.grad(plain, x, seed)[0])


def weights_of(mixture, x):
    scores = F.linear(x, ROUTER)
    scores = scores.sigmoid() if mixture is routed_by_gather else scores.softmax(dim=-1)
    kept = torch.zeros_like(scores).scatter(-1, scores.topk(2).indices, scores.topk(2).values)
    return kept if mixture is routed_by_gather else kept / kept.sum(dim=-1, keepdim=True)


@pytest.mark.parametrize("method", ["attn_lrp", "conservative_lrp"])
def test_experts_computed_at_once_by_a_grouped_product_are_explained_as_one_by_one(method):
    config = transformers.Qwen3MoeConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, head_dim=8,
        num_key_value_heads=1, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(config).eval()  # in float32: the kernel has no float64
    ids, found = torch.tensor([[3, 9, 14, 2, 30]]), []
    for kind in ("grouped_mm", "eager"):
        model.set_experts_implementation(kind)
        found.append(vitrail.explain(model, {"input_ids": ids}, method, 7).scores)
    assert_close(found[0], found[1], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "written",
    [
        lambda x: x * torch.sigmoid(1.702 * x),
        lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
        lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3)))),
        lambda x: torch.relu(x).square(),
        lambda x: torch.clamp(x, min=-0.5, max=0.5),
        lambda x: x * x,
    ],
    ids=["silu", "gelu", "gelu_new", "squared relu", "clamp", "square"],
)
def test_an_activation_written_out_is_one_function_of_each_entry(written):
    arrived, given = total(ATTN, written, X)
    assert_close(arrived, given, atol=1e-6, rtol=1e-6)


@TABLES
@pytest.mark.parametrize(
    "norm",
    [
        lambda x: F.normalize(x, dim=-1),
        lambda x: x / x.norm(dim=-1, keepdim=True),
        lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).pow(-0.5),
        lambda x: (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)),
    ],
    ids=["normalize", "norm", "powers", "layer norm by hand"],
)
def test_what_a_norm_divides_by_is_constant(table, norm):
    arrived, given = total(table, norm, X)
    assert_close(arrived, given)


WEIGHT, BIAS = random(D, seed=30), random(D, seed=31)


@TABLES
@pytest.mark.parametrize("groups", [1, 2, D])
def test_a_group_norm_divides_by_a_constant(table, groups):
    def norm(x):
        return F.group_norm(x.mT, groups, WEIGHT, None, 1e-3)

    arrived, given = total(table, norm, X)
    assert_close(arrived, given)
    out, (found,), seed = relevance(table, lambda x: F.group_norm(x.mT, groups, WEIGHT, BIAS, 1e-3), X)
    x = X.clone().requires_grad_()
    rows = x.mT.reshape(B, groups, -1)
    deviation = (rows.var(dim=-1, correction=0, keepdim=True) + 1e-3).sqrt().detach()
    centred = ((rows - rows.mean(dim=-1, keepdim=True)) / deviation).view(B, D, T)
    by_hand = centred * WEIGHT[:, None] + BIAS[:, None]
    assert_close(out, by_hand.detach())
    assert_close(found, torch.autograd.grad(by_hand, x, seed)[0])


@TABLES
def test_places_read_out_of_a_map_are_constant(table):
    maps, places = random(B, D, 5, 6, seed=40), random(B, 3, 2, 2, seed=41).tanh()

    def read(maps, places):
        return F.grid_sample(maps, places, align_corners=False)

    out, (at_maps, at_places), seed = relevance(table, read, maps, places)
    assert_close((at_maps * maps).sum(), (out * seed).sum())
    assert float(at_places.abs().max()) == 0
    leaf = maps.clone().requires_grad_()
    assert_close(at_maps, torch.autograd.grad(read(leaf, places), leaf, seed)[0])


def turned(x):
    angle = torch.arange(T, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.1], dtype=torch.float64)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (2, 2))) * torch.polar(angle.cos() ** 0, angle))


def written(x):
    out = torch.zeros(B, T, 2 * D, dtype=x.dtype)
    out[..., :D].copy_(x)
    out[:, :, D:] = 2 * x
    return out


LINEAR = {
    "complex rotation": turned,
    "written": written,
    "cumsum": lambda x: x.cumsum(dim=1),
    "max": lambda x: x.max(dim=1).values,
    "broadcast": lambda x: torch.broadcast_to(x[:, None], (B, 3, T, D)),
    "reshape_as": lambda x: x.transpose(0, 1).contiguous().reshape_as(x),
    "added in place": lambda x: (y := 2 * x, y.add_(x))[0],
    "conv1d": lambda x: F.conv1d(x.mT, random(5, D, 2, seed=3)),
    "einsum": lambda x: torch.einsum("btd,ed->bte", x, ROUTER),
}


@TABLES
@pytest.mark.parametrize("name", LINEAR)
def test_linear_operations_conserve_and_pass_what_the_chain_rule_passes(table, name):
    arrived, given = total(table, LINEAR[name], X)
    assert_close(arrived, given)
    out, (found,), seed = relevance(table, LINEAR[name], X)
    x = X.clone().requires_grad_()
    again = LINEAR[name](x)
    assert_close(out, again.detach())
    assert_close(found, torch.autograd.grad(again, x, seed)[0])


@pytest.mark.parametrize(
    "product",
    [
        lambda x, y: torch.einsum("bid,bjd->bij", x, y),
        lambda x, y: torch.baddbmm(torch.zeros(B, T, T).double(), x, y.mT, beta=0, alpha=0.5),
    ],
    ids=["einsum", "baddbmm"],
)
def test_products_give_each_factor_half(product):
    out, (at_x, at_y), seed = relevance(ATTN, product, X, Y)
    half = (out * seed).sum() / 2
    assert_close((at_x * X).sum(), half)
    assert_close((at_y * Y).sum(), half)


def test_a_gated_linear_unit_is_a_product_of_its_halves():
    arrived, given = total(ATTN, lambda x: F.glu(x, dim=-1), X)
    assert_close(arrived, given, atol=1e-6, rtol=1e-6)
    _, (found,), _ = relevance(ATTN, F.glu, X)
    assert_close((found * X)[..., : D // 2].sum(), given / 2)


def test_baddbmm_adds_what_it_is_given():
    out, gradients, seed = relevance(ATTN, lambda c, x: torch.baddbmm(c, x, ROUTER.T.expand(B, D, 3)), X[..., :3], Y)
    assert_close(out, X[..., :3] + Y @ ROUTER.T)
    assert_close(gradients[0], seed)
    assert_close(gradients[1], seed @ ROUTER)


def test_rules_of_deep_taylor_still_refuse_what_they_do_not_cover():
    with pytest.raises(RuleError, match="einsum"):
        relevance(CONSERVING, lambda x, y: torch.einsum("bid,bjd->bij", x, y), X, Y)
    with pytest.raises(RuleError, match="linear_map"):
        relevance(CONSERVING, lambda x: x.cumsum(dim=1), X)
