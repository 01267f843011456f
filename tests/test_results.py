"""What one does with a result: choose samples, rank tokens, make tables, show it and write it to files."""

import doctest
import sys

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import vitrail
from vitrail import Attribution, Comparison, targets
from vitrail.attribution import SeenPictures
from vitrail.errors import MissingExtraError, NoSampleError, OptionError, OutputError
from vitrail.plots import screen
from vitrail.plots.tables import token_texts

TOKENS = (("[CLS]", "a", "film", "[SEP]"), ("[CLS]", "dull", "[SEP]", "[PAD]"))


def text(**more):
    """Two sentences, the second with padding; the first token holds what it carries to itself."""
    fields = {
        "scores": torch.tensor([[9.0, 0.5, -2.0, 1.0], [8.0, 3.0, 0.25, 0.0]], dtype=torch.float64),
        "method": "attcat",
        "target": targets.logit([0, 1]),
        "kind": "text",
        "signed": True,
        "tokens": TOKENS,
        "valid": torch.tensor([[True] * 4, [True, True, True, False]]),
        "readout": torch.tensor([0, 0]),
        "layers": torch.arange(24, dtype=torch.float64).reshape(2, 3, 4),
        "provenance": {"classes": ["good", "bad"], "probability": [0.9, 0.75], "parts": ["one", "two"], "seconds": 1.5},
    }
    return Attribution(**{**fields, **more})


def image(**more):
    scores = torch.tensor([[0.0, 1.0, 2.0, 3.0, 5.0, 4.0]] * 2, dtype=torch.float64)
    fields = {"method": "gae", "target": targets.logit(3), "kind": "image", "grid": (2, 3), "size": (8, 12)}
    return Attribution(scores, **{**fields, **more})


def test_a_sample_of_a_batch_is_a_batch_of_one():
    found = text()[1]
    assert len(found) == 1
    assert_close(found.scores, text().scores[1:])
    assert found.tokens == TOKENS[1:]
    assert found.title() == "bad, 75.0%"
    assert (found.layers.shape, found.valid.shape, found.readout.tolist()) == ((1, 3, 4), (1, 4), [0])
    assert found.provenance["seconds"] == 1.5
    assert text()[-1].target == found.target == targets.logit([1])


def test_samples_are_chosen_by_slices_and_come_one_by_one():
    assert [one.title() for one in text()] == ["good, 90.0%", "bad, 75.0%"]
    assert [one.title() for one in text()[::-1]] == ["bad, 75.0%", "good, 90.0%"]
    assert_close(text()[::-1].scores, text().scores.flip(0))
    assert text()[:1].equals(text()[0])
    assert text()[np.int64(1)].equals(text()[1])


def test_each_stream_and_picture_goes_with_its_sample():
    seen = SeenPictures(pictures=("first", "second"))
    found = text(streams={"image": image(seen=seen), "text": text()}, seen=seen)[1]
    assert (found.seen(0), found.streams["image"].seen(0)) == ("second", "second")
    assert found[0].seen(0) == "second"
    assert len(found.streams["image"]) == len(found.streams["text"]) == 1


@pytest.mark.parametrize("wrong", [2, -3, slice(5, None), True])
def test_a_sample_that_is_not_there_is_refused(wrong):
    with pytest.raises(NoSampleError, match=r"no sample|none of 2 samples") as error:
        text()[wrong]
    assert isinstance(error.value, IndexError)


def test_one_sample_is_saved_and_read_back(tmp_path):
    one = text()[1]
    for name in ("x.json", "x.npz"):
        assert Attribution.load(one.save(tmp_path / name)).equals(one)


def test_the_strongest_tokens_come_first_without_padding_and_without_the_readout():
    assert text().top(2) == [("film", -2.0, 2), ("[SEP]", 1.0, 3)]
    assert [token.text for token in text().top(10, index=1)] == ["dull", "[SEP]"]
    assert image().top(2) == [("row 1, column 1", 5.0, 4), ("row 1, column 2", 4.0, 5)]


def test_what_tokens_carry_to_themselves_is_not_ranked():
    own = torch.tensor([[0.0, 0.0, 0.0, 0.0, 5.0, 0.0]] * 2, dtype=torch.float64)
    assert image(own=own).top(1)[0].position == 5


@pytest.mark.parametrize("wrong", [0, -1, True])
def test_ranking_needs_a_number(wrong):
    with pytest.raises(OptionError, match="a whole number from 1 on"):
        text().top(wrong)


def test_tokens_are_named_by_their_text():
    assert token_texts(["The", "Ġcapital", "Ġof"]) == ["The", " capital", " of"]
    assert token_texts(["▁The", "▁end"]) == [" The", " end"]
    assert token_texts(["[CLS]", "play", "##ing"]) == ["[CLS]", "play", "##ing"]


