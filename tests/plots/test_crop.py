"""A map lies on the part of a photograph that the model saw, or is refused: it is never stretched over the rest."""

import re
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from saved_models import save_timm, save_vit
from torch import nn

import vitrail
from vitrail import zoo
from vitrail.attribution import Attribution
from vitrail.errors import InputError
from vitrail.models.loading import load
from vitrail.models.loading.images import CROP_MODES, View
from vitrail.plots import comparison_sheet, head_grid, layer_maps, overlay
from vitrail.plots.pictures import measured_region, placed, region_of

WIDE, HIGH = 300, 120


def photograph(wide=WIDE, high=HIGH):
    """Smooth colours, so that parts differ and resizing changes little."""
    y, x = np.mgrid[:high, :wide]
    levels = [x * 255 / wide, y * 255 / high, 127 + 120 * np.sin(x / 17 + y / 23)]
    return Image.fromarray(np.stack(levels, axis=2).astype(np.uint8))


@pytest.fixture(scope="module")
def photo():
    return zoo.load_plain("photo")


@pytest.fixture(scope="module")
def loaded():
    return load("photo")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Tiny models of two libraries, with processors that crop and that squeeze."""
    from transformers import ViTImageProcessor

    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("crop")
    squeezed = save_vit(place / "squeezed")
    cropped = save_vit(place / "cropped")
    size = {"shortest_edge": 40}
    ViTImageProcessor(size=size, do_center_crop=True, crop_size={"height": 32, "width": 32}).save_pretrained(cropped)
    return {
        "squeezed": load(squeezed),
        "cropped": load(cropped),
        "timm": load(save_timm(place), arch="test_vit"),
    }


def drawn(figure, panel=0):
    """Map and picture of a panel, whatever their order."""
    axes = [one for one in figure.axes if one.images][panel]
    arrays = [np.ma.filled(one.get_array().astype(float), np.nan) for one in axes.images]
    (values,) = (x for x in arrays if x.ndim == 2)
    (picture,) = (x for x in arrays if x.ndim == 3)
    return values, picture


def columns_of(values):
    """The first and last column and row that a map fills."""
    rows, columns = np.nonzero(~np.isnan(values))
    return columns.min(), columns.max() + 1, rows.min(), rows.max() + 1


@pytest.mark.parametrize("method", ["gae", "gradtoken"])
@pytest.mark.parametrize("holder", ["photo", "loaded"])
def test_the_map_of_the_centre_crop_lies_in_the_centre_of_the_photograph(holder, method, request):
    model, image = request.getfixturevalue(holder), photograph()
    found = vitrail.explain(model, image, method)
    values, picture = drawn(found.plot(image))
    assert picture.shape[:2] == values.shape == (HIGH, WIDE)
    assert columns_of(values) == pytest.approx((90, 210, 0, 120), abs=1)
    left, right, *_ = columns_of(values)
    inside = found.heatmap((HIGH, int(right - left)))[0].double().numpy()
    scaled = inside / abs(inside).max() if found.signed else (inside - inside.min()) / (inside.max() - inside.min())
    np.testing.assert_allclose(values[:, left:right], scaled, atol=1e-5)


def test_the_rendered_file_shows_the_photograph_alone_where_the_model_saw_nothing(photo):
    image = photograph()
    figure = vitrail.explain(photo, image, "gae").plot(image, title="")
    sink = BytesIO()
    figure.savefig(sink, format="png")
    pixels = np.asarray(Image.open(sink).convert("RGB")).astype(float)
    axes = next(one for one in figure.axes if one.images)
    box = axes.get_window_extent()
    high = pixels.shape[0]
    part = pixels[round(high - box.y1) : round(high - box.y0), round(box.x0) : round(box.x1)]
    shown = np.asarray(image.resize((part.shape[1], part.shape[0]))).astype(float)
    outside = [slice(4, round(0.28 * part.shape[1])), slice(round(0.72 * part.shape[1]), -4)]
    for columns in outside:
        assert abs(part[4:-4, columns] - shown[4:-4, columns]).mean() < 6
    assert abs(part[4:-4, part.shape[1] // 2 - 20 : part.shape[1] // 2 + 20] - 0).mean() > 0
    middle = slice(round(0.32 * part.shape[1]), round(0.68 * part.shape[1]))
    assert abs(part[4:-4, middle] - shown[4:-4, middle]).max() > 80  # a map is clear where it is weak


def test_it_holds_with_the_inputs_of_a_loaded_model_too(loaded):
    image = photograph()
    found = vitrail.explain(loaded, loaded.image(image).inputs, "gae")
    inputs = loaded.image(image).inputs
    found = vitrail.explain(loaded, inputs, "gae")  # the tensor is kept by the caller
    values, _ = drawn(found.plot(image))
    assert columns_of(values) == pytest.approx((90, 210, 0, 120), abs=1)


def test_a_photograph_that_is_not_the_one_explained_is_refused(photo):
    found = vitrail.explain(photo, photograph(), "gae")
    other = Image.effect_noise((WIDE, HIGH), 90).convert("RGB")
    with pytest.raises(InputError, match=r"300 x 120 pixels, but the model saw 160 x 160"):
        found.plot(other)


def test_where_the_preprocessing_is_not_known_another_aspect_ratio_is_refused(photo, tmp_path):
    image = photograph()
    inputs = photo.preprocess(image)
    found = vitrail.explain(photo.model, inputs, "gae")
    doors = [
        found.plot, found.to_html, found.explore, lambda x: overlay(found, x),
        lambda x: comparison_sheet([[found]], x), vitrail.compare(photo.model, inputs, ["gae", "rollout"]).plot,
        vitrail.compare(photo.model, inputs, ["gae", "rollout"]).explore,
    ]  # fmt: skip
    for door in doors:
        for given in (image, np.asarray(image), torch.rand(3, HIGH, WIDE)):
            with pytest.raises(InputError, match=r"300 x 120 .* another aspect ratio.*plot\(inputs\)"):
                door(given)
        door(inputs)
        door(image.crop((90, 0, 210, 120)))
        door(image.crop((90, 0, 210, 119)))  # a pixel less, by rounding
    found.save(tmp_path / "map.json")
    with pytest.raises(InputError, match="another aspect ratio"):
        Attribution.load(tmp_path / "map.json").plot(image)
    assert found.plot() is not None


def test_maps_of_layers_and_heads_and_films_lie_there_too(photo):
    image, inputs = photograph(), photo.preprocess(photograph())
    found = vitrail.explain(photo, image, "gradtoken")
    for figure in (head_grid(found, image), layer_maps(vitrail.explain(photo, image, "tokentm"), image)):
        values, picture = drawn(figure, panel=1)
        assert picture.shape[:2] == (HIGH, WIDE)
        assert columns_of(values) == pytest.approx((90, 210, 0, 120), abs=1)
    values, _ = drawn(vitrail.compare(photo, image, ["gae", "rollout"]).plot(image), panel=1)
    assert columns_of(values) == pytest.approx((90, 210, 0, 120), abs=1)
    film = vitrail.transfer(photo.model, inputs, 3, steps=1)
    with pytest.raises(InputError, match="another aspect ratio"):
        film.plot(image)
    with pytest.raises(InputError, match="another aspect ratio"):
        film.gif(image)
    film.plot(inputs)


def test_the_page_shows_the_part_that_the_model_saw(photo):
    page = vitrail.explain(photo, photograph(), "gae").explore(photograph()).html
    (data,) = set(re.findall(r"data:image/(?:png|jpeg|webp);base64,([A-Za-z0-9+/=]+)", page))
    import base64

    assert Image.open(BytesIO(base64.b64decode(data))).size == pytest.approx((120, 120), abs=1)


@pytest.mark.parametrize(("wide", "high"), [(300, 120), (50, 131), (64, 64), (1000, 333), (33, 32), (900, 20)])
def test_every_loaded_model_says_where_it_looked(tiny, wide, high):
    image = photograph(wide, high)
    for name, one in tiny.items():
        part = measured_region(lambda x, one=one: (None, one.image(x).picture), high, wide)
        short = min(wide, high)
        if name == "squeezed" and max(wide, high) <= 16 * short:  # of longer pictures the middle is taken first
            expected = (0, 0, wide, high)
        elif name == "squeezed":
            expected = ((wide - 16 * short) / 2, 0, (wide + 16 * short) / 2, high)
        else:
            share = 32 / 40 if name == "cropped" else part_of(one)
            side = share * short / 2
            expected = (wide / 2 - side, high / 2 - side, wide / 2 + side, high / 2 + side)
        assert part == pytest.approx(expected, abs=max(1.0, short / 24)), name
        found = vitrail.explain(one, image, "gae")
        region = region_of(found, image, 0)
        seen = columns_of(drawn(found.plot(image))[0]) if region is not None else (0, wide, 0, high)
        assert seen == pytest.approx((part[0], part[2], part[1], part[3]), abs=2), name


def part_of(one):
    """The share of the shorter side that a timm model sees."""
    return one.processor.crop_pct


@pytest.mark.parametrize("mode", CROP_MODES)
def test_regions_of_all_crop_modes_are_found_by_marking_a_place(mode):
    """A white spot at a known place of a photograph is seen where the region says."""
    view = View((48, 48), 0.8, mode, "bicubic", (0.2, 0.3, 0.4), (1.0, 1.0, 1.0))
    wide, high, spot = 210, 140, (120, 60)
    left, top, right, bottom = measured_region(lambda x: (None, view(x).picture), high, wide)
    picture = np.zeros((high, wide, 3), dtype=np.uint8)
    picture[spot[1] - 4 : spot[1] + 4, spot[0] - 4 : spot[0] + 4] = 255
    seen = np.asarray(view(Image.fromarray(picture)).picture).astype(float)[..., 0]
    seen = np.where(seen > 100, seen, 0)
    y, x = (np.average(axis, weights=seen) + 0.5 for axis in np.mgrid[:48, :48])
    assert left + x / 48 * (right - left) == pytest.approx(spot[0], abs=2)
    assert top + y / 48 * (bottom - top) == pytest.approx(spot[1], abs=2)


def test_a_region_beyond_the_picture_is_cut():
    values = torch.arange(24.0).reshape(4, 6)
    whole = placed(values, np.zeros((3, 5, 3)), (-1.0, -1.0, 5.0, 3.0))
    assert torch.equal(whole, values[1:, 1:6])
    assert placed(values, None, None) is values


def test_a_turned_photograph_is_drawn_upright(photo, tmp_path):
    image = photograph()
    turned = image.rotate(90, expand=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 270 degrees when shown
    turned.save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as opened:
        found = vitrail.explain(photo, tmp_path / "turned.png", "gae")
        values, picture = drawn(found.plot(opened))
    assert picture.shape[:2] == (HIGH, WIDE)
    assert columns_of(values) == pytest.approx((90, 210, 0, 120), abs=1)


def test_an_attribution_keeps_no_model_alive_by_its_preprocessing():
    import gc
    import weakref

    model = load("photo")
    found, held = vitrail.explain(model, photograph(), "gae"), weakref.ref(model.model)
    assert isinstance(model.model, nn.Module)
    del model
    gc.collect()
    assert found.seen.preprocess is not None
    assert found.plot(photograph()) is not None
    keys = [type(x).__name__ for x in gc.get_referrers(held())] if held() is not None else []
    assert "SeenPictures" not in keys
