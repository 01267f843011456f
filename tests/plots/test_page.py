import re
from base64 import b64decode
from html.parser import HTMLParser

import pytest
import torch
from golden_sets import golden

from vitrail import Attribution, explain, targets
from vitrail.errors import OptionError
from vitrail.plots.canvas import AGAINST, FOR
from vitrail.plots.page import to_html, to_page


class Reader(HTMLParser):
    """What a browser would find: the tags, their attributes and the text of every span."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.spans, self.inside = [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "span"

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.spans.append(data)


def text(tokens, scores, **fields):
    made = {"method": "attcat", "target": targets.logit(1), "kind": "text", "signed": True, **fields}
    return Attribution(torch.tensor(scores, dtype=torch.float64), tokens=tuple(map(tuple, tokens)), **made)


NASTY = ["<script>", "alert('x')", "&amp;", '"', "</span>", "{body}"]


@pytest.mark.parametrize("page", [to_html, to_page])
def test_every_token_shows_as_text_and_never_becomes_markup(page):
    found = Reader(page(text([NASTY], [[1.0, -2.0, 3.0, 4.0, 5.0, 6.0]])))
    assert found.spans == NASTY
    assert {tag for tag, _ in found.tags} <= {"html", "head", "meta", "title", "body", "section", "p", "strong", "span"}


def test_names_from_outside_are_escaped_too():
    provenance = {"model": "<em>", "versions": {"<q>": "<q>"}}
    nasty = text([["a"]], [[1.0]], method="<b>", preset="<i>", options={"<u>": "<s>"}, provenance=provenance)
    assert {tag for tag, _ in Reader(to_page(nasty)).tags} & {"b", "i", "u", "s", "em", "q"} == set()


def test_method_target_preset_options_and_model_are_told():
    made = text([["a"]], [[1.0]], preset="official", options={"states": "input"}, provenance={"model": "bert"})
    page = to_html(made)
    for words in ("attcat", "class 1", "preset official", "states=input", "model bert"):
        assert words in page


def test_warm_is_for_and_cool_against():
    styles = [attrs["style"] for tag, attrs in Reader(to_html(text([["a", "b"]], [[1.0, -1.0]]))).tags if tag == "span"]
    assert f"background:{FOR}" in styles[0]
    assert f"background:{AGAINST}" in styles[1]


def test_all_samples_are_shown_or_the_one_asked_for():
    both = text(
        [["a", "b"], ["c", "[PAD]"]], [[1.0, 2.0], [3.0, 0.0]], valid=torch.tensor([[True, True], [True, False]])
    )
    assert Reader(to_html(both)).spans == ["a", "b", "c"]
    assert Reader(to_html(both, index=1)).spans == ["c"]
    with pytest.raises(OptionError, match="no sample 2"):
        to_html(both, index=2)


def test_words_are_merged_on_request():
    pieces = text([["un", "##able"]], [[1.0, 2.0]])
    assert Reader(pieces.to_html(merge=True)).spans == ["unable"]
    assert Reader(pieces.to_html()).spans == ["un", "##able"]


def test_an_image_is_embedded_with_words_for_those_who_do_not_see_it():
    image = Attribution(torch.rand(2, 6), "gae", targets.logit([3, 4]), "image", grid=(2, 3), size=(10, 15))
    pictures = [attrs for tag, attrs in Reader(image.to_html()).tags if tag == "img"]
    assert [attrs["alt"] for attrs in pictures] == [f"Map of gae for class {c}, sample {c - 3}" for c in (3, 4)]
    for attrs in pictures:
        assert b64decode(attrs["src"].removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")


def test_nothing_is_fetched_from_elsewhere():
    image = Attribution(torch.rand(1, 6), "gae", targets.logit(3), "image", grid=(2, 3), size=(10, 15))
    assert re.findall(r"https?://|<link|<script", to_page(image)) == []


def test_a_text_needs_no_matplotlib(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert Reader(text([["a"]], [[1.0]]).to_html()).spans == ["a"]


def test_a_padded_text_of_a_real_model_is_shown_without_its_padding():
    items = [n for n in golden("b_tiny").inputs if n.startswith("attention_mask/")]
    name = next(n for n in items if (golden("b_tiny").inputs[n] == 0).sum() > 1)
    inputs = golden("b_tiny").item("xxx" + name.split("/")[1])
    found = explain(golden("b_tiny").model, inputs, "attcat")
    assert len(Reader(found.to_html()).spans) == int(inputs["attention_mask"].sum())
