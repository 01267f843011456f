import numpy as np
import pytest
from numpy.testing import assert_allclose

from vitrail.errors import InputError, OptionError
from vitrail.evaluate import metrics


def test_the_highest_point_hits_or_misses():
    maps = np.zeros((2, 4, 5))
    maps[0, 1, 2], maps[1, 3, 4] = 1, 1
    masks = np.zeros((2, 4, 5), dtype=int)
    masks[:, 1, 2] = 1
    assert metrics.pointing_game(maps, masks).tolist() == [1, 0]
    assert metrics.pointing_game(maps, masks, margin=2).tolist() == [1, 1]


def test_a_constant_map_points_as_well_as_chance_and_ignored_pixels_are_never_pointed_at():
    masks = np.array([[[1, 0, 0, -1]]])
    assert_allclose(metrics.pointing_game(np.ones((1, 1, 4)), masks), [1 / 3])
    assert metrics.pointing_game(np.array([[[2.0, 1.0, 0.0, 9.0]]]), masks).tolist() == [1]


def test_planted_beats_random_beats_reverse(rng):
    masks = np.zeros((40, 8, 8), dtype=int)
    masks[:, 2:6, 3:7] = 1
    orders = [masks + rng.random(masks.shape), rng.random(masks.shape), -masks + rng.random(masks.shape)]
    right, random, reverse = (metrics.pointing_game(maps, masks).mean() for maps in orders)
    assert right == 1 > random > 0 == reverse


def test_energy_is_the_share_of_the_positive_part_inside():
    maps = np.array([[[1.0, 2.0, -5.0], [3.0, 0.0, 4.0]]])
    assert_allclose(metrics.box_energy(maps, [[0, 0, 2, 1]], (2, 3)), [0.3])
    assert_allclose(metrics.box_energy(maps, [[[0, 0, 2, 1], [1, 0, 2, 1], [2, 1, 3, 2]]], (2, 3)), [0.7])
    assert metrics.box_energy(-np.ones((1, 2, 3)), [[0, 0, 2, 1]], (2, 3)).tolist() == [0]


def test_box_iou_takes_the_largest_region_and_the_box_that_fits_best():
    maps = np.zeros((1, 6, 8))
    maps[0, 1:4, 2:6] = 1  # the region: 4 wide, 3 high
    maps[0, 5, 7] = 1  # a speck
    assert metrics.box_iou(maps, [[2, 1, 6, 4]], (6, 8)).tolist() == [1]
    assert_allclose(metrics.box_iou(maps, [[[7, 5, 8, 6], [2, 1, 8, 4]]], (6, 8)), [12 / 18])
    assert metrics.box_iou(0 * maps, [[2, 1, 6, 4]], (6, 8)).tolist() == [0]


def test_half_of_the_range_is_another_threshold_than_the_mean():
    maps = np.array([[[0.0, 0.0, 0.0, 0.4, 1.0]]])
    assert metrics.box_iou(maps, [[4, 0, 5, 1]], (1, 5), threshold="half").tolist() == [1]
    assert metrics.box_iou(maps, [[4, 0, 5, 1]], (1, 5)).tolist() == [0.5]
    with pytest.raises(OptionError, match=r"no threshold 'halve'.* Did you mean half"):
        metrics.box_iou(maps, [[4, 0, 5, 1]], (1, 5), threshold="halve")


@pytest.mark.parametrize(
    ("boxes", "help"),
    [
        ([[0, 0, 9, 2]], r"\[\[0.0, 0.0, 9.0, 2.0\]\] is empty or leaves the picture of 6 x 8"),
        ([[3, 3, 3, 4]], "is empty or leaves"),
        ([[0, 0, 2]], r"example 0 has shape \[1, 3\]"),
        ([[0, 0, 2, 2]] * 2, r"lists of boxes must be the same, but they are \[1\] and \[2\]"),
    ],
)
def test_boxes_that_are_none_are_refused(boxes, help):
    with pytest.raises(InputError, match=help):
        metrics.box_energy(np.ones((1, 3, 4)), boxes, (6, 8))
    with pytest.raises(InputError, match=help):
        metrics.box_iou(np.ones((1, 3, 4)), boxes, (6, 8))


def test_a_negative_margin_is_refused():
    with pytest.raises(InputError, match="at least 0 and at most 10000, not -1"):
        metrics.pointing_game(np.ones((1, 2, 2)), np.ones((1, 2, 2)), margin=-1)
