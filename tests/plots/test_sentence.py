import warnings
from itertools import pairwise

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from vitrail import Attribution, targets
from vitrail.errors import OptionError
from vitrail.plots import plot_attribution
from vitrail.plots.canvas import AGAINST, FOR, WHITE, ink, rendered, shade
from vitrail.plots.tokens import Piece, flow, pieces


def text(tokens, scores, **fields):
    made = {"method": "attcat", "target": targets.logit(1), "kind": "text", "signed": True, **fields}
    return Attribution(torch.tensor([scores], dtype=torch.float64), tokens=(tuple(tokens),), **made)


def shades(figure):
    """The tokens of a figure with the colour of their boxes."""
    axes = figure.axes[0]
    colours = [to_hex(box.get_facecolor()) for box in axes.patches]
    return dict(zip([t.get_text() for t in axes.texts], colours, strict=True))


def test_warm_is_for_cool_against_and_darker_is_more():
    found = shades(text(["good", "bad", "so", "the"], [2.0, -1.0, 1.0, 0.0]).plot())
    assert found == {"good": FOR, "bad": shade(-0.5), "so": shade(0.5), "the": WHITE}


def test_shades_run_evenly_from_white_to_the_end():
    assert (shade(0.0), shade(1.0), shade(-1.0)) == (WHITE, FOR, AGAINST)
    brightness = [sum(bytes.fromhex(shade(amount / 10)[1:])) for amount in range(11)]
    assert brightness == sorted(brightness, reverse=True)
    assert len(set(brightness)) == 11


def luminance(colour):
    """Relative luminance of the Web Content Accessibility Guidelines."""
    parts = [part / 255 for part in bytes.fromhex(colour[1:])]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("signed", [True, False])
def test_letters_have_the_contrast_of_large_text_on_every_shade(signed):
    for score in range(-50, 51):
        colour = shade(score / 50, signed=signed)
        dark, light = sorted((luminance(colour), luminance(ink(colour))))
        assert (light + 0.05) / (dark + 0.05) >= 3, (score, colour)


def test_padding_is_not_drawn_and_words_can_be_merged():
    found = text(["un", "##able", "[PAD]"], [1.0, -3.0, 0.0], valid=torch.tensor([[True, True, False]]))
    assert shades(found.plot()) == {"un": shade(1 / 3), "##able": AGAINST}
    assert shades(found.plot(merge=True)) == {"unable": AGAINST}


def test_dollar_signs_are_text_and_no_formula():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = rendered(text(["$\\nonsense{$", "$x_2$"], [1.0, 2.0]).plot(title="$\\nonsense{$"))
    assert picture.startswith(b"\x89PNG")


def test_the_words_of_the_colour_bar_are_not_cut_at_the_edge():
    figure = text(["a", "b"], [1.0, 2.0]).plot()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for label in figure.axes[-1].get_xticklabels():
        box = label.get_window_extent(canvas.get_renderer())
        assert box.x0 >= 0
        assert box.y0 >= 0


def test_lines_fit_the_room_and_keep_the_order():
    sentence = pieces(text([f"word{i}" for i in range(40)], list(range(40))))
    lines = flow(sentence, 3.0)
    assert [item.piece for line in lines for item in line] == sentence
    assert len(lines) > 1
    for line in lines:
        assert line[-1].left + line[-1].width <= 3.0
        assert all(a.left + a.width < b.left for a, b in pairwise(line))


def test_a_word_longer_than_a_line_is_cut_and_loses_no_letter():
    lines = flow([Piece("w" * 200, "w" * 200, 1.0, 1.0)], 3.0)
    assert "".join(item.piece.text for line in lines for item in line) == "w" * 200
    assert all(item.width <= 3.0 for line in lines for item in line)


def test_a_sentence_of_zeros_is_drawn_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rendered(text(["a", "b"], [0.0, 0.0]).plot()).startswith(b"\x89PNG")


def test_an_unknown_style_is_named():
    with pytest.raises(OptionError, match="a picture of text has no style 'alpha'"):
        plot_attribution(text(["a"], [1.0]), alpha=0.5)
