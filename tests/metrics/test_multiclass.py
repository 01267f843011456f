import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import jaccard_score

from vitrail.errors import InputError
from vitrail.evaluate import metrics


def scene():
    mask = np.zeros((6, 10), dtype=int)
    mask[1:3, 1:5], mask[3:6, 5:9], mask[0, :] = 7, 15, 255
    return mask, np.stack([mask == 7, mask == 15]).astype(float)


def test_a_perfect_pair_of_maps_is_perfect():
    mask, maps = scene()
    found = metrics.voc([maps], [[7, 15]], [mask])
    assert found.pixel_accuracy == found.mean_iou == 1
    assert np.flatnonzero(~np.isnan(found.iou)).tolist() == [0, 7, 15]
    assert found.iou.shape == (21,)
    assert found.threshold == 0  # a map that is 0 does not lie above it


def test_planted_beats_random_beats_reverse(rng):
    mask, maps = scene()
    right, random, reverse = (
        metrics.voc([m], [[7, 15]], [mask])
        for m in (maps + 0.3 * rng.random(maps.shape), rng.random(maps.shape), -maps)
    )
    assert right.mean_iou > random.mean_iou > reverse.mean_iou
    assert right.pixel_accuracy > reverse.pixel_accuracy


def test_scikit_learn_gives_the_same_confusion_at_the_best_threshold(rng):
    mask, maps = scene()
    maps = maps + 0.9 * rng.random(maps.shape)
    found = metrics.voc([maps], [[7, 15]], [mask])
    low, high = maps.min(axis=(1, 2), keepdims=True), maps.max(axis=(1, 2), keepdims=True)
    scaled = (maps - low) / (high - low)
    predicted = np.where(scaled.max(axis=0) > found.threshold, np.array([7, 15])[scaled.argmax(axis=0)], 0)
    real = mask != 255
    by_class = jaccard_score(mask[real], predicted[real], average=None, labels=[0, 7, 15])
    assert_allclose(found.iou[[0, 7, 15]], by_class)
    assert_allclose(found.mean_iou, by_class.mean())
    assert_allclose(found.pixel_accuracy, (mask == predicted)[real].mean())


def test_counts_of_examples_add_up_to_the_whole(rng):
    mask, _ = scene()
    maps = [rng.random((2, 3, 5)), rng.random((1, 6, 10))]
    names = [[7, 15], [7]]
    whole = metrics.voc(maps, names, [mask, mask])
    parts = metrics.aggregate_voc(
        iter([metrics.voc_counts(m, n, mask).tolist() for m, n in zip(maps, names, strict=True)])
    )
    assert (whole.mean_iou, whole.pixel_accuracy, whole.threshold) == (
        parts.mean_iou,
        parts.pixel_accuracy,
        parts.threshold,
    )


@pytest.mark.parametrize(
    ("classes", "mask", "help"),
    [
        ([7], None, r"numbers of classes and of maps of an example .* \[1\] and \[2\]"),
        ([0, 7], None, r"from 1 to 20, not \[0, 7\]"),
        ([7, 7], None, r"different numbers from 1 to 20, not \[7, 7\]"),
        ([7, 15], np.full((6, 10), 33), "it also holds 33"),
        ([7, 15], np.full((6, 10), 255), "every pixel of the mask is ignored"),
    ],
)
def test_classes_that_do_not_fit_are_refused(classes, mask, help):
    scene_mask, maps = scene()
    with pytest.raises(InputError, match=help):
        metrics.voc_counts(maps, classes, scene_mask if mask is None else mask)


def test_nothing_cannot_be_aggregated():
    with pytest.raises(InputError, match="no examples"):
        metrics.aggregate_voc([])
