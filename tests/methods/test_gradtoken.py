from dataclasses import replace

import pytest
import torch
from layers import B, D, H, T, layer, run, stack, with_query_gradient
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.testing import assert_close

from vitrail.errors import OptionError
from vitrail.methods import gradtoken


def test_the_query_gradient_is_what_autograd_gives():
    one = layer()
    query = one.query.clone().requires_grad_()
    output = sdpa(query, one.key, one.value, scale=one.scale)
    (expected,) = torch.autograd.grad((output * one.output_grad).sum(), query)
    assert_close(gradtoken.query_gradient(one), expected[:, :, 0])


def test_class_relevance_is_the_closed_form_over_key_products():
    """M_h[j] = scale * sum_i delta_i k_i . k_j with delta_i = a_i (gamma_i - sum_k a_k gamma_k)."""
    one = layer()
    found = gradtoken.class_relevance(one)
    for b in range(B):
        for h in range(H):
            a, gamma = one.probs[b, h, 0], one.value[b, h] @ one.output_grad[b, h, 0]
            delta = a * (gamma - (a * gamma).sum())
            for j in range(1, T):
                expected = sum(delta[i] * (one.key[b, h, i] @ one.key[b, h, j]) for i in range(T)) * one.scale
                assert_close(found[b, h, j], expected)
    assert_close(found[:, :, 0], torch.zeros(B, H, dtype=torch.float64))


def test_a_constant_added_to_all_keys_changes_the_map_by_a_constant():
    one = layer()
    moved = with_query_gradient(replace(one, key=one.key + torch.randn(B, H, 1, D, dtype=torch.float64)))
    change = (gradtoken.class_relevance(moved) - gradtoken.class_relevance(one))[:, :, 1:]
    assert_close(change, change[:, :, :1].expand_as(change))


def plain(layers):
    """Mean attention of the blocks below the last, and M."""
    return [one.probs.mean(dim=1) for one in layers[:-1]], gradtoken.class_relevance(layers[-1])


def scheme(layers, name):
    below, maps = plain(layers)
    eye = torch.eye(T, dtype=torch.float64)
    up, down = eye.expand(B, T, T), eye.expand(B, T, T)
    for a in below:
        up, down = (eye + a) @ up, down @ (eye + a)
    mean = sum(below) / len(layers)
    return {
        "none": maps,
        "rollout_elementwise": up[:, None, 0] * maps,
        "rollout_matmul": torch.einsum("bqk,bhk->bhq", down, maps),
        "average_elementwise": mean[:, None, 0] * maps,
        "average_matmul": torch.einsum("bqk,bhk->bhq", mean, maps),
    }[name]


@pytest.mark.parametrize("name", gradtoken.SCHEMES)
def test_schemes_are_the_papers_matrix_products(name):
    layers = stack(depth=4)
    expected = scheme(layers, name)
    expected[:, :, 0] = 0  # the class token is no patch
    found = run(gradtoken.build(scheme=name), layers)
    assert_close(found.heads, expected)
    assert_close(found.scores, expected.clamp(min=0).mean(dim=1))
    assert_close(run(gradtoken.build(scheme=name, heads="mean"), layers).scores, expected.mean(dim=1))


def test_depth_leaves_out_the_blocks_below_it():
    layers = stack(depth=4)
    maps = gradtoken.class_relevance(layers[-1])
    mean = layers[2].probs.mean(dim=1) / 4
    expected = torch.einsum("bqk,bhk->bhq", mean, maps)
    expected[:, :, 0] = 0
    assert_close(run(gradtoken.build(depth=3), layers).heads, expected)


def test_a_mean_readout_takes_the_mean_query():
    readout = torch.full((B, T), 1 / T, dtype=torch.float64)
    one = layer(readout=readout, prefix=0)
    query = one.query.clone().requires_grad_()
    output = sdpa(query, one.key, one.value, scale=one.scale)
    (gradient,) = torch.autograd.grad((output * one.output_grad).sum(), query)
    assert_close(gradtoken.query_gradient(one), gradient.mean(dim=2))


def test_a_depth_the_model_does_not_have_is_an_error():
    with pytest.raises(OptionError, match="blocks 1 to 2"):
        run(gradtoken.build(depth=3), stack(depth=3))
