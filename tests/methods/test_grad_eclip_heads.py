from dataclasses import replace

import torch
from layers import B, H, T, layer, run, stack
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.methods import grad_eclip


def by_loops(one, *, similarity=True):
    """[sum_h sum_d g_hd v_hjd lambda_hj]^+, entry by entry, the class token left out of the range."""
    found = torch.zeros(B, T, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            q, g = one.query[b, h, 0], one.output_grad[b, h, 0]
            cosine = [q @ k / (q.norm() * k.norm()) for k in one.key[b, h]]
            low, high = min(cosine[1:]), max(cosine[1:])
            for j in range(1, T):
                found[b, j] += (g @ one.value[b, h, j]) * ((cosine[j] - low) / (high - low) if similarity else 1)
    return found.clamp(min=0)


def test_heads_are_weighed_apart_and_added_before_the_positive_part():
    layers = stack()
    found = run(grad_eclip.build_heads(), layers)
    assert_close(found.scores, by_loops(layers[-1]))
    assert_close(found.heads.sum(dim=1).clamp(min=0), found.scores)


def test_without_similarity_only_gradient_and_values_count():
    layers = stack()
    found = run(grad_eclip.build_heads(similarity=False), layers).scores
    assert_close(found[:, 1:], by_loops(layers[-1], similarity=False)[:, 1:])


def test_a_case_solved_by_hand():
    """One head, d = 2: cosines 1, 0 and -1 give lambda 1, 1/2 and 0."""
    one = layer(heads=1)
    rows = torch.tensor([[9.0, 9.0], [2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    key = rows.expand(B, 1, T, 2)
    query = torch.tensor([5.0, 0.0], dtype=torch.float64).expand(B, 1, T, 2)
    value = torch.tensor([[1.0, 1.0]] * 5, dtype=torch.float64).expand(B, 1, T, 2)
    grad = torch.tensor([3.0, -1.0], dtype=torch.float64).expand(B, 1, T, 2)
    one = replace(one, query=query, key=key, value=value, output_grad=grad, query_grad=None)
    expected = torch.tensor([0.0, 2.0, 1.0, 0.0, 2.0], dtype=torch.float64).expand(B, T)
    assert_close(run(grad_eclip.build_heads(), [one]).scores, expected)


def test_the_order_of_heads_does_not_matter():
    one = layer()
    names = ("query", "key", "value", "output_grad")
    flipped = replace(one, **{name: getattr(one, name).flip(1) for name in names})
    assert_close(run(grad_eclip.build_heads(), [flipped]).scores, run(grad_eclip.build_heads(), [one]).scores)


def test_tokens_behind_the_readout_of_a_causal_layer_do_not_move_the_range():
    readout = torch.zeros(B, T, dtype=torch.float64)
    readout[:, 2] = 1
    one = layer(kind="text", causal=True, readout=readout, prefix=0)
    later = torch.arange(T)[:, None] > 2
    moved = replace(one, key=torch.where(later, 9 * one.key.flip(3), one.key))
    found = run(grad_eclip.build_heads(), [one]).scores
    assert_close(run(grad_eclip.build_heads(), [moved]).scores, found)
    assert_close(found[:, 3:], torch.zeros(B, 2, dtype=torch.float64))


def test_on_a_model_with_one_head_and_clip_it_differs_from_the_papers_by_the_projection_only():
    """Without lambda and in a model that has one head already, both are the same but for the logit scale."""
    from transformers import CLIPConfig, CLIPModel

    size = {"hidden_size": 12, "num_attention_heads": 1, "intermediate_size": 20, "num_hidden_layers": 2}
    vision = {**size, "image_size": 16, "patch_size": 8}
    text = {**size, "vocab_size": 61, "eos_token_id": 60, "bos_token_id": 1, "pad_token_id": 0}
    torch.manual_seed(4)
    clip = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).double().eval()
    inputs = MODELS["hf_clip"].inputs() | {"pixel_values": torch.randn(2, 3, 16, 16, dtype=torch.float64)}
    ours = vitrail.explain(clip, inputs, "grad_eclip_heads", 1, similarity=False).scores
    paper = vitrail.explain(clip, inputs, "grad_eclip", 1, similarity=False).scores
    assert float(ours.detach().abs().max()) > 0
    assert_close(paper * clip.logit_scale.detach().exp(), ours, atol=1e-12, rtol=1e-8)


def test_classifiers_of_images_and_texts_are_explained():
    for name in ("hf_vit", "timm_siglip", "hf_bert", "hf_llama"):
        found = vitrail.explain(tiny(name), MODELS[name].inputs(), "grad_eclip_heads", 1)
        assert bool((found.scores >= 0).all())
        assert found.heads.shape[0] == 2
