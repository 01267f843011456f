import pytest
import torch

from vitrail import Attribution, targets
from vitrail.errors import MissingExtraError
from vitrail.plots import terminal
from vitrail.plots.canvas import AGAINST, FOR


def text(tokens, scores, **fields):
    made = {"method": "attcat", "target": targets.logit(1), "kind": "text", "signed": True, **fields}
    return Attribution(torch.tensor([scores], dtype=torch.float64), tokens=(tuple(tokens),), **made)


def test_the_sentence_reads_as_it_was_written():
    valid = torch.tensor([[True, True, True, False]])
    assert terminal(text(["▁un", "able", "▁to", "<pad>"], [1.0, 2.0, 3.0, 0.0], valid=valid)).plain == "unable to"
    assert terminal(text(["un", "##able", "to"], [1.0, 2.0, 3.0])).plain == "un ##able to"
    assert terminal(text(["un", "##able", "to"], [1.0, 2.0, 3.0]), merge=True).plain == "unable to"


def test_warm_is_for_cool_against_and_zero_has_no_shade():
    found = terminal(text(["good", "bad", "the"], [1.0, -1.0, 0.0]))
    styles = {found.plain[span.start : span.end]: str(span.style) for span in found.spans if str(span.style)}
    assert styles == {"good": f"#ffffff on {FOR}", "bad": f"#ffffff on {AGAINST}"}


def test_square_brackets_are_no_markup():
    assert terminal(text(["[CLS]", "[bold]"], [1.0, 2.0])).plain == "[CLS] [bold]"


def test_without_rich_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rich.text", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vitrail\[cli\]'"):
        terminal(text(["a"], [1.0]))
