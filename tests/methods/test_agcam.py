from dataclasses import replace

import pytest
import torch
from layers import B, H, T, run, stack
from plain_vit import plain_vit, watched
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.errors import AnatomyError, SeamError
from vitrail.methods import agcam


def by_loops(layers):
    """Sum over blocks and heads of [G]^+ times the sigmoid of the scores, in the readout's row."""
    scores = torch.zeros(B, T, dtype=torch.float64)
    for one in layers:
        for b in range(B):
            for h in range(H):
                for k in range(T):
                    product = sum(one.query[b, h, 0, d] * one.key[b, h, k, d] for d in range(one.key.shape[3]))
                    gradient = sum(one.output_grad[b, h, 0, d] * one.value[b, h, k, d] for d in range(4))
                    if gradient > 0 and one.valid[b, k]:
                        scores[b, k] += gradient / (1 + torch.exp(-one.scale * product))
    return scores


def test_positive_gradients_are_weighted_by_the_sigmoid_of_the_scores_and_added():
    layers = stack()
    assert_close(run(agcam.build(), layers).scores, by_loops(layers))


def test_a_masked_key_gets_nothing():
    valid = torch.ones(B, T, dtype=torch.bool)
    valid[0, 3:] = False
    layers = stack(valid=valid)
    assert_close(run(agcam.build(), layers).scores, by_loops(layers))


def test_equal_scores_of_zero_give_half_the_positive_gradient():
    layers = [replace(one, query=0 * one.query) for one in stack()]
    expected = sum(one.probs_grad[:, :, 0].clamp(min=0).sum(dim=1) / 2 for one in layers)
    assert_close(run(agcam.build(), layers).scores, expected)


def plain(model, images, target):
    with watched(model) as seen:
        logits = model(images)
    gradients = torch.autograd.grad(logits[:, target].sum(), seen["maps"])
    scale = model.blocks[0].attn.scale
    guides = [(q * scale @ k.mT).sigmoid() for q, k in zip(seen["queries"], seen["keys"], strict=True)]
    maps = [g.clamp(min=0) * f for g, f in zip(gradients, guides, strict=True)]
    return sum(x.sum(dim=1)[:, 0, 1:] for x in maps).detach()


def test_a_model_gives_what_plain_autograd_gives():
    model, images = plain_vit()
    assert_close(vitrail.explain(model, images, "agcam", 3).scores, plain(model, images, 3))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_detached_is_a_model_whose_norms_before_attention_pass_no_gradient(fused, frozen):
    model, images = plain_vit()
    handles = [b.norm1.register_forward_hook(lambda m, a, out: out.detach().requires_grad_()) for b in model.blocks]
    expected = plain(model, images, 3)
    for handle in handles:
        handle.remove()
    for block in model.blocks:
        block.attn.fused_attn = fused
    model.requires_grad_(not frozen)
    found = vitrail.explain(model, images, "agcam", 3, detach=True).scores
    assert_close(found, expected)
    assert (found - vitrail.explain(model, images, "agcam", 3).scores).abs().max() > 1e-3 * found.max()


def test_with_one_block_there_is_nothing_to_cut():
    model = MODELS["hf_bert"].build().double()
    model.bert.encoder.layer = model.bert.encoder.layer[:1]
    inputs = MODELS["hf_bert"].inputs()
    assert_close(*(vitrail.explain(model, inputs, "agcam", 1, detach=detach).scores for detach in (False, True)))


@pytest.mark.parametrize("name", ["hf_mpnet", "hf_beit", "hf_bert_eager", "hf_gpt2", "own_time_first", "timm_siglip"])
def test_the_softmax_of_the_scores_is_the_attention(name):
    for one in vitrail.record(tiny(name), MODELS[name].inputs()).layers:
        assert_close(one.scores.softmax(dim=-1), one.probs)


def test_attention_written_by_hand_gives_what_the_fused_one_gives():
    fused, eager = tiny("hf_bert"), MODELS["hf_bert_eager"].build().double().eval()
    eager.load_state_dict(fused.state_dict())
    inputs = MODELS["hf_bert"].inputs()
    inputs["attention_mask"][0, 6:] = 0
    for detach in (False, True):
        both = [vitrail.explain(model, inputs, "agcam", 1, detach=detach).scores for model in (fused, eager)]
        assert_close(*both)


def test_what_enters_the_softmax_is_kept_only_when_asked_for():
    model, inputs = tiny("hf_bert_eager"), MODELS["hf_bert_eager"].inputs()
    assert vitrail.record(model, inputs, keep={"output_grad"}).layers[0].softmax_input is None


def test_cutting_needs_blocks():
    anatomy = vitrail.Anatomy(prefix=1, readout="cls")
    with pytest.raises(AnatomyError, match="needs the blocks"):
        vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), "agcam", detach=True, anatomy=anatomy)


class WithEinsum(torch.nn.Module):
    """One block whose values are mixed by an einsum."""

    def forward(self, x):
        weights = (x @ x.mT)[:, None].softmax(dim=-1)
        return x + torch.einsum("bhqk,bkd->bqd", weights, x)


def test_values_that_an_einsum_hides_are_refused():
    model = torch.nn.Sequential(torch.nn.Embedding(60, 4), torch.nn.Sequential(WithEinsum()), torch.nn.Linear(4, 3))
    model = torch.nn.Sequential(model, torch.nn.AdaptiveAvgPool2d((1, 3)), torch.nn.Flatten()).double()
    anatomy = vitrail.Anatomy(blocks="0.1", readout="mean_all")
    ids = torch.tensor([[3, 4, 5]])
    assert vitrail.explain(model, ids, "gae", 1, anatomy=anatomy).scores.shape == (1, 3)
    with pytest.raises(SeamError, match="einsum"):
        vitrail.explain(model, ids, "agcam", 1, detach=True, anatomy=anatomy)
