import copy
from dataclasses import replace

import pytest
import torch
from layers import B, H, T, layer
from tiny_models import MODELS, texts, tiny
from torch.nn.functional import linear, normalize
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.errors import MethodError, OptionError
from vitrail.methods import grad_eclip

CLIP, IMAGES = "hf_clip", MODELS["hf_clip"].inputs()


def attend_with_one_head(block, x, mask=None):
    """A block with one head of full width: its output, and what the method reads of it."""
    attention, h = block.self_attn, block.layer_norm1(x)
    q, k, v = (project(h) for project in (attention.q_proj, attention.k_proj, attention.v_proj))
    z = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + (0 if mask is None else mask)).softmax(dim=-1) @ v
    x = x + attention.out_proj(z)
    return x + block.mlp(block.layer_norm2(x)), (attention.out_proj(q), attention.out_proj(k), v, z)


def cosines(clip, pictures, words):
    return normalize(pictures, dim=-1) @ normalize(words, dim=-1).T


def text_embeddings(clip, given):
    return clip.get_text_features(**given).pooler_output


def image_by_hand(clip, pixels, given, chosen, *, similarity=True, layers=1):
    """The paper for one picture and one text, patch by patch."""
    tower = clip.vision_model
    x = tower.pre_layrnorm(tower.embeddings(pixels[None]))
    for block in tower.encoder.layers[:-layers]:
        x = block(x, None)
    read = []
    for block in tower.encoder.layers[-layers:]:
        x, parts = attend_with_one_head(block, x)
        read.append(parts)
    embedding = clip.visual_projection(tower.post_layernorm(x[:, 0]))
    s = cosines(clip, embedding, text_embeddings(clip, given))[0, chosen]
    total = 0
    for q, k, v, z in read:
        g = torch.autograd.grad(s, z, retain_graph=True)[0][0, 0]
        cosine = [(normalize(q[0, 0], dim=0) * normalize(k[0, j], dim=0)).sum() for j in range(1, k.shape[1])]
        low, high = min(cosine), max(cosine)
        weights = [(c - low) / (high - low) if similarity else 1.0 for c in cosine]
        total = total + torch.stack([(g * v[0, j + 1] * w).sum() for j, w in enumerate(weights)])
    return total.clamp(min=0).detach()


def text_by_hand(tower, ids, picture, *, layers=1):
    """The paper for one text without padding: the end token's row, the words between, divided by their sum."""
    clip, text = tower.clip, tower.clip.text_model
    length = len(ids)
    mask = torch.full((length, length), -torch.inf, dtype=torch.float64).triu(1)
    x = text.embeddings(input_ids=ids[None])
    for block in text.encoder.layers[:-layers]:
        x = block(x, mask[None, None])
    read = []
    for block in text.encoder.layers[-layers:]:
        x, parts = attend_with_one_head(block, x, mask)
        read.append(parts)
    embedding = clip.text_projection(text.final_layer_norm(x[:, -1]))
    pictures = clip.get_image_features(pixel_values=tower.pictures).pooler_output
    s = cosines(clip, pictures, embedding)[picture, 0]
    total = 0
    for q, k, v, z in read:
        g = torch.autograd.grad(s, z, retain_graph=True)[0][0, -1]
        cosine = (normalize(q[0, -1], dim=0) * normalize(k[0], dim=1)).sum(dim=1)
        total = total + (v[0] @ g) * (cosine - cosine.min()) / (cosine.max() - cosine.min())
    words = total.clamp(min=0).detach()[1:-1]
    return words / words.sum()


