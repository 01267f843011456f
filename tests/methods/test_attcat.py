import pytest
import torch
from layers import B, H, M, T, run, stack
from torch.testing import assert_close

from vitrail.methods import attcat


@pytest.mark.parametrize(("states", "name"), [("input", "entering"), ("output", "leaving")])
def test_attcat_is_the_sum_over_layers_of_attention_received_times_activation(states, name):
    layers = stack()
    expected = torch.zeros(B, len(layers), T, dtype=torch.float64)
    for b in range(B):
        for index, one in enumerate(layers):
            state, gradient = getattr(one.stream, name)[b], getattr(one.stream, f"{name}_grad")[b]
            for i in range(T):
                alpha = sum(one.probs[b, h, q, i] for h in range(H) for q in range(T)) / H / T
                expected[b, index, i] = alpha * sum(gradient[i, c] * state[i, c] for c in range(M))
    found = run(attcat.build(states=states), layers)
    assert_close(found.layers, expected)
    assert_close(found.scores, expected.sum(dim=1))


def test_cat_leaves_attention_out():
    layers = stack()
    expected = sum((one.stream.leaving * one.stream.leaving_grad).sum(dim=2) for one in layers)
    assert_close(run(attcat.build_cat(), layers).scores, expected)


def test_cat_of_the_last_layer_warns_that_only_the_readout_can_have_a_gradient():
    with pytest.warns(UserWarning, match="zero at every other token"):
        method = attcat.build_cat(blocks="last")
    last = stack()
    assert_close(run(method, last).scores, (last[-1].stream.leaving * last[-1].stream.leaving_grad).sum(dim=2))


def test_padded_queries_do_not_dilute_the_attention_received():
    valid = torch.ones(B, T, dtype=torch.bool)
    valid[:, 3:] = False
    (one,) = stack(depth=1, valid=valid)
    assert_close(attcat.received(one), one.probs[:, :, :3].mean(dim=(1, 2)))
