import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from vitrail.errors import InputError
from vitrail.evaluate.data import resize_mask
from vitrail.evaluate.data.pictures import translate


@pytest.mark.parametrize("size", [(224, 224), (5, 7), (3, 2), (13, 11)])
def test_resizing_a_mask_is_what_pillow_calls_nearest(size):
    values = np.random.default_rng(0).integers(3, size=(5, 7), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(values).resize(size[::-1], Image.Resampling.NEAREST))
    found = resize_mask(torch.from_numpy(values).long() - 1, size)
    assert_close(found, torch.from_numpy(expected.astype(np.int64)) - 1)


def test_a_number_without_a_meaning_is_an_error():
    values = np.array([[1, 2], [3, 1]])
    assert translate("k", values, {1: 0, 2: 5, 3: -1}).tolist() == [[0, 5], [-1, 0]]
    with pytest.raises(InputError, match=r"k: the mask holds \[3\]"):
        translate("k", values, {1: 0, 2: 1})
