import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from vitrail.errors import InputError
from vitrail.models.zoo.photo import crop, preprocess

RED = torch.tensor([1.0, -1.0, -1.0]).view(1, 3, 1, 1).expand(1, 3, 160, 160)
GREY = 2 * 100 / 255 - 1


@pytest.mark.parametrize("size", [(160, 160), (1, 1), (3, 900), (1000, 37), (161, 159)])
def test_any_size_becomes_the_models_size(size):
    assert_close(preprocess(Image.new("RGB", size, "red")), RED)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK", "YCbCr", "HSV"])
def test_red_is_red_in_every_mode_with_colour(mode):
    image = Image.new("RGB", (200, 180), "red").convert(mode)
    # YCbCr and HSV round their own channels to whole numbers.
    assert_close(preprocess(image), RED, rtol=0, atol=0.02)


@pytest.mark.parametrize("mode", ["L", "LA", "PA", "I;16", "F"])
def test_the_same_grey_comes_out_of_every_depth(mode):
    values = np.full((170, 190), 100, dtype=np.uint8)
    images = {
        "L": Image.fromarray(values),
        "LA": Image.fromarray(values).convert("LA"),
        "PA": Image.fromarray(values).convert("RGBA").quantize().convert("PA"),
        "I;16": Image.fromarray(values.astype(np.uint16) * 257),
        "F": Image.fromarray((values / 255).astype(np.float32)),
    }
    assert images[mode].mode == mode
    assert_close(preprocess(images[mode]), torch.full((1, 3, 160, 160), GREY), rtol=0, atol=1e-6)


def test_one_bit_is_black_and_white():
    assert_close(preprocess(Image.new("1", (9, 9), 1)), torch.ones(1, 3, 160, 160))


def test_what_is_transparent_becomes_white():
    clear = Image.new("RGBA", (50, 60), (0, 0, 0, 0))
    assert_close(preprocess(clear), torch.ones(1, 3, 160, 160))
    palette = Image.new("P", (50, 60), 0)
    palette.info["transparency"] = 0
    assert_close(preprocess(palette), torch.ones(1, 3, 160, 160))


def test_a_picture_that_was_taken_sideways_is_turned_upright():
    image = Image.new("RGB", (160, 160), "red")
    image.paste("blue", (0, 0, 160, 80))  # blue above
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise: what is above comes to the right
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif, quality=95)
    turned = crop(Image.open(file))
    assert turned.getpixel((150, 80))[2] > 200
    assert turned.getpixel((10, 80))[0] > 200


def test_the_middle_of_a_wide_picture_is_seen():
    image = Image.new("RGB", (480, 160), "red")
    image.paste("blue", (0, 0, 150, 160))
    image.paste("blue", (330, 0, 480, 160))
    assert_close(preprocess(image), RED, rtol=0, atol=0)


def test_a_picture_with_no_pixels_is_refused():
    with pytest.raises(InputError, match="0 x 5 pixels"):
        preprocess(Image.new("RGB", (0, 5)))


def test_a_file_cut_short_is_refused():
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "PNG")
    with pytest.raises(InputError, match=r"cannot be read as an image: .*truncated"):
        preprocess(Image.open(io.BytesIO(file.getvalue()[:3000])))
