import warnings

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch.testing import assert_close

from vitrail import Attribution, targets
from vitrail.errors import MissingExtraError, OptionError
from vitrail.plots import pictures, plot_attribution
from vitrail.plots.canvas import SIGNED_MAP, rendered, symmetric
from vitrail.plots.pictures import Panel, panel_figure


def image_attribution(*, signed, scores=None, **fields):
    scores = torch.randn(2, 6, dtype=torch.float64) if scores is None else scores
    scores = scores if signed else scores.abs()
    target = targets.logit([4, 5])
    return Attribution(scores, "gae", target, "image", signed=signed, grid=(2, 3), size=(10, 15), **fields)


def picture():
    return np.random.default_rng(1).random((10, 15, 3))


def shown(figure):
    return [np.asarray(image.get_array()) for image in figure.axes[0].images]


def words(figure):
    return [text.get_text() for text in figure.texts]


@pytest.mark.parametrize("signed", [True, False])
def test_a_map_lies_above_the_image(signed):
    image, above = shown(image_attribution(signed=signed).plot(picture()))
    assert (image.ndim, above.ndim) == (3, 2)


def test_below_a_signed_map_the_image_is_grey_and_below_an_unsigned_one_as_it_is():
    grey, _ = shown(image_attribution(signed=True).plot(picture()))
    assert_close(grey[..., 0], grey[..., 2])
    assert grey.min() >= 1 - pictures.GREY_SHARE
    same, _ = shown(image_attribution(signed=False).plot(picture()))
    assert_close(same, picture())


@pytest.mark.parametrize("signed", [True, False])
def test_a_map_is_clear_where_it_is_weak_and_strong_where_it_is_strong(signed):
    figure = image_attribution(signed=signed).plot(picture())
    values, opaque = shown(figure)[1], figure.axes[0].images[1].get_alpha()
    assert opaque[np.abs(values).argmin() // 15, np.abs(values).argmin() % 15] < 0.1
    assert opaque.max() == pytest.approx(pictures.STRONGEST)
    order = np.abs(values).ravel().argsort()
    assert (np.diff(opaque.ravel()[order]) >= 0).all()


def test_a_signed_map_is_divided_by_its_largest_magnitude_on_a_symmetric_range():
    found = image_attribution(signed=True)
    figure = found.plot(picture(), index=1)
    heat = found.heatmap((10, 15))[1]
    assert_close(torch.from_numpy(shown(figure)[1]), heat / heat.abs().max())
    assert figure.axes[0].images[1].get_clim() == (-1.0, 1.0)


def test_zero_stays_zero():
    assert symmetric(torch.tensor([0.0, -4.0, 2.0])).tolist() == [0.0, -1.0, 0.5]
    assert symmetric(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_red_is_for_blue_against_and_white_nothing():
    against, nothing, for_it = (colormaps[SIGNED_MAP](value) for value in (0.0, 0.5, 1.0))
    assert for_it[0] > 2 * for_it[2]
    assert against[2] > 2 * against[0]
    assert min(nothing[:3]) > 0.95


def test_an_unsigned_map_fills_the_range_from_zero_to_one():
    values = shown(image_attribution(signed=False).plot())[0]
    assert (values.min(), values.max()) == (0.0, 1.0)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("image", [None, picture()])
def test_a_map_of_zeros_is_drawn_without_a_warning(signed, image):
    found = image_attribution(signed=signed, scores=torch.zeros(1, 6, dtype=torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = found.plot(image)
        assert rendered(figure).startswith(b"\x89PNG")
    assert all(np.isfinite(layer).all() for layer in shown(figure))


def test_alpha_is_the_opacity_of_the_upper_layer():
    for signed in (True, False):
        figure = image_attribution(signed=signed).plot(picture(), alpha=0.25)
        assert [image.get_alpha() for image in figure.axes[0].images] == [1.0, 0.25]


def test_the_map_takes_the_size_of_the_image():
    figure = image_attribution(signed=True).plot(np.zeros((20, 30, 3)))
    assert [layer.shape[:2] for layer in shown(figure)] == [(20, 30), (20, 30)]


def test_the_picture_names_the_method_and_the_target_of_its_own_sample():
    assert words(image_attribution(signed=True).plot(index=1)) == ["gae", "class 5"]
    assert words(image_attribution(signed=True).plot(title="Boxer")) == ["Boxer"]


def test_a_map_of_pixels_is_drawn_as_it_is():
    pixels = torch.rand(1, 10, 15, dtype=torch.float64) - 0.5
    found = image_attribution(signed=True, scores=torch.zeros(1, 6, dtype=torch.float64), pixels=pixels)
    assert_close(torch.from_numpy(shown(found.plot())[0]), pixels[0] / pixels.abs().max())


def test_a_colour_bar_stands_beside_the_map():
    labels = [label.get_text() for label in image_attribution(signed=True).plot().axes[1].get_xticklabels()]
    assert [label.split()[0] for label in labels] == ["against", "0", "for"]
    low, high = (float(labels[i].split()[1]) for i in (0, 2))
    assert -low == high > 0


def test_figures_stay_out_of_pyplot():
    from matplotlib import pyplot

    image_attribution(signed=True).plot()
    assert pyplot.get_fignums() == []


def test_an_unknown_style_is_named():
    with pytest.raises(OptionError, match=r"no style 'alfa'. Did you mean alpha"):
        plot_attribution(image_attribution(signed=True), alfa=1)


def test_a_sample_that_is_not_there_is_named():
    with pytest.raises(OptionError, match="no sample 2: the attribution holds 2"):
        image_attribution(signed=True).plot(index=2)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vitrail\[plots\]'"):
        image_attribution(signed=True).plot()


def test_a_box_is_drawn_where_its_shares_of_the_picture_lie():
    item = Panel("", torch.zeros(10, 15), box=(0.8, 0.25, 0.2, 0.1))
    figure = panel_figure([[item]], picture())
    (box,) = figure.axes[0].patches
    (left, low), (right, high) = figure.axes[0].transData.inverted().transform(box.get_window_extent().get_points())
    edges = [left + 0.5, 15 - right - 0.5, high + 0.5, 10 - low - 0.5]  # pixels lie around whole numbers
    assert_close(edges, [0.7 * 15, 0.1 * 15, 0.2 * 10, 0.7 * 10], atol=1e-6, rtol=0)


@pytest.mark.parametrize("signed", [True, False])
def test_a_map_in_a_report_is_mixed_with_the_picture_as_in_a_figure(signed):
    values, picture = torch.tensor([[0.0, 1.0, 0.25]], dtype=torch.float64), np.full((1, 3, 3), 0.5)
    figure = Figure(figsize=(3, 1), dpi=10)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    pictures.draw_panel(axes, pictures.Panel("", values, signed=signed), picture)
    axes.axis("off")
    canvas.draw()
    drawn = np.asarray(canvas.buffer_rgba())[5, [5, 15, 25], :3] / 255
    np.testing.assert_allclose(pictures.with_map(values, picture, signed=signed)[0], drawn, atol=0.01)
