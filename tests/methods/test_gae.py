from dataclasses import replace

import pytest
import torch
from layers import B, H, T, layer, run, stack
from torch.testing import assert_close

from vitrail.errors import OptionError
from vitrail.methods import gae


def by_loops(layers, weigh):
    """R <- R + A_bar R from the identity, entry by entry, and the readout's row at the end."""
    rows = []
    for b in range(B):
        relevance = torch.eye(T, dtype=torch.float64)
        for one in layers:
            mixing = torch.zeros(T, T, dtype=torch.float64)
            for h in range(H):
                for q in range(T):
                    for k in range(T):
                        mixing[q, k] += weigh(one.probs[b, h, q, k], one.probs_grad[b, h, q, k]) / H
            relevance = relevance + mixing @ relevance
        rows.append(relevance[0])
    return torch.stack(rows)


def test_gae_is_the_additive_recursion_of_the_positive_part():
    layers = stack()
    expected = by_loops(layers, lambda a, g: max(a * g, torch.tensor(0.0).double()))
    assert_close(run(gae.build(), layers).scores, expected)


def test_complete_keeps_signs_in_every_product():
    layers = stack()
    expected = by_loops(layers, lambda a, g: a * g)
    assert_close(run(gae.build_complete(), layers).scores, expected)


def test_absolute_takes_the_size_of_the_gradient():
    layers = stack()
    expected = by_loops(layers, lambda a, g: a * abs(g))
    assert_close(run(gae.build_absolute(), layers).scores, expected)


def test_the_additive_recursion_is_the_product_of_identity_plus_attention():
    layers = stack()
    product = torch.eye(T, dtype=torch.float64).expand(B, T, T)
    for one in layers:
        bar = (one.probs_grad * one.probs).clamp(min=0).mean(dim=1)
        product = (torch.eye(T, dtype=torch.float64) + bar) @ product
    assert_close(run(gae.build(), layers).scores, product[:, 0])


def test_complete_of_one_layer_is_its_positive_part_minus_its_negative_part():
    one = layer()
    negated = replace(one, output_grad=-one.output_grad)
    own = one.readout
    positive = run(gae.build(), [one]).scores - own
    negative = run(gae.build(), [negated]).scores - own
    assert_close(run(gae.build_complete(), [one]).scores - own, positive - negative)
    assert_close(run(gae.build_absolute(), [one]).scores - own, positive + negative)


def test_layers_below_the_start_take_no_part():
    layers = stack(depth=4)
    expected = run(gae.build(), [replace(one, index=i, depth=2) for i, one in enumerate(layers[2:])]).scores
    assert_close(run(gae.build(start_layer=2), layers).scores, expected)
    assert not torch.allclose(expected, run(gae.build(start_layer=1), layers).scores)


def test_a_start_layer_the_model_does_not_have_is_an_error():
    for wrong in (3, -1):
        with pytest.raises(OptionError, match="layers are 0 to 2"):
            run(gae.build(start_layer=wrong), stack(depth=3))


def test_without_gradient_only_the_readout_explains_itself():
    one = layer()
    assert_close(run(gae.build(), [replace(one, output_grad=0 * one.output_grad)]).scores, one.readout)


def test_a_causal_layer_never_credits_the_future():
    readout = torch.zeros(B, T, dtype=torch.float64)
    readout[:, 2] = 1
    scores = run(gae.build(), stack(causal=True, readout=readout)).scores
    assert_close(scores[:, 3:], torch.zeros(B, 2, dtype=torch.float64))
    assert bool((scores[:, :3] > 0).all())


def test_the_order_of_heads_does_not_matter():
    layers = stack()
    names = ("query", "key", "value", "output_grad")
    flipped = [replace(one, **{name: getattr(one, name).flip(1) for name in names}) for one in layers]
    assert_close(run(gae.build(), flipped).scores, run(gae.build(), layers).scores)
