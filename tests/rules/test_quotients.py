"""Quotients: what a norm, a router or a pool divides by is a constant; sums of attention's own products are not."""

import pytest
import torch
import torch.nn.functional as F
from rule_passes import D, X, Y, random, relevance
from torch.testing import assert_close

from vitrail.errors import RuleError
from vitrail.methods.attn_lrp import ATTN
from vitrail.methods.conservative_lrp import CONSERVATIVE

TABLES = pytest.mark.parametrize("table", [ATTN, CONSERVATIVE], ids=lambda table: table.name)
WEIGHT, GATE = random(D, D, seed=3), random(1, D, seed=4)


def powers(x, y):
    return (x @ y.mT).exp()


def normalised_later(x, y):
    made = powers(x, y)
    return (made @ y) / made.sum(-1, keepdim=True)


def in_chunks(x, y):
    parts = [(made @ some, made.sum(-1, keepdim=True)) for some in y.split(1, dim=1) for made in [powers(x, some)]]
    return sum(found for found, _ in parts) / (sum(total for _, total in parts) + 1e-9)


def by_einsum(x, y):
    made = torch.einsum("bqd,bkd->bqk", x, y).exp()
    return torch.einsum("bqk,bkd->bqd", made, y) / made.sum(-1)[..., None]


def in_parts_as_sums(x, y):
    made = powers(x, y)
    weights = made / made.sum(-1, keepdim=True)
    return (weights[..., None] * y[:, None]).sum(dim=2)


def linear(x, y):
    q, k = F.elu(x) + 1, F.elu(y) + 1
    return (q @ (k.mT @ y)) / (q @ k.sum(dim=1)[..., None])


def linear_with_a_map(x, y):
    weights = (F.relu(x) @ F.relu(y).mT).masked_fill(torch.eye(3, dtype=torch.bool).roll(1, 0), 0)
    return (weights @ y) / weights.sum(-1, keepdim=True).clamp(min=1e-6)


def linear_with_a_divided_map(x, y):
    weights = (F.elu(x) + 1) @ (F.elu(y) + 1).mT
    return (weights / weights.sum(-1, keepdim=True)) @ y


REFUSED = {
    normalised_later: "a softmax in parts",
    in_chunks: "a softmax in parts",
    by_einsum: "a softmax in parts",
    in_parts_as_sums: "a softmax in parts",
    linear: "linear attention",
    linear_with_a_map: "linear attention",
    linear_with_a_divided_map: "linear attention",
}


@TABLES
@pytest.mark.parametrize("function", REFUSED)
def test_attention_that_is_divided_by_its_own_sums_is_refused(table, function):
    with pytest.raises(RuleError, match=REFUSED[function]):
        relevance(table, function, X, Y)


def over_mean_size(x, y):
    made = x @ y.mT
    return made / made.abs().mean(-1, keepdim=True), made.abs().mean(-1, keepdim=True)


def over_the_norm_of_a_product(x, y):
    made = x @ (y.mT @ y)
    return made / made.norm(dim=-1, keepdim=True), made.norm(dim=-1, keepdim=True)


def over_a_temperature(x, y):
    """One number for each token, by a layer of its own."""
    warmth = F.softplus(F.linear(x, GATE))
    return (F.linear(x, WEIGHT) @ y.mT) / warmth, warmth


def over_the_norms_of_both(x, y):
    sizes = x.norm(dim=-1)[..., None] * y.norm(dim=-1)[:, None]
    return (x @ y.mT) / sizes, sizes


HELD = [over_mean_size, over_the_norm_of_a_product, over_a_temperature, over_the_norms_of_both]


@TABLES
@pytest.mark.parametrize("function", HELD)
def test_other_denominators_are_constants(table, function):
    _, found, _ = relevance(table, lambda x, y: function(x, y)[0], X, Y)
    constant = function(X, Y)[1]

    def expected(x, y):
        return function(x, y)[0] * function(x, y)[1] / constant

    assert_close(found, relevance(table, expected, X, Y)[1])


@TABLES
def test_weights_of_a_pool_may_be_divided_by_their_sum(table):
    """One number for each token is a constant, so nothing arrives at its quotient."""

    def pooled(x):
        weights = F.linear(x, GATE).exp()
        return (x * (weights / weights.sum(dim=1, keepdim=True))).sum(dim=1)

    def divided(x):
        weights = F.linear(x, GATE).exp()
        return (x * weights).sum(dim=1) / weights.sum(dim=1)

    weights = F.linear(X, GATE).softmax(dim=1)
    for function in (pooled, divided):
        _, (found,), seed = relevance(table, function, X)
        assert_close(found, weights * seed[:, None])
