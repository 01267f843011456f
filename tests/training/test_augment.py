import torch
from torch.testing import assert_close

from training.augment import jitter_colours, mix, random_crop


def test_a_plain_picture_stays_plain_in_every_crop():
    assert_close(random_crop(torch.full((6, 3, 20, 24), 0.3), smallest=0.1), torch.full((6, 3, 20, 24), 0.3))


def test_about_half_of_the_crops_are_mirrored():
    ramp = torch.linspace(0, 1, 32).expand(400, 3, 32, 32)
    views = random_crop(ramp, smallest=0.9)
    mirrored = (views[:, 0, 0, 0] > views[:, 0, 0, -1]).float().mean()
    assert 0.4 < mirrored < 0.6


def test_a_crop_keeps_at_least_the_smallest_share():
    ramp = torch.linspace(0, 1, 64).expand(300, 3, 64, 64)
    views = random_crop(ramp, smallest=0.5)
    span = (views[:, 0, 0, 0] - views[:, 0, 0, -1]).abs()
    # Half of the area at an aspect ratio of 3/4 is a width of 0.61; the two half pixels at the edges are not seen.
    assert span.min() > 0.58


def test_labels_are_mixed_in_the_proportion_of_the_pixels():
    black_and_white = torch.stack([torch.ones(3, 32, 32), torch.zeros(3, 32, 32)]).repeat(20, 1, 1, 1)
    labels = torch.eye(2).repeat(20, 1)
    mixed, wanted = mix(black_and_white, labels, share=1.0)
    assert_close(mixed.mean(dim=(1, 2, 3)), wanted[:, 0])
    assert_close(wanted.sum(dim=1), torch.ones(40))
    assert ((wanted > 0.05) & (wanted < 0.95)).any()


def test_nothing_is_mixed_where_the_share_is_zero():
    images, labels = torch.rand(5, 3, 8, 9), torch.rand(5, 4)
    assert_close(mix(images, labels, share=0.0), (images, labels))


def test_no_jitter_changes_only_what_is_made_grey():
    images = torch.rand(200, 3, 6, 7)
    changed = (jitter_colours(images, strength=0.0) - images).abs().amax(dim=(1, 2, 3)) > 1e-6
    assert 0 < changed.float().mean() < 0.15
