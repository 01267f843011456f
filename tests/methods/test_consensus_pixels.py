import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.methods.options import to_unit
from vitrail.methods.pixel_maps import (
    Finish,
    at_pixels,
    box_mean,
    calibrate,
    grey,
    guided_filter,
    moved,
    otsu,
)
from vitrail.models.inputs import read_inputs

PARTS = {"parts": "lengths+0.5*attn_lrp+le_grad+0.5*att_grads", "smooth": 0.0}
SIZES = {"hf_vit": (32, 32), "timm_vit_avg": (48, 80)}


def window_means(x, radius):
    height, width = x.shape
    return np.array(
        [
            [x[max(i - radius, 0) : i + radius + 1, max(j - radius, 0) : j + radius + 1].mean() for j in range(width)]
            for i in range(height)
        ]
    )


def test_the_guided_filter_is_its_paper_in_plain_loops():
    rng = np.random.default_rng(0)
    guide, map_, radius, eps = rng.random((7, 9)), rng.random((7, 9)), 2, 0.01
    slope, level = np.zeros((7, 9)), np.zeros((7, 9))
    for i in range(7):
        for j in range(9):
            at = (slice(max(i - radius, 0), i + radius + 1), slice(max(j - radius, 0), j + radius + 1))
            seen, mean = map_[at].mean(), guide[at].mean()
            slope[i, j] = ((guide[at] * map_[at]).mean() - mean * seen) / (guide[at].var() + eps)
            level[i, j] = seen - slope[i, j] * mean
    expected = window_means(slope, radius) * guide + window_means(level, radius)
    tensors = torch.tensor(np.stack([map_, guide]))
    found = guided_filter(tensors[:1], tensors[1:], radius=radius, eps=eps)
    assert_close(found[0], torch.tensor(expected))
    assert_close(box_mean(tensors[:1], 3)[0], torch.tensor(window_means(map_, 3)))


def test_a_map_that_is_a_line_of_the_guide_passes_unchanged_and_a_flat_guide_only_smooths():
    guide = torch.rand(2, 12, 10, dtype=torch.float64)
    assert_close(guided_filter(3 * guide - 1, guide, radius=3, eps=1e-12), 3 * guide - 1)
    flat = torch.zeros_like(guide)
    assert_close(guided_filter(guide, flat, radius=3, eps=1e-3), box_mean(box_mean(guide, 3), 3))


def test_the_guide_is_grey_from_zero_to_one():
    images = 5 * torch.randn(2, 3, 6, 4, dtype=torch.float64)
    found = grey(images)
    assert_close(found.amin(dim=(1, 2)), torch.zeros(2, dtype=torch.float64))
    assert_close(found.amax(dim=(1, 2)), torch.ones(2, dtype=torch.float64))
    assert_close(grey(4 * images + 1), found)
    assert bool(torch.isfinite(grey(torch.ones(1, 3, 4, 4))).all())


