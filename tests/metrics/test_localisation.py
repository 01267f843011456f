import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.metrics import average_precision_score, f1_score, jaccard_score

from vitrail.errors import InputError
from vitrail.evaluate import metrics
from vitrail.evaluate.metrics.arrays import average_precision, min_max, resize
from vitrail.evaluate.metrics.localisation import THRESHOLDS


def planted(rng, examples=5, size=(24, 18)):
    masks = np.zeros((examples, *size), dtype=int)
    for mask in masks:
        top, left = rng.integers(0, 12), rng.integers(0, 9)
        mask[top : top + 9, left : left + 7] = 1
    return masks


@pytest.mark.parametrize(("case", "masks"), [("plain", "masks"), ("ignore", "masks_with_ignore")])
def test_the_golden_numbers(given, expected, case, masks):
    found = metrics.segmentation(given["seg/maps_14x14"], given[f"seg/{masks}"])
    names = {"pixel_accuracy": "pixel_accuracy", "iou": "iou", "mean_iou": "mIoU", "mean_ap": "mAP"}
    for ours, golden in names.items():
        assert_allclose(getattr(found, ours), expected[f"seg/{case}/{golden}"], rtol=1e-9)


@pytest.mark.parametrize(("case", "masks"), [("plain", "masks"), ("ignore", "masks_with_ignore")])
def test_the_golden_numbers_image_by_image(given, expected, case, masks):
    for index, golden in enumerate(expected[f"seg/{case}/per_image_pixacc_miou_ap_threshold"]):
        found = metrics.segmentation(given["seg/maps_14x14"][[index]], given[f"seg/{masks}"][[index]])
        assert_allclose([found.pixel_accuracy, found.mean_iou, found.mean_ap], golden[:3], rtol=1e-9)


def test_the_golden_threshold_is_the_mean_of_the_scaled_map(given, expected):
    scaled = min_max(resize(torch.from_numpy(given["seg/maps_14x14"]), (224, 224)))
    assert_allclose(scaled.mean(dim=(1, 2)), expected["seg/plain/per_image_pixacc_miou_ap_threshold"][:, 3], rtol=1e-9)


def test_f1_is_of_whole_images_and_by_rows_only_under_its_own_name(given, expected):
    maps, masks = given["seg/maps_14x14"], given["seg/masks"]
    assert_allclose(metrics.segmentation(maps, masks).mean_f1, expected["seg/plain/mF1_whole_image"], rtol=1e-9)
    assert_allclose(metrics.row_f1(maps, masks).mean(), expected["seg/plain/mF1_as_called_per_image_row"], rtol=1e-9)


def test_a_map_solved_by_hand():
    """Mean 0.4: three pixels above it, two of them on the object of three."""
    maps, masks = [[[0.0, 0.1, 0.9], [1.0, 0.0, 0.4 + 0.0001]]], [[[0, 0, 1], [1, 1, 0]]]
    found = metrics.segmentation(np.array(maps), np.array(masks))
    assert_allclose(found.pixel_accuracy, 4 / 6)
    assert_allclose(found.iou, [2 / 4, 2 / 4])
    assert_allclose(found.mean_f1, 2 * 2 / (3 + 3))
    assert found.threshold is None


def test_scikit_learn_gives_the_same_at_every_threshold(rng):
    maps, masks = rng.random((3, 24, 18)), planted(rng, 3)
    counts = metrics.segmentation_counts(maps, masks)
    scaled = min_max(torch.from_numpy(maps)).numpy()
    for place, threshold in enumerate(THRESHOLDS, start=1):
        hits, alarms, misses, rejections = counts.confusion[:, place].sum(axis=0)
        predicted = (scaled > threshold).ravel()
        found = [rejections / (rejections + alarms + misses), hits / (hits + alarms + misses)]
        assert_allclose(found, jaccard_score(masks.ravel(), predicted, average=None, labels=[0, 1]))
    at_mean = scaled > scaled.mean(axis=(1, 2), keepdims=True)
    f1 = np.mean([f1_score(mask.ravel(), one.ravel()) for mask, one in zip(masks, at_mean, strict=True)])
    assert_allclose(metrics.segmentation(maps, masks).mean_f1, f1)


def test_average_precision_is_scikit_learns_also_with_ties_and_ignored_entries(rng):
    scores, positive = rng.integers(0, 7, (4, 50)).astype(float), rng.random((4, 50)) < 0.3
    counted = rng.random((4, 50)) < 0.8
    found = average_precision(*map(torch.from_numpy, (scores, positive, counted)))
    rows = zip(scores, positive, counted, strict=True)
    assert_allclose(found, [average_precision_score(p[c], s[c]) for s, p, c in rows])


