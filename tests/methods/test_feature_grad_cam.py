from dataclasses import replace

import torch
from layers import B, M, T, layer, random, run, stack
from plain_vit import plain_vit
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.methods import grad_cam


def with_gradient(**options):
    one = layer(**options)
    return replace(one, stream=replace(one.stream, attention_normed_grad=random(B, T, M)))


def by_loops(features, gradient, tokens):
    """Channel weights are means over these tokens; a token's score is the clamped sum of weighted channels."""
    scores = torch.zeros(B, T, dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            for d in range(M):
                weight = sum(gradient[b, other, d] for other in tokens) / len(tokens)
                scores[b, t] += weight * features[b, t, d]
    return scores.clamp(min=0)


def test_channels_are_weighted_by_their_mean_gradient_over_patches():
    one = with_gradient()
    expected = by_loops(one.stream.attention_normed, one.stream.attention_normed_grad, range(1, T))
    assert expected.amax() > 0
    assert_close(run(grad_cam.build_features(), [one]).scores, expected)


def test_without_a_norm_before_attention_the_features_are_what_enters_the_block():
    one = with_gradient()
    one = replace(one, stream=replace(one.stream, attention_normed=None, attention_normed_grad=None))
    expected = by_loops(one.stream.entering, one.stream.entering_grad, range(1, T))
    assert_close(run(grad_cam.build_features(), [one]).scores, expected)


def test_padding_takes_no_part_in_the_mean():
    valid = torch.ones(B, T, dtype=torch.bool)
    valid[:, 3:] = False
    one = with_gradient(valid=valid, kind="text")
    expected = by_loops(one.stream.attention_normed, one.stream.attention_normed_grad, [1, 2])
    assert_close(run(grad_cam.build_features(), [one]).scores, expected)


def test_only_the_last_block_is_read():
    layers = [*stack(depth=3)[:2], with_gradient(index=2, depth=3)]
    changed = [replace(one, stream=replace(one.stream, attention_normed=None)) for one in layers[:2]]
    method = grad_cam.build_features()
    assert_close(run(method, [*changed, layers[2]]).scores, run(method, layers).scores)


def test_one_channel_solved_by_hand():
    """Gradients 2 and 4 over the patches have the mean 3: features 1, -1 and 2 score 3, 0 and 6."""
    gradient = torch.tensor([[[9.0], [2.0], [4.0]]])
    weights = grad_cam.channel_weights(gradient, torch.tensor([[False, True, True]]))
    assert_close(weights, torch.tensor([[3.0]]))
    features = torch.tensor([[[1.0], [-1.0], [2.0]]])
    assert_close(grad_cam.weigh_channels(features, weights), torch.tensor([[3.0, 0.0, 6.0]]))


def plain(model, norm, images, target):
    """The map from one hook on a norm."""
    seen = []
    handle = norm.register_forward_hook(lambda module, args, out: seen.append(out))
    logits = model(images)
    handle.remove()
    (gradient,) = torch.autograd.grad(logits[:, target].sum(), seen)
    return seen[0].detach(), gradient


def test_a_model_gives_what_a_hook_on_its_last_norm_gives():
    model, images = plain_vit()
    features, gradient = plain(model, model.blocks[-1].norm1, images, 3)
    expected = torch.einsum("btd,bd->bt", features, gradient[:, 1:].mean(dim=1)).clamp(min=0)[:, 1:]
    assert_close(vitrail.explain(model, images, "feature_grad_cam", 3).scores, expected)


def test_behind_a_pooling_query_it_is_still_the_last_blocks_norm():
    model, images = tiny("timm_siglip"), MODELS["timm_siglip"].inputs()
    features, gradient = plain(model, model.blocks[-1].norm1, images, 1)
    expected = torch.einsum("btd,bd->bt", features, gradient.mean(dim=1)).clamp(min=0)
    assert_close(vitrail.explain(model, images, "feature_grad_cam", 1).scores, expected)
