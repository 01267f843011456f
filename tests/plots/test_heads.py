import numpy as np
import pytest
import torch
from torch.testing import assert_close

from vitrail import Attribution, targets
from vitrail.errors import OptionError
from vitrail.plots import head_grid


def with_heads(count, kind="image"):
    heads = torch.randn(2, count, 6, dtype=torch.float64)
    scores = heads.clamp(min=0).mean(dim=1)
    place = {"grid": (2, 3), "size": (10, 15)} if kind == "image" else {"tokens": (tuple("abcdef"),) * 2}
    return Attribution(scores, "gradtoken", targets.logit(0), kind, heads=heads, **place)


def titles(figure):
    return [text.get_text() for text in figure.texts]


@pytest.mark.parametrize("image", [None, np.zeros((10, 15, 3))])
@pytest.mark.parametrize("count", [1, 3, 5, 6, 12, 16])
def test_every_head_is_shown_by_its_number_and_all_together_once(count, image):
    found = titles(head_grid(with_heads(count), image))
    assert [t for t in found if t.startswith("head ")] == [f"head {h}" for h in range(count)]
    assert found.count("together") == 1
    assert found.count("input") == (image is not None)


def test_heads_share_one_signed_scale():
    found = with_heads(3)
    figure = head_grid(found, index=1)
    drawn = [axes.images[0] for axes in figure.axes if axes.images][1:4]
    maps = [torch.from_numpy(np.asarray(image.get_array())) for image in drawn]
    expected = [Attribution(h[None], "x", targets.logit(0), "image", grid=(2, 3)).heatmap((10, 15))[0]
                for h in found.heads[1]]  # fmt: skip
    largest = max(float(x.abs().max()) for x in expected)
    for ours, theirs in zip(maps, expected, strict=True):
        assert_close(ours, theirs / largest)
    assert {image.get_clim() for image in drawn} == {(-1.0, 1.0)}


def test_the_heads_of_a_text_are_rows_of_a_heat_map():
    axes = head_grid(with_heads(4, "text")).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "head 0",
        "head 1",
        "head 2",
        "head 3",
        "together",
    ]


def test_a_method_without_heads_is_named():
    plain = Attribution(torch.ones(1, 6), "gae", targets.logit(0), "image", grid=(2, 3))
    with pytest.raises(OptionError, match=r"gae keeps no map per head. Use a method that does, such as gradtoken"):
        head_grid(plain)
