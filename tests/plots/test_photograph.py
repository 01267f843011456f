"""Maps over the photograph that was explained, in its own size, and maps alone."""

from io import BytesIO

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image

import vitrail
from vitrail import Attribution, targets, zoo
from vitrail.errors import OptionError
from vitrail.plots import layer_maps
from vitrail.plots.pictures import view_of


@pytest.fixture(scope="module")
def photo():
    return zoo.load_plain("photo")


def photograph(wide=300, high=240):
    y, x = np.mgrid[:high, :wide]
    levels = [x * 255 / wide, y * 255 / high, 127 + 120 * np.sin(x / 17 + y / 23)]
    return Image.fromarray(np.stack(levels, axis=2).astype(np.uint8))


def layers_of(figure, panel=0):
    return [np.asarray(image.get_array()) for image in figure.axes[panel].images]


@pytest.mark.parametrize("form", ["path", "picture", "array"])
def test_a_map_lies_over_the_photograph_that_was_given(photo, form, tmp_path):
    image = photograph()
    image.save(tmp_path / "x.png")
    given = {"path": tmp_path / "x.png", "picture": image, "array": np.asarray(image)}[form]
    found = vitrail.explain(photo, given, "gae")
    picture, values = layers_of(found.plot())
    assert picture.shape[:2] == values.shape == (240, 300)
    assert_allclose(picture, np.asarray(image) / 255)
    assert np.isnan(values[:, :28]).all()  # the centre was explained
    assert_allclose(layers_of(found.plot(image))[1], values)


def test_sheets_and_layers_lie_over_the_photograph_too(photo):
    image = photograph()
    sheet = vitrail.compare(photo, image, ["gae", "rollout"]).plot()
    layers = layer_maps(vitrail.explain(photo, image, "tokentm"))
    for figure in (sheet, layers):
        assert layers_of(figure, 1)[0].shape == (240, 300, 3)


def test_each_sample_lies_over_its_own_photograph(photo):
    pair = [photograph(), photograph(200, 400)]
    found = vitrail.explain(photo, pair, "gae")
    assert layers_of(found.plot(index=1))[0].shape == (400, 200, 3)
    assert layers_of(found[1].plot())[0].shape == (400, 200, 3)


def test_a_photograph_that_has_changed_or_is_gone_is_not_drawn_over(photo, tmp_path):
    path = tmp_path / "x.png"
    photograph().save(path)
    found = vitrail.explain(photo, path, "gae")
    Image.effect_noise((300, 240), 90).save(path)
    assert view_of(found, None, 0).picture.shape == (160, 160, 3)
    path.unlink()
    assert view_of(found, None, 0).picture.shape == (160, 160, 3)


def test_a_file_keeps_the_pixels_of_the_photograph(photo, tmp_path):
    found = vitrail.explain(photo, photograph(1200, 1200), "gae")
    figure = found.plot(title="", colorbar=False)
    box = figure.axes[0].get_window_extent()
    assert box.width == pytest.approx(1200, abs=2)
    small = Image.open(BytesIO(figure._repr_png_()))  # a notebook shows it smaller
    assert max(small.size) < 600


@pytest.mark.parametrize("signed", [True, False])
def test_a_map_alone_laid_over_the_picture_gives_what_is_drawn(signed, photo, tmp_path):
    image = photograph(160, 160)
    found = vitrail.explain(photo, image, "attn_lrp" if signed else "gae")
    alone = Image.open(found.save(tmp_path / "map.png", map_only=True))
    assert (alone.mode, alone.size) == ("RGBA", (160, 160))
    from vitrail.plots.pictures import background, sample_map, with_map

    picture = np.asarray(image) / 255
    layers = np.asarray(alone) / 255
    upper = layers[..., 3:]
    mixed = upper * layers[..., :3] + (1 - upper) * background(picture, signed=signed)
    assert_allclose(mixed, with_map(sample_map(found, 0, picture), picture, signed=signed), atol=0.02)


def test_a_map_alone_has_the_size_of_the_photograph_and_is_clear_where_the_model_saw_nothing(photo, tmp_path):
    found = vitrail.explain(photo, photograph(), "gae")
    alone = np.asarray(Image.open(found.save(tmp_path / "map.png", map_only=True)))
    assert alone.shape == (240, 300, 4)
    assert (alone[:, :28, 3] == 0).all()
    assert alone[..., 3].max() > 200


def test_a_map_alone_is_a_png_of_an_image(photo, tmp_path):
    found = vitrail.explain(photo, photograph(), "gae")
    for path, style in ((tmp_path / "x.svg", {}), (tmp_path / "x.png", {"title": ""})):
        with pytest.raises(OptionError, match=r"map_only writes a \.png"):
            found.save(path, map_only=True, **style)
    text = Attribution(torch.rand(1, 3), "gae", targets.logit(0), "text")
    with pytest.raises(OptionError, match="a map alone is drawn of an image"):
        text.save(tmp_path / "x.png", map_only=True)
