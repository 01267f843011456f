from dataclasses import replace

import pytest
import torch
from layers import B, D, H, M, T, layer, random, stack
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.capture.recording.layer import Stream
from vitrail.errors import AnatomyError
from vitrail.methods import bi
from vitrail.methods.paths import rows_read

STEPS = 4
EYE = torch.eye(T, dtype=torch.float64)


def importance_by_loops(one, b):
    """I_h = mean over i, j of |sum_q A[q, i] G[q, j]| for real i and j, then divided by the sum over heads."""
    real = [t for t in range(T) if one.valid[b, t]]
    sizes = []
    for h in range(H):
        total = 0.0
        for i in real:
            for j in real:
                total += abs(sum(one.probs[b, h, q, i] * one.probs_grad[b, h, q, j] for q in range(T)))
        sizes.append(total / len(real) ** 2)
    return torch.stack(sizes) / sum(sizes)


def growth_by_loops(one, b, j):
    """||v_j W_O|| / ||x_j||, one channel at a time."""
    values = torch.cat([one.values[b, h, j] for h in range(H)])
    out = [sum(one.output_weight[m, c] * values[c] for c in range(H * D)) for m in range(M)]
    return torch.stack(out).square().sum().sqrt() / one.stream.entering[b, j].square().sum().sqrt()


def test_a_head_weighs_as_much_as_its_attention_and_gradient_agree_anywhere():
    valid = torch.tensor([[True] * T, [True] * 3 + [False] * 2])
    one = layer(valid=valid)
    expected = torch.stack([importance_by_loops(one, b) for b in range(B)])
    assert_close(bi.head_importance(one), expected)
    chunked = replace(one, backend="chunked", chunk_rows=2)
    assert_close(bi.head_importance(chunked), expected)


def test_keys_that_are_padding_do_not_count_for_heads():
    valid = torch.tensor([[True] * T, [True] * 3 + [False] * 2])
    one = layer(valid=valid)
    other = replace(one, value=torch.where(valid[:, None, :, None], one.value, 100 * one.value))
    assert_close(bi.head_importance(other), bi.head_importance(one))


def test_heads_without_any_gradient_weigh_nothing():
    one = layer()
    assert_close(bi.head_importance(replace(one, output_grad=0 * one.output_grad)), torch.zeros(B, H).double())


def test_token_growth_is_a_ratio_of_lengths():
    one = layer()
    expected = torch.stack([torch.stack([growth_by_loops(one, b, j) for j in range(T)]) for b in range(B)])
    assert_close(bi.token_growth(one), expected)
    scale = random(M)
    scaled = replace(one, attention_scale=scale)
    same = replace(one, output_weight=scale[:, None] * one.output_weight)
    assert_close(bi.token_growth(scaled), bi.token_growth(same))


def test_an_identity_projection_and_values_twice_the_input_double_every_token():
    one = layer()
    entering = random(B, T, H * D)
    value = 2 * entering.unflatten(2, (H, D)).transpose(1, 2)
    eye = torch.eye(H * D, dtype=torch.float64)
    plain = replace(one, value=value, output_weight=eye, stream=Stream(entering=entering))
    assert_close(bi.token_growth(plain), torch.full((B, T), 2.0, dtype=torch.float64))


def head_map(one, b):
    weights = importance_by_loops(one, b)
    return sum(weights[h] * one.probs[b, h] for h in range(H))


def token_map(one, b):
    growth = torch.stack([growth_by_loops(one, b, j) for j in range(T)])
    return one.probs[b].mean(dim=0) @ torch.diag(growth)


@pytest.mark.parametrize(("step", "mixing"), [(bi.head_step, head_map), (bi.token_step, token_map)])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_perception_is_a_product_of_identity_plus_weighed_attention(step, mixing, start):
    readout = torch.full((B, T), 1 / T, dtype=torch.float64)
    layers = stack(readout=readout)
    found = bi.perceive(layers, rows_read(layers[-1]).chosen, step, start=start)
    for b in range(B):
        product = EYE
        for one in layers[start:]:
            product = product + mixing(one, b) @ product
        assert_close(found[b], product)


def test_one_row_walks_as_it_does_among_all():
    layers = stack()
    every = bi.perceive(layers, EYE.expand(B, T, T), bi.head_step, start=0)
    single = bi.perceive(layers, layers[-1].readout[:, None], bi.head_step, start=0)
    assert_close(single[:, 0], every[:, 0])


def by_hand(model, inputs, target, kind, start):
    """F * R of the class token, from the attention that the model itself returns."""
    gradients = []
    for alpha in torch.linspace(0, 1, STEPS, dtype=torch.float64):
        handle = model.bert.embeddings.register_forward_hook(lambda module, args, out, alpha=alpha: alpha * out)
        out = model(**inputs, output_attentions=True, output_hidden_states=True)
        handle.remove()
        grads = torch.autograd.grad(out.logits[:, target].sum(), out.attentions)
        gradients.append(grads[-1])
    feedback = torch.stack(gradients).mean(dim=0).clamp(min=0).mean(dim=1)[:, 0]
    rows = []
    for b in range(len(feedback)):
        relevance = torch.eye(9, dtype=torch.float64)
        for index in range(start, 3):
            probs, grad = out.attentions[index][b].detach(), grads[index][b]
            if kind == "bi_head":
                sizes = (probs.transpose(1, 2) @ grad).abs().mean(dim=(1, 2))
                mixing = ((sizes / sizes.sum())[:, None, None] * probs).sum(dim=0)
            else:
                block, x = model.bert.encoder.layer[index].attention, out.hidden_states[index][b].detach()
                moved = block.self.value(x) @ block.output.dense.weight.T
                mixing = probs.mean(dim=0) * (moved.norm(dim=1) / x.norm(dim=1))
            relevance = relevance + mixing @ relevance
        rows.append(relevance[0])
    return feedback * torch.stack(rows)


@pytest.mark.parametrize(("method", "start"), [("bi_head", 2), ("bi_head", 0), ("bi_token", 0), ("bi_token", 1)])
def test_a_bert_is_explained_as_its_own_attention_says(method, start):
    model, inputs = tiny("hf_bert_eager"), MODELS["hf_bert_eager"].inputs()
    expected = by_hand(model, inputs, 1, method, start).detach()
    assert_close(vitrail.explain(model, inputs, method, 1, start_layer=start, steps=STEPS).scores, expected)
    published = vitrail.explain(model, inputs, method, 1, steps=STEPS)
    if start == {"bi_head": 2, "bi_token": 0}[method]:  # the last block; the last four, which are more than there are
        assert_close(published.scores, expected)
    else:
        assert not torch.allclose(published.scores, expected)


@pytest.mark.parametrize("method", ["bi_head", "bi_token"])
def test_the_own_part_is_what_is_left_without_attention(method):
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    found = vitrail.explain(model, inputs, method, 1, steps=3)
    assert found.own is not None
    assert_close(found.own[:, 1:], torch.zeros(2, 8, dtype=torch.float64))
    official = vitrail.explain(model, inputs, method, 1, "official", steps=3)
    assert_close(official.scores[:, 0], torch.zeros(2, dtype=torch.float64))
    assert_close(official.scores[:, 1:], found.scores[:, 1:])


def test_tokens_need_the_output_projection_before_the_model_runs():
    anatomy = vitrail.Anatomy(blocks="bert.encoder.layer", prefix=1, readout="cls")
    with pytest.raises(AnatomyError, match="output projection"):
        vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), "bi_token", anatomy=anatomy)