def blobs(count=3):
    """Maps with one bright region of different size and softness, as explanations are."""
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, 64, dtype=torch.float64)] * 2, indexing="ij")
    soft = [torch.exp(-((x - 0.2) ** 2 + y**2) / width) for width in torch.linspace(0.05, 0.6, count).tolist()]
    noise = torch.rand(count, 64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.stack(soft) + 0.1 * noise


def test_otsu_parts_the_histogram_where_the_classes_are_furthest_apart():
    maps = to_unit(blobs())
    for one, found in zip(maps, otsu(maps), strict=True):
        spreads = []
        for edge in range(1, 256):
            low, high = one[one < edge / 256], one[one >= edge / 256]
            spreads.append(len(low) * len(high) * float(low.mean() - high.mean()) ** 2)
        # Values stand for their bin's middle, so the best edge may lie a bin away.
        assert abs(float(found) * 256 - (1 + int(np.argmax(spreads)))) <= 2


def test_calibration_keeps_the_order_and_brings_the_share_above_the_mean_to_otsus():
    maps = blobs()
    found, unit = calibrate(maps), to_unit(maps)
    for before, after, threshold in zip(unit, found, otsu(unit), strict=True):
        order = before.flatten().argsort()
        assert bool((after.flatten()[order].diff() >= 0).all())
        wanted = (before >= threshold).double().mean()
        assert float((after > after.mean()).double().mean()) == pytest.approx(float(wanted), abs=1e-3)
        assert (float(after.min()), float(after.max())) == (0.0, 1.0)


def test_a_constant_map_stays_finite():
    assert_close(calibrate(torch.full((2, 8, 8), 3.0)), torch.zeros(2, 8, 8))


@pytest.mark.parametrize(("down", "right"), [(4, -4), (-3, 2), (0, 0)])
def test_moving_there_and_back_changes_nothing_but_the_border(down, right):
    x = torch.rand(2, 3, 20, 24, dtype=torch.float64)
    there = moved(x, down, right)
    assert_close(there[:, :, 5:-5, 5:-5], x[:, :, 5 - down : 15 - down, 5 - right : 19 - right])
    assert_close(moved(there, -down, -right)[:, :, 4:-4, 4:-4], x[:, :, 4:-4, 4:-4])


def brightness(picture):
    """An explanation that moves with the picture: patches of one pixel, as bright as it is."""
    return picture.mean(dim=1, keepdim=True), torch.zeros(len(picture), dtype=picture.dtype)


def test_shifts_are_taken_back_exactly_where_the_explanation_moves_with_the_picture():
    images = torch.rand(2, 3, 24, 20, dtype=torch.float64)
    finish = Finish.of(shift=3, radius=2, eps=1e-3, calibration="none")
    parts = torch.stack([brightness(moved(images, *move))[0] for move in finish.moves])
    found, _ = at_pixels(images, parts, finish)
    assert len(finish.moves) == 4
    assert_close(found[:, :, 4:20, 4:16], images.mean(dim=1, keepdim=True)[:, :, 4:20, 4:16])


@pytest.mark.parametrize("name", SIZES)
def test_the_fine_preset_is_the_mean_over_shifts_guided_and_calibrated(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    picture = read_inputs(inputs).shown
    found = vitrail.explain(model, inputs, "consensus", [1, 2], preset="fine", shift=2, radius=3)
    maps = 0
    for down, right in ((-2, -2), (-2, 2), (2, -2), (2, 2)):
        other = moved(picture, down, right)
        shown = other if MODELS[name].tensor else {"pixel_values": other}
        one = vitrail.explain(model, shown, "consensus", [1, 2], **PARTS)
        maps = maps + moved(one.heatmap()[:, None], -down, -right)[:, 0] / 4
    expected = calibrate(guided_filter(maps, grey(picture), radius=3, eps=0.001))
    assert found.pixels.shape == (2, *SIZES[name])
    assert_close(found.pixels, expected)
    assert found.layers.shape[:2] == (2, 4)
    assert len(found.provenance["disagreement"]) == 2


def test_without_shifts_the_parts_at_the_patches_are_those_of_the_plain_preset_smoothed():
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    plain = vitrail.explain(model, inputs, "consensus", 1, **PARTS)
    fine = vitrail.explain(model, inputs, "consensus", 1, preset="fine", shift=0, calibration="none", radius=2)
    smooth = F.interpolate(plain.layers.reshape(2, 4, 4, 4), (32, 32), mode="bilinear")
    assert_close(fine.layers.reshape(2, 4, 4, 4), F.avg_pool2d(smooth, 8))
    assert fine.provenance["disagreement"] == pytest.approx(plain.provenance["disagreement"])


def test_a_batch_gives_what_its_pictures_give_one_by_one():
    model, images = tiny("hf_vit"), MODELS["hf_vit"].inputs()["pixel_values"]
    together = vitrail.explain(model, images, "consensus", [0, 2], preset="fine", radius=3)
    for row, target in enumerate([0, 2]):
        alone = vitrail.explain(model, images[row : row + 1], "consensus", target, preset="fine", radius=3)
        assert_close(together.pixels[row], alone.pixels[0], atol=1e-9, rtol=1e-7)
