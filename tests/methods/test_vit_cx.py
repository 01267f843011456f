from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from tiny_models import IMAGE, MODELS, WIDTH, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.errors import AnatomyError, MethodError, OptionError
from vitrail.methods import vit_cx
from vitrail.models.anatomy import known_anatomy

SIZE = (10, 21)  # no multiple of the 3 x 4 patches


def features(count=6):
    return torch.randn(count, 3, 4, dtype=torch.float64)


def large(maps, size=SIZE):
    return torch.stack([F.interpolate(m[None, None], size=size, mode="bilinear")[0, 0] for m in maps])


def spread(maps):
    return torch.stack([(m - m.min()) / (m.max() - m.min()) for m in maps])


@cache
def lively():
    """Weights so large that what is hidden changes the answer."""
    import transformers

    torch.manual_seed(3)
    config = transformers.ViTConfig(**WIDTH, **IMAGE, initializer_range=0.4)
    return transformers.ViTForImageClassification(config).double().eval()


def by_loops(model, images, row, target, *, noise, seed=0):
    """Section by section as the paper's code does it: every map drawn, every mask tried by itself."""
    size = tuple(images.shape[2:])
    kept = []
    handle = model.vit.layers[-1].layernorm_before.register_forward_hook(lambda m, a, out: kept.append(out))
    x = images[row : row + 1]
    with torch.no_grad():
        clean = model(x).logits.softmax(dim=1)[0, target]
    handle.remove()
    each = spread(large(kept[0][0, 1:].T.reshape(-1, size[0] // 8, size[1] // 8), size))
    flat = each.flatten(1)
    apart = torch.stack([1 - F.cosine_similarity(flat, one[None]) for one in flat])
    labels = vit_cx.clusters(apart, 0.1)
    masks = spread(torch.stack([each[labels == i].sum(dim=0) for i in range(int(labels.max()) + 1)]))
    dice = torch.Generator().manual_seed(seed)
    total = torch.zeros(size, dtype=torch.float64)
    for mask in masks:
        fill = noise * torch.randn(3, *size, generator=dice).double() * (1 - mask)
        with torch.no_grad():
            hidden, filled = (model(y).logits.softmax(dim=1)[0, target] for y in (x * mask + fill, x + fill))
        total += (hidden - filled + clean) * mask / masks.sum(dim=0) / len(masks)
    return total


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_map_is_the_mean_effect_of_the_masks_over_each_pixel(noise):
    model, inputs = lively(), MODELS["hf_vit"].inputs()["pixel_values"]
    found = vitrail.explain(model, inputs, "vit_cx", [3, 1], noise=noise)
    assert float(found.pixels.std()) > 1e-2 * float(found.pixels.abs().max())
    for row, target in enumerate([3, 1]):
        assert_close(found.pixels[row], by_loops(model, inputs, row, target, noise=noise))
    assert_close(found.scores[0, 0], found.pixels[0, :8, :8].sum())


def test_masks_span_zero_to_one_when_they_are_drawn():
    maps = features()
    assert_close(vit_cx.drawn(vit_cx.feature_masks(maps, SIZE), SIZE), spread(large(maps)))


def test_distances_are_those_of_the_drawn_masks():
    masks = vit_cx.feature_masks(features(), SIZE)
    flat = large(masks).flatten(1)
    expected = torch.stack([torch.stack([1 - a @ b / (a @ a * (b @ b)).sqrt() for a in flat]) for b in flat])
    assert_close(vit_cx.distances(masks, SIZE), expected)


def test_a_map_without_contrast_shows_nothing_and_stays_alone():
    maps = features(3)
    maps[1] = 4.0
    masks = vit_cx.feature_masks(maps, SIZE)
    assert_close(masks[1], torch.zeros(3, 4, dtype=torch.float64))
    assert_close(vit_cx.distances(masks, SIZE)[1], torch.ones(3, dtype=torch.float64))
    assert vit_cx.clusters(vit_cx.distances(masks, SIZE), 0.999).bincount().max() <= 2


def test_no_two_masks_of_a_group_are_further_apart_than_the_threshold():
    """A chain: each is near the next, but the ends are not near each other."""
    apart = torch.tensor([[0.0, 0.08, 0.15], [0.08, 0.0, 0.09], [0.15, 0.09, 0.0]])
    assert vit_cx.clusters(apart, 0.1).unique().tolist() == [0, 1]
    assert vit_cx.clusters(apart, 0.1)[0] == vit_cx.clusters(apart, 0.1)[1]
    assert vit_cx.clusters(apart, 0.2).unique().tolist() == [0]
    assert vit_cx.clusters(apart[:1, :1], 0.1).tolist() == [0]


def test_groups_are_those_of_scikit_learn():
    learn = pytest.importorskip("sklearn.cluster")
    apart = vit_cx.distances(vit_cx.feature_masks(features(40), SIZE), SIZE)
    theirs = learn.AgglomerativeClustering(
        n_clusters=None, distance_threshold=0.3, metric="precomputed", linkage="complete"
    ).fit_predict(apart.numpy())
    ours = vit_cx.clusters(apart, 0.3)
    assert 3 < len(ours.unique()) < 37
    assert torch.equal(ours[:, None] == ours, torch.from_numpy(theirs[:, None] == theirs))


def test_a_group_is_the_sum_of_its_masks_stretched():
    masks = vit_cx.feature_masks(features(), SIZE)
    labels = torch.tensor([1, 0, 1, 1, 2, 0])
    drawn = large(masks)
    expected = spread(torch.stack([drawn[labels == i].sum(dim=0) for i in range(3)]))
    assert_close(vit_cx.cluster_masks(masks, labels, SIZE), expected)


def test_disjoint_masks_each_give_their_pixels_their_share():
    masks = torch.zeros(2, 2, 3)
    masks[0, 0], masks[1, 1, :2] = 1, 0.5
    masks[1, 1, 2] = 1e-8  # what rounding leaves of zero
    found = vit_cx.saliency(torch.tensor([0.6, 0.2]), masks)
    assert_close(found, torch.tensor([[0.3, 0.3, 0.3], [0.1, 0.1, 0.0]]))


def test_an_effect_is_what_masking_loses_to_the_noise_alone():
    masked, filled = torch.tensor([0.5, 0.1]), torch.tensor([0.7, 0.8])
    assert_close(vit_cx.effects(masked, filled, torch.tensor(0.9)), torch.tensor([0.7, 0.2]))


def test_batches_do_not_change_the_noise_and_the_seed_does():
    model, inputs = lively(), MODELS["hf_vit"].inputs()
    first, *others = (
        vitrail.explain(model, inputs, "vit_cx", 1, noise=0.5, batch=batch, seed=seed).pixels
        for batch, seed in [(50, 0), (5, 0), (50, 1)]
    )
    assert_close(others[0], first)
    assert float((others[1] - first).abs().max()) > 1e-3 * float(first.abs().max())


def test_a_single_precision_model_gets_the_same_noise():
    model, inputs = deepcopy(lively()).float(), MODELS["hf_vit"].inputs(dtype=torch.float32)
    single = vitrail.explain(model, inputs, "vit_cx", 1, noise=0.5)
    double = vitrail.explain(model.double(), {"pixel_values": inputs["pixel_values"].double()}, "vit_cx", 1, noise=0.5)
    assert single.pixels.dtype == torch.float32
    assert_close(single.pixels.double(), double.pixels, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("noise", "passes"), [(0.0, 1), (0.1, 2)])
def test_without_noise_every_mask_is_tried_once(noise, passes):
    model, inputs, seen = tiny("hf_vit"), MODELS["hf_vit"].inputs(batch=1), []
    handle = model.register_forward_pre_hook(lambda m, a, k: seen.append(len(k["pixel_values"])), with_kwargs=True)
    vitrail.explain(model, inputs, "gae")  # the first call measures the model's structure
    seen.clear()
    vitrail.explain(model, inputs, "vit_cx", threshold=0.0, noise=noise, batch=10)
    handle.remove()
    # Two passes tell whether the model repeats itself, two copies whether samples are kept apart; then 24 channels.
    assert seen == [1, 1, 1, 2, *[10] * passes, *[10] * passes, *[4] * passes]


def test_what_runs_again_and_fails_leaves_the_model_as_it_was():
    model, inputs, calls = tiny("hf_vit"), MODELS["hf_vit"].inputs(), []

    def fail(module, args, kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the third pass")

    handle = model.register_forward_pre_hook(fail, with_kwargs=True)
    with pytest.raises(RuntimeError, match="the third pass"):
        vitrail.explain(model, inputs, "vit_cx")
    handle.remove()
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_a_model_without_a_norm_in_front_of_its_attention_is_refused_before_it_runs():
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    bare = replace(known_anatomy(model), attention_norm=None)
    handle = model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(AnatomyError, match=r"last block's first norm.*attention_norm="):
        vitrail.explain(model, inputs, "vit_cx", anatomy=bare)
    handle.remove()


def test_texts_are_refused():
    with pytest.raises(MethodError, match="vit_cx explains image"):
        vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), "vit_cx")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"batch": 0}, "batch=0"), ({"noise": -0.1}, "noise=-0.1"), ({"threshold": -1.0}, "threshold=-1.0")],
)
def test_options_that_mean_nothing_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        vitrail.explain(nn.Identity(), torch.randn(1, 3, 8, 8), "vit_cx", **options)
