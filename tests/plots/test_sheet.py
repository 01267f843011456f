from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from vitrail import METHODS, Attribution, Comparison, targets
from vitrail.errors import OptionError
from vitrail.plots import comparison_sheet

NAMES = list(METHODS)


def image_row(count, target=3, **fields):
    scores = torch.randn(1, 6, dtype=torch.float64)
    made = Attribution(scores, "gae", targets.logit(target), "image", grid=(2, 3), size=(20, 30), **fields)
    return [replace(made, method=name, signed=METHODS[name].signed) for name in NAMES[:count]]


def text_row(count, target=1):
    tokens = (
        "[CLS]",
        "it",
        "was",
        "un",
        "##believ",
        "##ably",
        "good",
        "$",
        "5",
        "and",
        "$",
        "6",
        ".",
        "[SEP]",
        "[PAD]",
    )
    scores = torch.randn(1, len(tokens), dtype=torch.float64)
    scores[:, -1] = 0
    valid = torch.tensor([[token != "[PAD]" for token in tokens]])
    made = Attribution(scores, "attcat", targets.logit(target), "text", signed=True, tokens=(tokens,), valid=valid)
    return [replace(made, method=name) for name in NAMES[:count]]


def boxes(figure):
    """The place of every text that is drawn, in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [t for t in figure.findobj(Text) if t.get_text() and t.get_visible()]
    return [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in texts]


def assert_legible(figure):
    """No text is cut at the edge, and no two lie on each other by more than a pixel."""
    width, height = figure.bbox.size
    found = boxes(figure)
    for text, box in found:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text
    for (first, a), (second, b) in combinations(found, 2):
        across, along = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across <= 1 or along <= 1, f"{first!r} lies on {second!r}"


@pytest.mark.parametrize("targets_shown", [1, 3])
@pytest.mark.parametrize("methods", [1, 4, 12])
def test_sheets_of_any_size_are_legible(methods, targets_shown):
    rows = [image_row(methods, target) for target in range(targets_shown)]
    assert_legible(comparison_sheet(rows, np.zeros((20, 30, 3))))
    assert_legible(comparison_sheet([text_row(methods, target) for target in range(targets_shown)]))


def test_long_options_and_long_row_titles_wrap():
    options = {"scheme": "rollout_matmul", "depth": 2, "heads": "mean"}
    rows = [[replace(one, method="gradtoken", options=options) for one in image_row(3)] for _ in range(2)]
    assert_legible(comparison_sheet(rows, row_titles=["a tiger cat asleep in a very sunny place indeed", "b"]))


def test_targets_are_rows_and_methods_columns_after_the_input():
    figure = comparison_sheet([image_row(3, 7), image_row(3, 8)], np.zeros((20, 30, 3)))
    panels = [axes for axes in figure.axes if axes.images]
    places = sorted({(round(p.get_position().y0, 6), round(p.get_position().x0, 6)) for p in panels})
    assert len(panels) == len(places) == 2 * (1 + 3)
    assert len({y for y, _ in places}) == 2
    titles = [text for text, _ in boxes(figure)]
    assert [t for t in titles if t in {"input", *NAMES}] == ["input", *NAMES[:3]]
    assert {"class 7", "class 8"} <= set(titles)


def test_the_input_is_shown_without_a_map_and_once_per_row():
    figure = comparison_sheet([image_row(2), image_row(2)], np.zeros((20, 30, 3)))
    assert [len(axes.images) for axes in figure.axes if axes.images] == [1, 2, 2, 1, 2, 2]


def test_a_single_long_row_is_spread_over_lines():
    panels = [axes for axes in comparison_sheet([image_row(12)]).axes if axes.images]
    assert len({round(p.get_position().y0, 6) for p in panels}) == 2


def test_methods_that_differ_only_in_the_scalar_share_a_row_title():
    row = image_row(2)
    row[1] = replace(row[1], target=targets.probability(3))
    assert "class 3" in [text for text, _ in boxes(comparison_sheet([row]))]


def test_every_sentence_has_a_line_of_its_own_and_no_padding():
    drawn = [text for text, _ in boxes(comparison_sheet([text_row(3)]))]
    assert drawn.count("[SEP]") == drawn.count("[CLS]") == 3
    assert drawn.count("$") == 6
    assert "[PAD]" not in drawn
    assert set(NAMES[:3]) <= set(drawn)


def test_a_comparison_draws_itself():
    figure = Comparison(image_row(3)).plot(np.zeros((20, 30, 3)))
    assert len([axes for axes in figure.axes if axes.images]) == 4


@pytest.mark.parametrize("rows", [[], [[]], [image_row(1), text_row(1)]])
def test_rows_that_make_no_sheet_are_refused(rows):
    with pytest.raises(OptionError, match="a sheet needs rows of attributions"):
        comparison_sheet(rows)


def test_a_title_for_every_row_is_asked_for():
    with pytest.raises(OptionError, match="1 row titles were given for 2 rows"):
        comparison_sheet([image_row(1), image_row(1)], row_titles=["cat"])


def test_every_row_may_have_an_image_of_its_own():
    rows = [image_row(2), image_row(2)]
    black, white = torch.zeros(3, 8, 8), torch.ones(3, 8, 8)
    figure = comparison_sheet(rows, [black, white])
    inputs = [axes for axes in figure.axes if len(axes.images) == 1][:2]
    assert [float(axes.images[0].get_array().mean()) for axes in inputs] == [0.0, 1.0]
    with pytest.raises(OptionError, match="3 images were given for 2 rows"):
        comparison_sheet(rows, [black] * 3)
