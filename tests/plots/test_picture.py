import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from vitrail.errors import InputError
from vitrail.plots.pictures import as_picture


def pixels():
    return np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def test_every_form_of_one_image_is_the_same_picture():
    array = pixels()
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    forms = [array, Image.fromarray(array), array / 255, tensor, tensor.double() / 255, tensor[None]]
    for form in forms:
        assert_close(as_picture(form), array / 255, atol=1e-12, rtol=0)


def test_a_normalised_tensor_is_stretched_to_the_whole_range():
    tensor = torch.randn(3, 5, 7, dtype=torch.float64)
    low, high = tensor.min(), tensor.max()
    assert_close(torch.from_numpy(as_picture(tensor)), ((tensor - low) / (high - low)).permute(1, 2, 0))


def test_a_constant_tensor_beyond_the_range_is_black():
    assert_close(as_picture(torch.full((3, 2, 4), 7.0)), np.zeros((2, 4, 3)))


def test_a_batch_gives_its_own_image_and_a_batch_of_one_serves_all():
    batch = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    assert_close(as_picture(batch, 1), as_picture(batch[1]))
    assert_close(as_picture(batch[:1], 1), as_picture(batch[0]))
    with pytest.raises(InputError, match="holds 2 images"):
        as_picture(batch, 2)


def test_grey_and_transparent_images_have_three_channels():
    grey = pixels()[..., 0]
    assert_close(as_picture(grey), np.repeat(grey[..., None], 3, axis=2) / 255)
    assert as_picture(np.zeros((5, 7, 4))).shape == (5, 7, 3)
    assert as_picture(Image.fromarray(grey)).shape == (5, 7, 3)


def test_half_precision_with_a_gradient_can_be_drawn():
    assert as_picture(torch.rand(3, 4, 5, dtype=torch.bfloat16, requires_grad=True)).shape == (4, 5, 3)


@pytest.mark.parametrize(
    ("image", "words"),
    [("cat.png", "PIL.Image.open"), (np.zeros((3, 5, 7)), "channels last"), (torch.zeros(5, 7), r"\[5, 7\]")],
)
def test_what_is_no_image_is_named(image, words):
    with pytest.raises(InputError, match=words):
        as_picture(image)
