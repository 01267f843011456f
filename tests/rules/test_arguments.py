"""Operands however a model writes them: by keyword, with `alpha`, in place. Expected: the rule, written slowly."""

import pytest
import torch
from rule_passes import B, D, T, X, Y, random, relevance
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from vitrail.capture.seams.call import positional
from vitrail.errors import RuleError
from vitrail.methods.abs_lrp import _ABSOLUTE
from vitrail.methods.attn_lrp import ATTN
from vitrail.methods.conservative_lrp import CONSERVATIVE
from vitrail.methods.transformer_attribution import CONSERVING, ORIG
from vitrail.relevance.lrp.mode import RuleSet
from vitrail.relevance.lrp.operation import arguments

TINY = 1e-9
ABSOLUTE = RuleSet("absolute", _ABSOLUTE)


def divide(a, b):
    return torch.where(b == 0, torch.zeros_like(b), a / (b + TINY))


SUMS = {
    "add": (lambda x, y: torch.add(x, y, alpha=3), 1, 3),
    "add by keyword": (lambda x, y: torch.add(input=x, other=y, alpha=3), 1, 3),
    "a tensor's add": (lambda x, y: x.add(other=y, alpha=-0.5), 1, -0.5),
    "in place": (lambda x, y: (x * 1.0).add_(y, alpha=3), 1, 3),
    "sub": (lambda x, y: torch.sub(x, y), 1, -1),
    "minus": (lambda x, y: x - y, 1, -1),
    "sub with a factor": (lambda x, y: torch.sub(x, y, alpha=2), 1, -2),
    "sub by keyword": (lambda x, y: torch.sub(input=x, other=y, alpha=2), 1, -2),
    "in place minus": (lambda x, y: (x * 1.0).sub_(y, alpha=2), 1, -2),
    "rsub": (lambda x, y: torch.rsub(x, y, alpha=2), -2, 1),
    "plain": (lambda x, y: torch.add(x, y), 1, 1),
}


