"""The demo on the embedded models: its files, and models that are sure of what they see."""

import re

import pytest
from browsing import chromium, needs_browser, sideways, visits

from vitrail.apps import demo
from vitrail.errors import OutputError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return demo.run(tmp_path_factory.mktemp("demo") / "new" / "folder")


def test_two_sheets_the_photographs_and_one_page_are_written(made):
    names = ["pictures.png", "sentences.png", "golf_ball.jpg", "temple.jpg", "index.html"]
    assert [path.name for path in made.paths] == names
    assert all(path.stat().st_size > 10_000 for path in made.paths)


def test_the_models_are_sure_of_the_pictures(made):
    names, probabilities = zip(*(one.title.split(", ") for one in made.pictures), strict=True)
    assert names == ("golf ball", "church")
    assert all(float(p.rstrip("%")) > 80 for p in probabilities)


def test_the_sentences_are_told_apart(made):
    assert [one.title.split(",")[0] for one in made.sentences] == ["positive", "negative", "positive"]


def test_at_least_eight_methods_explain_each(made):
    assert min(len(one.attributions) for one in made.pictures + made.sentences) >= 8


def test_the_page_needs_nothing_beside_it(made):
    page = made.paths[-1].read_text()
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert page.count("<img") == page.count("alt=") == 2
    assert "CC BY 2.0" in page


def test_an_answer_is_explained_and_shown_on_the_page(made):
    assert made.answer.text == "lamp."
    assert made.answer.cite(1)[0][0].passage.text.strip() == "Clara: lamp."
    page = made.paths[-1].read_text()
    assert page.count('class="vt-answer"') == 1
    shaded = re.findall(r'data-column="\d+" style="background:rgba\([\d,]+,([\d.]+)\)">([^<]*)</span>', page)
    assert [words for _, words in shaded] == [" Clara:", " lamp."]  # no other sentence changes the answer


def test_a_folder_that_cannot_be_made_is_an_error_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be made"):
        demo.run(tmp_path / "file" / "folder")


@needs_browser
@pytest.mark.browser
def test_the_answer_is_shown_by_pointer_and_keyboard_under_the_pages_own_policy(made, tmp_path):
    made.answer.save(tmp_path / "answer.html")
    with chromium() as browser, visits(browser, "file:") as open_page:
        for path in (made.paths[-1], tmp_path / "answer.html"):
            page = open_page()
            page.goto(path.as_uri())
            assert page.locator(".vt-answer .cited li").first.inner_text().endswith("Clara: lamp.")
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.className") == "unit"
            assert page.locator(".vt-answer .unit[aria-pressed=true]").count() == 1
            assert sideways(page) <= 0