def test_the_best_threshold_is_the_one_of_the_highest_mean_iou(rng):
    masks = planted(rng)
    maps = masks * 0.5 + rng.random(masks.shape) * 0.6
    counts = metrics.segmentation_counts(maps, masks)
    best = metrics.segmentation(maps, masks, threshold="best")
    means = []
    for place in range(1, 11):
        hits, alarms, misses, rejections = counts.confusion[:, place].sum(axis=0)
        means.append((hits / (hits + alarms + misses) + rejections / (rejections + alarms + misses)) / 2)
    assert_allclose(best.mean_iou, max(means))
    assert best.threshold == THRESHOLDS[int(np.argmax(means))]
    assert best.mean_ap == metrics.segmentation(maps, masks).mean_ap


@pytest.mark.parametrize("threshold", ["mean", "best"])
def test_the_planted_answer_beats_random_and_random_beats_the_reverse(rng, threshold):
    masks = planted(rng)
    noise = 0.01 * rng.random(masks.shape)
    order = [masks + 0.0, rng.random(masks.shape), noise - masks]
    right, random, reverse = (metrics.segmentation(maps, masks, threshold=threshold) for maps in order)
    for name in ("pixel_accuracy", "mean_iou", "mean_ap", "mean_f1"):
        assert getattr(right, name) == 1
        assert getattr(right, name) > getattr(random, name)
    assert random.mean_ap > reverse.mean_ap
    assert random.mean_iou > reverse.mean_iou


@pytest.mark.parametrize("threshold", ["mean", "best"])
def test_examples_in_batches_through_json_give_the_same_as_all_at_once(given, threshold):
    maps, masks = given["seg/maps_14x14"], given["seg/masks_with_ignore"]
    rows = [row for i in range(4) for row in metrics.segmentation_counts(maps[[i]], masks[[i]]).rows()]
    stored = json.loads(json.dumps(rows))
    stream = (metrics.SegmentationCounts.from_rows([row]) for row in stored)
    again, whole = (
        metrics.aggregate_segmentation(stream, threshold=threshold),
        metrics.segmentation(maps, masks, threshold=threshold),
    )
    assert again.threshold == whole.threshold
    for name in ("pixel_accuracy", "mean_iou", "mean_ap", "mean_f1", "iou"):
        assert_allclose(getattr(again, name), getattr(whole, name), rtol=1e-14)


def test_an_example_taken_twice_counts_twice(given):
    counts = metrics.segmentation_counts(given["seg/maps_14x14"], given["seg/masks"])
    twice = metrics.aggregate_segmentation(counts.take([0, 0, 1]))
    listed = metrics.aggregate_segmentation([counts.take([0]), counts.take([0, 1])])
    assert (twice.mean_iou, twice.mean_f1, twice.mean_ap) == (listed.mean_iou, listed.mean_f1, listed.mean_ap)


def test_arrays_and_tensors_give_the_same(given):
    maps, masks = given["seg/maps_14x14"], given["seg/masks"]
    tensors = metrics.segmentation(torch.from_numpy(maps), torch.from_numpy(masks))
    assert tensors.mean_ap == metrics.segmentation(maps, masks).mean_ap


def test_scaling_a_map_changes_nothing_and_a_constant_map_is_all_background(rng):
    masks = planted(rng, 2)
    maps = rng.random(masks.shape)
    assert_allclose(metrics.segmentation(8 * maps - 4, masks).mean_iou, metrics.segmentation(maps, masks).mean_iou)
    flat = metrics.segmentation(np.full(masks.shape, 0.3), masks)
    assert flat.mean_f1 == 0
    assert_allclose(flat.pixel_accuracy, (masks == 0).mean())


@pytest.mark.parametrize(
    ("maps", "masks", "help"),
    [
        (np.ones((2, 3, 3)), np.zeros((2, 6, 6)), "masks of example 0, 1 have no foreground"),
        (np.full((2, 3, 3), np.nan), np.ones((2, 6, 6)), "18 of 18 values are NaN, in example 0, 1"),
        (np.full((1, 3, 3), np.inf), np.ones((1, 6, 6)), "9 of 9 values are infinite"),
        (np.ones((2, 3, 3)), np.ones((3, 6, 6)), r"numbers of maps and of masks .* \[2\] and \[3\]"),
        (np.ones((3, 3)), np.ones((3, 6, 6)), r"maps must have the axes \[b, y, x\].* \[3, 3\]"),
        (np.ones((1, 3, 3)), np.full((1, 6, 6), 255), "-1 .ignored., but these run from 255 to 255"),
    ],
)
def test_what_cannot_be_measured_is_refused(maps, masks, help):
    with pytest.raises(InputError, match=help):
        metrics.segmentation(maps, masks)


def test_rows_with_ignored_pixels_have_no_f1(given):
    with pytest.raises(InputError, match="not defined with ignored pixels"):
        metrics.row_f1(given["seg/maps_14x14"], given["seg/masks_with_ignore"])


def test_nothing_cannot_be_aggregated():
    with pytest.raises(InputError, match="no examples"):
        metrics.aggregate_segmentation([])
