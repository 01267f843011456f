"""Relative absolute magnitude propagation: every form as a derivative of z + z_abs, entry by entry."""

import torch
from torch.nn import functional as F
from torch.testing import assert_close

from vitrail.methods import abs_lrp

torch.manual_seed(2)


def by_autograd(c, z_and_absolute, *inputs):
    """The published rule: the cotangent through z + z_abs, times the input."""
    roots = [x.detach().requires_grad_() for x in inputs]
    found = torch.autograd.grad(z_and_absolute(*roots), roots, c)
    return [x * g for x, g in zip(inputs, found, strict=True)]


def test_a_linear_layer_keeps_twice_its_positive_products():
    x, w = torch.randn(2, 3, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    c = torch.randn(2, 3, 4, dtype=torch.float64)
    (expected,) = by_autograd(c, lambda x: F.linear(x, w) + F.linear(x.abs(), w.abs()), x)
    assert_close(abs_lrp.linear_form(c, x, w), expected)
    loops = torch.zeros_like(x)
    for b in range(2):
        for n in range(3):
            for i in range(5):
                loops[b, n, i] = sum(2 * max(float(w[j, i] * x[b, n, i]), 0.0) * c[b, n, j] for j in range(4))
    assert_close(abs_lrp.linear_form(c, x, w), loops)


def test_both_factors_of_a_product():
    a, b = torch.randn(2, 3, 5, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    c = torch.randn(2, 3, 4, dtype=torch.float64)
    expected = by_autograd(c, lambda a, b: a @ b + a.abs() @ b.abs(), a, b)
    for found, right in zip(abs_lrp.product_form(c, a, b), expected, strict=True):
        assert_close(found, right)


def test_a_norm_has_constant_statistics_of_x_and_of_its_size():
    x, w, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((2, 3, 5), (5,), (5,)))
    c = torch.randn(2, 3, 5, dtype=torch.float64)

    def norm(x, w, bias):
        mean, var = x.mean(-1, keepdim=True).detach(), x.var(-1, correction=0, keepdim=True).detach()
        return (x - mean) / (var + 1e-5).sqrt() * w + bias

    (expected,) = by_autograd(c, lambda x: norm(x, w, bias) + norm(x.abs(), w.abs(), bias.abs()), x)
    assert_close(c * abs_lrp.norm_form(x, w, 1e-5, [-1]), expected)


def test_an_entrywise_function_uses_its_slope_at_x_and_at_its_size():
    x, c = torch.randn(2, 7, dtype=torch.float64), torch.randn(2, 7, dtype=torch.float64)
    (expected,) = by_autograd(c, lambda x: F.gelu(x) + F.gelu(x.abs()), x)
    slopes = []
    for y in (x, x.abs()):
        root = y.detach().requires_grad_()
        slopes.append(torch.autograd.grad(F.gelu(root).sum(), root)[0])
    assert_close(c * abs_lrp.entrywise(x, *slopes), expected)


def test_what_is_below_zero_is_lost_in_a_dropout_and_the_rest_counts_twice():
    x = torch.tensor([[2.0, -3.0, 0.0, 1.0]]).double()
    c = abs_lrp.cotangent(torch.ones(1, 4).double(), x)
    expected = torch.tensor([[2.0, 0.0, 0.0, 2.0]]).double()
    assert_close(c * abs_lrp.entrywise(x, 1.0, 1.0), expected, atol=1e-8, rtol=0)


def test_each_sample_is_divided_by_its_own_absolute_sum():
    r = torch.randn(3, 4, 5, dtype=torch.float64)
    for axis in (0, 1):
        axes = [a for a in range(3) if a != axis]
        assert_close(abs_lrp.unit(r, axis).abs().sum(dim=axes), torch.ones(r.shape[axis]).double(), atol=1e-8, rtol=0)
