from dataclasses import replace

import torch
from layers import B, T, layer, run
from torch.testing import assert_close

from vitrail.methods import grad_cam


def minmax(x):
    return (x - x.amin()) / (x.amax() - x.amin()) if x.amax() > x.amin() else 0 * x


def test_images_weigh_heads_by_the_readouts_mean_gradient_over_patches():
    one = layer()
    weights = one.probs_grad[:, :, 0, 1:].mean(dim=2)
    cam = (weights[:, :, None] * one.probs[:, :, 0]).mean(dim=1).clamp(min=0)[:, 1:]
    expected = torch.stack([minmax(row) for row in cam])
    assert_close(run(grad_cam.build(), [one]).scores[:, 1:], expected)


def test_text_weighs_heads_by_the_whole_map_and_scales_by_the_whole_map():
    one = layer(kind="text")
    weights = one.probs_grad.mean(dim=(2, 3))
    cam = (weights[:, :, None, None] * one.probs).mean(dim=1).clamp(min=0)
    expected = torch.stack([minmax(matrix)[0] for matrix in cam])
    assert_close(run(grad_cam.build(), [one]).scores, expected)


def test_a_map_that_the_clamp_empties_is_zero_and_not_nan():
    one = layer()
    one = replace(one, value=one.value.abs(), output_grad=-one.output_grad.abs())
    assert_close(run(grad_cam.build(), [one]).scores, torch.zeros(B, T, dtype=torch.float64))
