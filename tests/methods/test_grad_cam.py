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


def all_positive(**options):
    """A layer whose gradients are all positive, so that the clamp empties nothing and the minimum counts."""
    one = layer(**options)
    return replace(one, value=one.value.abs(), output_grad=one.output_grad.abs())


def test_the_class_token_does_not_set_the_scale_of_an_image():
    one = all_positive()
    query = one.query.clone()
    query[:, :, 0] = -3 * one.key[:, :, 0]  # the class token hardly attends to itself
    one = replace(one, query=query)
    weights = one.probs_grad[:, :, 0, 1:].mean(dim=2)
    cam = (weights[:, :, None] * one.probs[:, :, 0]).mean(dim=1)
    assert bool((cam[:, 0] < cam[:, 1:].amin(dim=1)).all())
    assert_close(run(grad_cam.build(), [one]).scores[:, 1:], torch.stack([minmax(row) for row in cam[:, 1:]]))


def test_padding_does_not_set_the_scale_of_a_text():
    valid = torch.ones(B, T, dtype=torch.bool)
    valid[:, 3:] = False
    one = all_positive(kind="text", valid=valid)
    real = slice(0, 3)
    weights = one.probs_grad[:, :, real, real].mean(dim=(2, 3))
    cam = (weights[:, :, None, None] * one.probs[:, :, real, real]).mean(dim=1)
    assert bool((cam > 0).all())
    assert_close(run(grad_cam.build(), [one]).scores[:, real], torch.stack([minmax(m)[0] for m in cam]))
