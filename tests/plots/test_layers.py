from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from vitrail import Attribution, targets
from vitrail.errors import OptionError
from vitrail.plots import layer_heatmap, layer_maps
from vitrail.plots.canvas import rendered


def text(**fields):
    layers = torch.randn(2, 4, 6, dtype=torch.float64)
    layers[..., -1] = 0
    tokens = (("[CLS]", "a", "$b", "c", "d", "[PAD]"),) * 2
    made = Attribution(layers.sum(dim=1), "attcat", targets.logit([1, 0]), "text", signed=True, tokens=tokens)
    valid = torch.tensor([[True] * 5 + [False]] * 2)
    return replace(made, **{"layers": layers, "valid": valid, **fields})


def image(*, signed):
    layers = torch.randn(1, 5, 6, dtype=torch.float64)
    layers = layers if signed else layers.abs()
    made = Attribution(layers.sum(dim=1), "tokentm", targets.logit(1), "image", signed=signed, grid=(2, 3))
    return replace(made, size=(10, 15), layers=layers)


def table(figure):
    return figure.axes[0].images[0].get_array()


def test_every_layer_is_divided_by_its_largest_magnitude_and_the_sum_stands_below():
    found = text()
    figure = layer_heatmap(found, index=1)
    rows = [*found.layers[1, :, :5], found.scores[1, :5]]
    expected = torch.stack([row / max(abs(float(x)) for x in row) for row in rows])
    assert_close(torch.from_numpy(np.asarray(table(figure))), expected)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["L0", "L1", "L2", "L3", "Sum"]
    assert figure.axes[0].images[0].get_clim() == (-1.0, 1.0)


def test_tokens_stand_below_their_columns_without_padding():
    labels = [label.get_text() for label in layer_heatmap(text()).axes[0].get_xticklabels()]
    assert labels == ["[CLS]", "a", "$b", "c", "d"]


def test_dollar_signs_are_text_and_no_formula():
    tokens = (("a", "$\\nonsense{$", "c", "d", "e", "f"),) * 2
    assert rendered(layer_heatmap(text(tokens=tokens))).startswith(b"\x89PNG")


def test_the_readout_is_left_out_and_does_not_set_the_scale():
    found = text(readout=torch.tensor([0, 0]))
    found.layers[..., 0] = 1000.0
    shown = table(layer_heatmap(found))
    assert np.ma.getmaskarray(shown)[:, 0].all()
    assert_close(np.abs(shown[:, 1:]).max(axis=1).data, np.ones(5))


def test_scores_that_are_no_sum_of_the_layers_are_not_called_so():
    found = text(scores=torch.randn(2, 6, dtype=torch.float64))
    assert layer_heatmap(found).axes[0].get_yticklabels()[-1].get_text() == "Scores"


def test_a_layer_of_zeros_stays_zero():
    found = text()
    found.layers[:, 3] = 0
    assert_close(np.asarray(table(layer_heatmap(found)))[3], np.zeros(5))


@pytest.mark.parametrize("signed", [True, False])
def test_images_have_one_map_per_layer_on_its_own_scale(signed):
    figure = layer_maps(image(signed=signed))
    maps = [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]
    assert len(maps) == 5
    for one in maps:
        assert np.abs(one).max() == 1.0
        assert signed or one.min() == 0.0
    assert [t.get_text() for t in figure.texts if t.get_text().startswith("L")] == ["L0", "L1", "L2", "L3", "L4"]


def test_the_input_comes_first():
    figure = layer_maps(image(signed=True), np.zeros((10, 15, 3)))
    assert [len(axes.images) for axes in figure.axes if axes.images] == [1, 2, 2, 2, 2, 2]


def test_the_other_kind_is_sent_to_the_other_function():
    with pytest.raises(OptionError, match=r"use layer_maps"):
        layer_heatmap(image(signed=True))
    with pytest.raises(OptionError, match=r"use layer_heatmap"):
        layer_maps(text())


def test_a_method_without_layers_is_named():
    with pytest.raises(OptionError, match="attcat keeps no scores per layer"):
        layer_heatmap(text(layers=None))
