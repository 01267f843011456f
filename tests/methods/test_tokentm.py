import math
from dataclasses import replace

import pytest
import torch
from layers import B, D, H, T, layer, run, stack
from torch.testing import assert_close

from vitrail.errors import OptionError
from vitrail.methods import gae, tokentm


def by_loops(layers, *, bias=True):
    """Eqs. 8 to 20 with every transformed vector formed, one token and one head at a time."""
    rows = []
    for b in range(B):
        contribution = torch.diag(layers[0].stream.entering[b].norm(dim=1))
        for one in layers:
            update = torch.eye(T, dtype=torch.float64)
            for h in range(H):
                weight = one.output_weight[:, h * D : (h + 1) * D]
                value_bias = one.value_bias[2 * H * D :][h * D : (h + 1) * D]
                original = one.stream.entering[b]
                new = [weight @ (one.value[b, h, j] - (0 if bias else value_bias)) for j in range(T)]
                weights = loop_weights(original, new)
                for i in range(T):
                    for j in range(T):
                        gain = max(float(one.probs_grad[b, h, i, j]), 0.0)
                        update[i, j] += gain * one.probs[b, h, i, j] * weights[j] / H
            contribution = update @ contribution
            added = loop_weights(one.stream.ffn_entering[b], list(one.stream.ffn_added[b]))
            contribution = (torch.eye(T, dtype=torch.float64) + torch.diag(torch.stack(added))) @ contribution
        rows.append(contribution[0])
    return torch.stack(rows)


def loop_weights(original, new):
    cosines = [float(e @ n / e.norm() / n.norm()) for e, n in zip(original, new, strict=True)]
    total = sum(math.exp(c) for c in cosines)
    return [n.norm() / e.norm() * math.exp(c) / total for e, n, c in zip(original, new, cosines, strict=True)]


@pytest.mark.parametrize("bias", [True, False])
def test_tokentm_is_the_papers_recursion_written_slowly(bias):
    layers = stack()
    assert_close(run(tokentm.build(value_bias=bias), layers).scores, by_loops(layers, bias=bias))


def test_without_weights_lengths_and_ffn_it_is_gae():
    layers = stack()
    plain = tokentm.build(length=False, direction=False, ffn=False, initial="identity", scalar="logit")
    assert_close(run(plain, layers).scores, run(gae.build(), layers).scores)


def test_normalised_cosines_sum_to_one_and_stay_within_their_bounds():
    cosine = torch.rand(B, H, T, dtype=torch.float64) * 2 - 1
    cosine[0, 0] = torch.tensor([1, -1, -1, -1, -1])
    cosine[1, 1] = torch.tensor([-1, 1, 1, 1, 1])
    found = tokentm.normalised_cosine(cosine, torch.ones(B, T, dtype=torch.bool))
    low = math.exp(-1) / (math.exp(-1) + (T - 1) * math.e)
    high = math.e / (math.e + (T - 1) * math.exp(-1))
    assert_close(found.sum(dim=2), torch.ones(B, H, dtype=torch.float64))
    assert_close(found.min(), torch.tensor(low, dtype=torch.float64))
    assert_close(found.max(), torch.tensor(high, dtype=torch.float64))


def test_padding_takes_no_part_in_the_normalised_cosine():
    cosine = torch.rand(B, H, T, dtype=torch.float64)
    valid = torch.ones(B, T, dtype=torch.bool)
    valid[:, 3:] = False
    found = tokentm.normalised_cosine(cosine, valid)
    assert_close(found[..., :3], cosine[..., :3].softmax(dim=2))
    assert_close(found[..., 3:], torch.zeros(B, H, 2, dtype=torch.float64))


def test_a_token_that_keeps_its_vector_has_length_ratio_one():
    length = torch.rand(B, H, T, dtype=torch.float64) + 1
    assert_close(tokentm.length_ratio(length, length[:, 0])[:, 0], torch.ones(B, T, dtype=torch.float64))


def test_shared_value_heads_use_the_output_slice_of_the_query_head():
    one = layer()
    shared = replace(one, key=one.key[:, :1], value=one.value[:, :1], value_bias=None)
    repeated = replace(one, key=one.key[:, :1].expand(-1, H, -1, -1), value=one.value[:, :1].expand(-1, H, -1, -1))
    assert_close(run(tokentm.build(), [shared]).scores, run(tokentm.build(), [repeated]).scores)


def test_the_weights_of_every_block_are_kept():
    layers = stack()
    found = run(tokentm.build(), layers).layers
    for index, one in enumerate(layers):
        change = tokentm.attention_change(one, "entering", bias=True, scale=True)
        weights = tokentm.weighed(change, one.valid, use=(True, True))
        assert_close(found[:, index], weights.mean(dim=1))


@pytest.mark.parametrize(("blocks", "index"), [("first", 0), ("last", 2)])
def test_one_block_alone_is_its_map_without_the_identity(blocks, index):
    layers = stack()
    options = {"length": False, "direction": False, "ffn": False, "initial": "identity"}
    found = run(tokentm.build(blocks=blocks, **options), layers).scores
    one = layers[index]
    assert_close(found, (one.probs_grad * one.probs).clamp(min=0).mean(dim=1)[:, 0])


def test_a_wrong_choice_names_the_right_ones():
    with pytest.raises(OptionError, match="Did you mean lengths"):
        tokentm.build(initial="length")