@pytest.mark.parametrize("table", [CONSERVING, ORIG], ids=lambda table: table.name)
@pytest.mark.parametrize("name", SUMS)
def test_summands_share_by_what_they_add_not_by_what_they_are(name, table):
    """Eq. 8 of a sum z = a x + b y: x gets a x / z of the relevance, y gets b y / z."""
    function, a, b = SUMS[name]
    out, (at_x, at_y), r = relevance(table, function, X, Y)
    z = a * X + b * Y
    assert torch.equal(out, function(X, Y))
    assert_close(at_x, a * X * divide(r, z), atol=1e-9, rtol=1e-9)
    assert_close(at_y, b * Y * divide(r, z), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", SUMS)
def test_absolute_shares_are_those_of_what_is_added(name):
    """(1 + sign(b y)) b y R / |z|, divided by each sample's absolute sum."""
    function, a, b = SUMS[name]
    _, found, r = relevance(ABSOLUTE, function, X, Y)
    c = r / ((a * X + b * Y).abs() + TINY)
    for share, term in zip(found, (a * X, b * Y), strict=True):
        expected = c * (term + term.abs())
        expected = expected / (expected.abs().sum(dim=(1, 2), keepdim=True) + TINY)
        assert_close(share, expected, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("name", SUMS)
def test_gradient_rules_keep_the_chain_rule_of_a_sum(name):
    function, a, b = SUMS[name]
    _, (at_x, at_y), r = relevance(ATTN, function, X, Y)
    assert_close(at_x, a * r)
    assert_close(at_y, b * r)


def test_a_sum_with_itself_counts_both():
    _, (found,), r = relevance(CONSERVING, lambda x: torch.add(x, x, alpha=3), X)
    assert_close(found, 4 * X * divide(r, 4 * X), atol=1e-9, rtol=1e-9)


W, BIAS = random(5, D, seed=3), random(5, seed=4)
KEYWORDS = {
    "matmul": (lambda x, y: torch.matmul(input=x, other=y.mT), lambda x, y: torch.matmul(x, y.mT)),
    "a tensor's matmul": (lambda x, y: x.matmul(other=y.mT), lambda x, y: x.matmul(y.mT)),
    "bmm": (lambda x, y: torch.bmm(input=x, mat2=y.mT), lambda x, y: torch.bmm(x, y.mT)),
    "mul": (lambda x, y: torch.mul(input=x, other=y), lambda x, y: torch.mul(x, y)),
    "linear": (
        lambda x, y: F.linear(input=x, weight=W, bias=BIAS) + y.sum(dim=-1, keepdim=True),
        lambda x, y: F.linear(x, W, BIAS) + y.sum(dim=-1, keepdim=True),
    ),
    "gelu": (lambda x, y: F.gelu(input=x) + y, lambda x, y: F.gelu(x) + y),
    "dropout": (
        lambda x, y: F.dropout(input=x, p=0.1, training=False) + y,
        lambda x, y: F.dropout(x, 0.1, training=False) + y,
    ),
    "softmax": (lambda x, y: F.softmax(input=x, dim=-1) + y, lambda x, y: F.softmax(x, dim=-1) + y),
    "mean": (lambda x, y: torch.mean(input=x, dim=1) + y[:, 0], lambda x, y: torch.mean(x, dim=1) + y[:, 0]),
    "reshape": (
        lambda x, y: torch.reshape(input=x, shape=(B, -1)) + y.flatten(1),
        lambda x, y: torch.reshape(x, (B, -1)) + y.flatten(1),
    ),
    "where": (
        lambda x, y: torch.where(condition=X > 0, input=x, other=y),
        lambda x, y: torch.where(X > 0, x, y),
    ),
    "attention": (
        lambda x, y: F.scaled_dot_product_attention(query=x[:, None], key=y[:, None], value=x[:, None]),
        lambda x, y: F.scaled_dot_product_attention(x[:, None], y[:, None], x[:, None]),
    ),
}


@pytest.mark.parametrize("table", [CONSERVING, ORIG, ATTN, CONSERVATIVE, ABSOLUTE], ids=lambda table: table.name)
@pytest.mark.parametrize("name", KEYWORDS)
def test_operands_by_keyword_are_operands(name, table):
    by_keyword, by_place = KEYWORDS[name]
    one, first, _ = relevance(table, by_keyword, X, Y)
    two, second, _ = relevance(table, by_place, X, Y)
    assert torch.equal(one, two)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("table", [CONSERVING, ATTN, ABSOLUTE], ids=lambda table: table.name)
def test_a_layer_norm_by_keyword_is_a_layer_norm(table):
    weight = random(D, seed=5)
    by_keyword = lambda x: F.layer_norm(input=x, normalized_shape=(D,), weight=weight, eps=1e-6)  # noqa: E731
    _, (first,), _ = relevance(table, by_keyword, X)
    _, (second,), _ = relevance(table, lambda x: F.layer_norm(x, (D,), weight, None, 1e-6), X)
    assert torch.equal(first, second)


@pytest.mark.parametrize("table", [CONSERVING, ORIG], ids=lambda table: table.name)
def test_addmm_counts_its_factors(table):
    x = X.flatten(0, 1)
    one = lambda x: torch.addmm(BIAS, x, W.T, beta=2, alpha=0.5)  # noqa: E731
    _, (found,), _ = relevance(table, one, x)
    _, (expected,), _ = relevance(table, lambda x: F.linear(x, 0.5 * W, 2 * BIAS), x)
    assert_close(found, expected, atol=1e-12, rtol=1e-9)


def test_weights_made_from_the_input_are_refused_not_dropped():
    with pytest.raises(RuleError, match="computed from the input"):
        relevance(CONSERVING, lambda x: F.linear(x[0], x[1]), X)
    with pytest.raises(RuleError, match="computed from the input"):
        relevance(CONSERVING, lambda x: torch.addmm(x[0, :, :1], W[:T], W.T[:, :1]), X)


def test_a_division_by_a_vector_is_a_scaling_by_its_inverse():
    """Absolute rule of z = x / g: (x + |x| sign g...) as for z = x * (1 / g)."""
    g = random(D, seed=6)
    _, (found,), _ = relevance(ABSOLUTE, lambda x: x / g, X)
    _, (expected,), _ = relevance(ABSOLUTE, lambda x: x * (1 / g), X)
    assert_close(found, expected)


@pytest.mark.parametrize("table", [CONSERVING, ATTN], ids=lambda table: table.name)
def test_something_divided_by_what_is_explained_has_no_rule(table):
    with pytest.raises(RuleError, match="quotient"):
        relevance(table, lambda x: torch.div(Y, x), X)


class Stepping(nn.Module):
    """Blocks whose second sum is written by `add`."""

    def __init__(self, add):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(Step(add) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class Step(nn.Module):
    def __init__(self, add):
        super().__init__()
        self.q, self.k, self.v, self.o, self.up, self.down = (nn.Linear(8, 8) for _ in range(6))
        self.norm = nn.LayerNorm(8)
        self.add = add

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = self.add(x, self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.add(x, self.down(F.gelu(self.up(x))))


ANATOMY = vitrail.Anatomy(blocks="blocks", readout="cls", attention_norm="norm")
WRITTEN = {
    "alpha": (lambda x, y: torch.add(x, y, alpha=3), lambda x, y: x + 3 * y),
    "other way round": (lambda x, y: torch.add(y, x, alpha=1.0) + 0, lambda x, y: y + x + 0),
    "in place": (lambda x, y: y.add_(x), lambda x, y: y + x),
    "minus": (lambda x, y: torch.sub(x, y, alpha=2), lambda x, y: x + -2 * y),
    "keyword": (lambda x, y: torch.add(input=x, other=y), lambda x, y: x + y),
}


@pytest.mark.parametrize("method", ["lrp", "transformer_attribution", "partial_lrp", "attn_lrp", "abs_lrp"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_residual_sum_is_the_same_however_it_is_written(name, method):
    x = random(2, 5, 8, seed=8)
    models = [Stepping(add).double().eval() for add in WRITTEN[name]]
    found = [vitrail.explain(m, x, method, target=1, anatomy=ANATOMY).scores for m in models]
    assert_close(*found, atol=1e-7, rtol=1e-6)  # the rules divide by sums that nearly cancel


def test_a_scaled_skip_connection_has_no_absolute_rule():
    model = Stepping(lambda x, y: 2 * x + y).double().eval()
    with pytest.raises(RuleError, match="skip connection is scaled"):
        vitrail.explain(model, random(2, 5, 8), "abs_lrp", target=1, anatomy=ANATOMY)


def test_arguments_move_to_their_places_and_no_further():
    assert positional(torch.add, (), {"other": 2, "alpha": 3, "input": 1}) == ((1, 2), {"alpha": 3})
    assert positional(torch.where, (), {"input": 1, "other": 2, "condition": 0}) == ((0, 1, 2), {})
    assert positional(torch.where, (), {"input": 1}) == ((), {"input": 1})
    assert positional(Tensor_mul, (1,), {"other": 2}) == ((1, 2), {})
    assert positional(torch.gather, (), {"input": 1, "dim": 0}) == ((1,), {"dim": 0})
    assert positional(torch.einsum, ("ij->ji", 1), {}) == (("ij->ji", 1), {})


Tensor_mul = torch.Tensor.mul


def test_an_operation_with_more_positional_arguments_than_a_rule_knows_is_refused():
    """An old form of addmm puts a factor before each operand: taken by position, they would be other operands."""
    x, y, z = torch.zeros(2, 4), torch.zeros(2, 3), torch.zeros(3, 4)
    assert arguments("addmm", (x, y, z), {"alpha": 2}) == {"input": x, "mat1": y, "mat2": z, "alpha": 2}
    with pytest.raises(RuleError, match="addmm was called with 5 positional arguments"):
        arguments("addmm", (1, x, 2, y, z), {})