@pytest.mark.parametrize("options", [{}, {"similarity": False}, {"layers": 2}, {"layers": 3, "similarity": False}])
def test_an_image_map_is_the_papers_with_the_block_written_by_hand(options):
    clip, given = tiny(CLIP), texts()
    found = vitrail.explain(clip, IMAGES, "grad_eclip", [3, 1], **options).scores
    for row, chosen in enumerate([3, 1]):
        expected = image_by_hand(clip, IMAGES["pixel_values"][row], given, chosen, **options)
        assert float(expected.max()) > 1e-3
        assert_close(found[row], expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_text_map_is_the_papers_with_the_block_written_by_hand(layers):
    tower, ids = tiny("hf_clip_text"), MODELS["hf_clip_text"].inputs()["input_ids"]
    found = vitrail.explain(tower, {"input_ids": ids}, "grad_eclip", [2, 0], layers=layers).scores
    for row, chosen in enumerate([2, 0]):
        expected = text_by_hand(tower, ids[row], chosen, layers=layers)
        assert_close(found[row, 1:-1], expected, atol=1e-12, rtol=1e-9)
        assert_close(found[row, [0, -1]], torch.zeros(2, dtype=torch.float64))


def test_tokens_behind_the_end_change_nothing_with_and_without_a_mask():
    tower, ids = tiny("hf_clip_text"), MODELS["hf_clip_text"].inputs()["input_ids"]
    longer = torch.cat([ids, torch.full((2, 3), 5)], dim=1)
    expected = vitrail.explain(tower, {"input_ids": ids}, "grad_eclip", 1).scores
    found = vitrail.explain(tower, {"input_ids": longer}, "grad_eclip", 1).scores
    assert_close(found, torch.cat([expected, torch.zeros(2, 3, dtype=torch.float64)], dim=1))


def test_hand_written_attention_gives_the_same_as_fused():
    fused = vitrail.explain(tiny(CLIP), IMAGES, "grad_eclip", 1, layers=2).scores
    written = vitrail.explain(tiny("hf_clip_eager"), IMAGES, "grad_eclip", 1, layers=2).scores
    assert_close(written, fused, atol=1e-6, rtol=1e-5)  # this one's softmax is in float32


def test_the_same_map_in_every_head_is_one_head_of_full_width():
    one = layer()
    width = H * one.query.shape[-1]
    whole = [x.transpose(1, 2).reshape(B, 1, T, width) for x in (one.query, one.key, one.value)]
    scores = one.query @ one.key.transpose(-1, -2) / one.query.shape[-1] ** 0.5
    found = grad_eclip.one_head(scores).softmax(dim=-1) @ one.value
    assert_close(found.transpose(1, 2).reshape(B, 1, T, width), sdpa(*whole))


def test_the_evidence_is_the_gradient_at_the_output_times_the_values():
    one = layer()
    expected = torch.einsum("bhd,bhkd->bk", one.output_grad[:, :, 0], one.value)
    assert_close(grad_eclip.evidence(one), expected)


def test_a_query_that_was_scaled_beforehand_is_scaled_back():
    one = layer()
    width = one.query.shape[-1]
    plain = replace(one, scale=1 / width**0.5)
    scaled = replace(one, query=one.query / width**0.5, scale=1.0)
    assert_close(grad_eclip.queries(plain), one.query)
    assert_close(grad_eclip.queries(scaled), one.query)


def test_the_similarity_runs_from_zero_to_one_over_the_patches_and_uses_the_projections_bias():
    one = layer(prefix=2)
    weight, bias = one.output_weight, torch.randn(7, dtype=torch.float64)
    found = grad_eclip.looseness(one, lambda x: linear(x, weight, bias))
    assert_close(found[:, :2], torch.zeros(B, 2, dtype=torch.float64))
    assert_close(found.amax(dim=1), torch.ones(B, dtype=torch.float64))
    assert_close(found[:, 2:].amin(dim=1), torch.zeros(B, dtype=torch.float64))
    assert not torch.allclose(found, grad_eclip.looseness(one, lambda x: linear(x, weight)))


def test_keys_that_are_all_alike_give_zeros_and_no_nan():
    one = layer()
    alike = replace(one, key=one.key[:, :, :1].expand_as(one.key))
    found = grad_eclip.looseness(alike, lambda x: x)
    assert_close(found, torch.zeros(B, T, dtype=torch.float64))


def test_a_text_is_a_class_and_a_difference_of_texts_one_of_cosines():
    clip = tiny(CLIP)
    one = vitrail.explain(clip, IMAGES, "grad_eclip", targets.logit(1), similarity=False).scores
    other = vitrail.explain(clip, IMAGES, "grad_eclip", targets.logit(2), similarity=False).scores
    both = vitrail.explain(clip, IMAGES, "grad_eclip", targets.difference(1, 2), similarity=False).scores
    assert bool(((one == 0) | (other == 0) | torch.isclose(both, (one - other).clamp(min=0))).all())


def test_the_scale_of_the_logits_does_not_matter():
    clip = copy.deepcopy(tiny(CLIP))
    expected = vitrail.explain(clip, IMAGES, "grad_eclip", 1).scores
    clip.logit_scale.data += 2
    assert_close(vitrail.explain(clip, IMAGES, "grad_eclip", 1).scores, expected)


def test_without_a_target_the_models_own_answer_is_explained():
    clip = tiny(CLIP)
    chosen = clip(**IMAGES).logits_per_image.argmax(dim=1).tolist()
    found = vitrail.explain(clip, IMAGES, "grad_eclip")
    assert list(found.target.first) == chosen


def test_a_classifier_is_refused_before_it_runs():
    for name in ("hf_vit", "hf_clip_classifier", "timm_vit"):
        model, runs = tiny(name), []
        handle = model.register_forward_hook(lambda *_, runs=runs: runs.append(1))
        with pytest.raises(MethodError, match="for a classifier use grad_eclip_heads"):
            vitrail.explain(model, MODELS[name].inputs(), "grad_eclip")
        handle.remove()
        assert runs == []


def test_blocks_the_model_does_not_have_are_refused():
    with pytest.raises(OptionError, match="the model has 3 blocks"):
        vitrail.explain(tiny(CLIP), IMAGES, "grad_eclip", layers=4)
    with pytest.raises(OptionError, match="layers=0, but it must be at least 1"):
        vitrail.explain(tiny(CLIP), IMAGES, "grad_eclip", layers=0)


def test_a_model_in_single_precision_gives_nearly_the_same():
    model = copy.deepcopy(tiny(CLIP)).float()
    single = vitrail.explain(model, IMAGES | {"pixel_values": IMAGES["pixel_values"].float()}, "grad_eclip", 1)
    assert single.scores.dtype == torch.float32
    expected = vitrail.explain(tiny(CLIP), IMAGES, "grad_eclip", 1).scores.float()
    assert_close(single.scores, expected, atol=1e-4, rtol=1e-3)


def test_the_model_answers_as_before_afterwards():
    clip = tiny(CLIP)
    before = clip(**IMAGES).logits_per_image
    vitrail.explain(clip, IMAGES, "grad_eclip", 1)
    assert torch.equal(clip(**IMAGES).logits_per_image, before)


def test_tokens_are_compared_as_far_as_they_are_real_and_the_readout_sees_them():
    readout = torch.zeros(B, T, dtype=torch.float64)
    readout[:, 2] = 1
    causal = layer(kind="text", causal=True, readout=readout)
    assert grad_eclip.seen(causal).tolist() == [[True, True, True, False, False]] * B
    valid = torch.tensor([[True] * 5, [True] * 4 + [False]])
    assert grad_eclip.seen(layer(kind="text", valid=valid)).tolist() == valid.tolist()
    assert grad_eclip.seen(layer(valid=valid, prefix=1))[1].tolist() == [False, True, True, True, False]
