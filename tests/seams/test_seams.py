import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from vitrail.capture.seams import attention_calls


def captured(function):
    calls = []
    with attention_calls(calls.append):
        out = function()
    return calls, out


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_a_fused_call_is_heard_with_its_scale_mask_and_shared_heads():
    q, k, v, mask = random(2, 4, 5, 6), random(2, 2, 7, 6), random(2, 2, 7, 6), random(2, 1, 5, 7)
    (call,), out = captured(lambda: F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True))
    assert call.query is q
    assert call.mask is mask
    assert (call.scale, call.causal) == (0.3, False)
    assert call.output is out
    (causal,), _ = captured(lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True))
    assert causal.causal
    assert causal.scale == pytest.approx(6**-0.5)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_is_heard_and_computes_the_same_bits(need_weights):
    layer = nn.MultiheadAttention(12, 3, batch_first=True).double().eval()
    x = random(2, 5, 12).requires_grad_()
    plain = layer(x, x, x, need_weights=need_weights)[0]
    (call,), out = captured(lambda: layer(x, x, x, need_weights=need_weights)[0])
    assert torch.equal(out, plain)
    assert (call.weights is not None) == need_weights


def test_multihead_attention_with_padding_passes_its_mask_on():
    layer = nn.MultiheadAttention(12, 3, batch_first=True).double().eval()
    x, padding = random(2, 5, 12).requires_grad_(), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    (call,), _ = captured(lambda: layer(x, x, x, key_padding_mask=padding, need_weights=False))
    assert call.mask.shape[-1] == 5
    assert bool((call.mask[1, ..., 3:] < -1e9).all())


def test_attention_written_by_hand_is_heard_through_dropout_cast_and_reshape():
    q, k, v = random(2, 3, 5, 4), random(2, 3, 7, 4), random(2, 3, 7, 4)

    def attend():
        scores = torch.matmul(q, k.transpose(-1, -2)) / 2
        probs = F.dropout(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), 0.1, training=False)
        return torch.bmm(probs.view(6, 5, 7), v.reshape(6, 7, 4))

    (call,), out = captured(attend)
    assert call.weights.shape == (6, 5, 7)
    assert_close(call.weights @ call.value, out)
    assert call.query is q
    assert_close(call.key, k)


def test_attention_by_einsum_is_heard_with_its_weights():
    q, k, v = random(2, 3, 5, 4), random(2, 3, 7, 4), random(2, 7, 3, 4)
    (call,), _ = captured(lambda: torch.einsum("bhqk,bkhd->bqhd", (q @ k.mT).softmax(dim=-1), v))
    assert_close(call.weights, (q @ k.mT).softmax(dim=-1))


def test_a_softmax_that_multiplies_nothing_is_no_attention():
    calls, _ = captured(lambda: random(2, 5, 7).softmax(dim=-1).sum())
    assert calls == []


def test_a_softmax_over_another_axis_is_no_attention():
    calls, _ = captured(lambda: random(2, 3, 5, 5).softmax(dim=1) @ random(2, 3, 5, 4))
    assert calls == []


def test_disentangled_attention_is_heard():
    transformers = pytest.importorskip("transformers")
    config = transformers.DebertaV2Config(
        vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=4, max_relative_positions=8,
    )  # fmt: skip
    model = transformers.DebertaV2ForSequenceClassification(config).double().eval()
    calls, _ = captured(lambda: model(torch.randint(0, 50, (2, 6))))
    assert len(calls) == 2
    for call in calls:
        assert_close(call.weights.sum(dim=-1), torch.ones_like(call.weights[..., 0]))