def test_scores_are_an_array():
    assert isinstance(text().numpy(), np.ndarray)
    np.testing.assert_array_equal(text().numpy(), text().scores.numpy())
    assert Attribution(torch.rand(1, 2, requires_grad=True), "gae", targets.logit(0), "text").numpy().shape == (1, 2)


def test_a_table_has_a_row_for_each_sample_and_token():
    table = text().to_dataframe()
    assert list(table.columns) == ["sample", "target", "position", "token", "score", "own"]
    assert table["token"].tolist() == ["[CLS]", "a", "film", "[SEP]", "[CLS]", "dull", "[SEP]"]
    assert table["target"].tolist() == ["good"] * 4 + ["bad"] * 3
    assert table["score"].tolist() == [0.0, 0.5, -2.0, 1.0, 0.0, 3.0, 0.25]
    scores = text().scores[text().valid].numpy()
    np.testing.assert_array_equal(table["score"] + table["own"], scores)


def test_a_table_of_pictures_has_rows_and_columns():
    table = image().to_dataframe()
    assert list(table.columns) == ["sample", "target", "position", "row", "column", "score", "own"]
    assert table.pivot(index=["sample", "row"], columns="column", values="score").to_numpy()[1].tolist() == [3, 5, 4]


def test_the_table_of_several_streams_and_methods_names_them():
    several = text(streams={"encoder": text(), "decoder": text()})
    assert several.to_dataframe()["stream"].value_counts().to_dict() == {"encoder": 7, "decoder": 7}
    both = Comparison([image(), image(method="rollout")]).to_dataframe()
    assert both["method"].value_counts().to_dict() == {"gae": 12, "rollout": 12}


def test_without_pandas_the_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        text().to_dataframe()


def test_a_sentence_is_shown_in_the_terminal(capsys):
    text().show(index=1, title="two [of] them")
    assert capsys.readouterr().out.split() == ["two", "[of]", "them", "[CLS]", "dull", "[SEP]"]


def test_without_a_screen_a_picture_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OutputError, match=r"no screen .* \.save\('map.png'\)"):
        image().show()


def test_a_picture_is_shown_in_a_window_or_below_the_cell(monkeypatch):
    shown = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("PIL.ImageShow.show", lambda picture: shown.append(picture.size) or True)
    image().show(title="")
    monkeypatch.setattr(screen, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", shown.append)
    text().show()
    assert shown[0][0] > 100
    assert shown[1]._repr_png_().startswith(b"\x89PNG")


def test_a_file_shows_the_sample_and_style_that_were_chosen(tmp_path):
    svg = text().save(tmp_path / "x.svg", index=1, title="Second").read_text()
    assert svg.startswith("<?xml")
    assert "attcat: bad" in svg
    with pytest.raises(OptionError, match="no style 'colour'"):
        text().save(tmp_path / "x.svg", colour=1)
    with pytest.raises(OptionError, match=r"\.json file holds all samples"):
        text().save(tmp_path / "x.json", index=1)
    with pytest.raises(OptionError, match="no style 'title'"):
        text().save(tmp_path / "x.html", title="")


def test_a_comparison_is_saved_as_a_picture(tmp_path):
    both = Comparison([image(), image(method="rollout")])
    assert both.save(tmp_path / "x.svg", index=1).read_text().startswith("<?xml")
    with pytest.raises(OutputError, match="a figure is saved as"):
        both.save(tmp_path / "x.json")


def test_labels_name_classes_and_never_the_kind_of_number():
    assert image().title() == "class 3"
    assert repr(image()) == "Attribution(gae, class 3, 2 x 2x3 patches, preset='recommended')"
    assert image(target=targets.difference(3, 5)).title() == "class 3 rather than class 5"
    assert image(target=targets.next_token(7)).title() == "token 7"
    assert image(target=targets.logit(7, position=2)).title() == "class 7 at token 2"
    assert text().titles == "good / bad"
    many = Attribution(torch.rand(6, 4), "gae", targets.logit(range(6)), "text")
    assert many.titles == "class 0 / class 1 / class 2 / 3 more"


def test_the_next_token_of_a_language_model_is_named_by_its_text():
    from vitrail.models.loading import load

    found = vitrail.explain(load("lookup"), "Anna: ring. Anna:", "gae")
    assert found.title().startswith(("'", '"'))


def test_the_examples_in_the_docstrings_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner()
    for one in (Attribution, Comparison):
        for example in doctest.DocTestFinder(recurse=True).find(one, globs={}):
            assert runner.run(example).failed == 0, example.name
    assert runner.summarize(verbose=False).attempted >= 14


@pytest.mark.parametrize("made", [text(), image()], ids=["text", "image"])
def test_the_colour_bar_is_left_out_on_request(made):
    with_bar, without = made.plot(), made.plot(colorbar=False)
    assert len(without.axes) == len(with_bar.axes) - 1
    assert without.get_size_inches()[1] < with_bar.get_size_inches()[1]
