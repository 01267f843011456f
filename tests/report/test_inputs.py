import re
from base64 import b64decode, b64encode
from hashlib import sha256
from html import unescape

import numpy as np
import pytest
import torch
from html_reader import Reader
from PIL import Image
from scipy.stats import spearmanr

import vitrail
from vitrail.errors import InputError, MethodError, OptionError, OutputError
from vitrail.plots import report
from vitrail.plots.report import markup

NASTY = "<img src=x onerror=alert(1)>.png"


def page_of(*args, **more):
    return report.of_inputs(*args, **more).to_html()


def test_every_input_is_in_the_summary_and_has_its_own_part(vit, pictures):
    found = Reader(page_of(vit, pictures, ["gae", "attcat"]))
    ids = {attrs["id"] for attrs in found.all("article")}
    assert ids == {"input-1", "input-2", "input-3"}
    assert {f"#{name}" for name in ids} <= {attrs["href"] for attrs in found.all("a")}
    assert [row[0] for row in found.tables[0]] == ["input", *(f"picture_{n:02}.png" for n in range(3))]
    assert [attrs["alt"] for attrs in found.all("img")][1:3] == [
        f"Map of {name} for {found.tables[0][1][3]} over picture_00.png" for name in ("gae", "attcat")
    ]


def test_the_prediction_and_its_probability_are_the_models(vit, pictures):
    made = report.of_inputs(vit, pictures, "gae", targets=[1, None])
    for entry in made.entries:
        picture = Image.open(pictures / entry.name).convert("RGB")
        logits = vit.model(vit.image(picture).inputs["pixel_values"]).logits.softmax(dim=1)[0]
        assert entry.answer == vit.class_name(int(logits.argmax()))
        np.testing.assert_allclose(entry.probability, logits.max().item(), rtol=1e-12)
        np.testing.assert_allclose([row.probability for row in entry.rows], [logits[1].item(), logits.max().item()])
        assert [row.target for row in entry.rows] == ["boxer", entry.answer]


def test_a_broken_file_is_listed_and_the_others_are_explained(vit, pictures):
    (pictures / "cut.png").write_bytes((pictures / "picture_00.png").read_bytes()[:60])
    made = report.of_inputs(vit, pictures, "gae")
    assert len(made.entries) == 3
    assert list(made.broken) == ["cut.png"]
    found = Reader(made.to_html())
    assert found.tables[-1][1][0] == "cut.png"
    assert "cannot be read as an image" in found.tables[-1][1][1]


def test_names_and_sentences_show_as_text_and_never_become_markup(vit, bert, pictures, tmp_path):
    (pictures / "picture_00.png").rename(pictures / NASTY)
    sentence = "<script>alert</script> & film"
    (tmp_path / "<b>.txt").write_text(f"{sentence}\nthe fox", encoding="utf-8")
    for loaded, source, words in ((vit, pictures, NASTY), (bert, tmp_path / "<b>.txt", sentence)):
        page = page_of(loaded, source, ["gae", "attcat"])
        found = Reader(page)
        assert words in found.text
        assert len(found.all("script")) == 1
        assert found.all("b") == [] or all(attrs == {} for attrs in found.all("b"))
        assert not [attrs for _, attrs in found.tags if "onerror" in attrs]
        assert "<script>alert" not in page


def test_fifty_pictures_stay_under_five_megabytes_and_load_nothing(timm_vit, save_pictures, tmp_path):
    folder = save_pictures(tmp_path / "fifty", 50, size=(300, 260), rough=60)
    page = page_of(timm_vit, folder, ["gae", "attcat", "rollout"])
    assert 1e6 < len(page.encode()) < 5e6
    found = Reader(page)
    assert len(found.all("img")) == 50 * 4
    sources = [value for _, attrs in found.tags for name, value in attrs.items() if name in {"src", "href", "srcset"}]
    assert all(source.startswith(("data:image/", "#")) for source in sources)
    assert re.findall(r"https?://|<link|@import|url\(", page) == []
    picture = b64decode(found.all("img")[3]["src"].split(",")[1])
    assert picture[:4] == b"RIFF"


def test_the_policy_lets_only_our_own_script_run(vit, pictures):
    page = page_of(vit, pictures, "gae")
    (policy,) = (a["content"] for a in Reader(page).all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    assert script == markup.script()
    assert f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in unescape(policy)


def test_curves_are_drawn_only_where_they_are_asked_for(vit, pictures):
    assert "<polyline" not in page_of(vit, pictures, ["gae", "rollout"])
    page = page_of(vit, pictures, ["gae", "rollout"], curves=True)
    charts = re.findall(r'<svg viewBox="0 0 360 220".*?</svg>', page)
    assert len(charts) == 1 + 3
    assert all(chart.count("<polyline") == 3 for chart in charts)
    assert "random from" in charts[0]


def test_the_curve_of_a_picture_is_that_of_pixels_turned_black_one_level_after_the_other(vit, pictures):
    (entry,) = report.of_inputs(vit, pictures, "gae", curves=True, limit=1).entries
    (row,) = entry.rows
    inputs = vit.image(Image.open(pictures / entry.name).convert("RGB")).inputs["pixel_values"]
    made = vitrail.explain(vit.model, inputs, "gae")
    heat = made.heatmap()[0].flatten()
    black = vit.image(Image.new("RGB", (32, 32))).inputs["pixel_values"]
    expected = []
    for tenth in range(11):
        changed = inputs.clone()
        gone = heat.topk(32 * 32 * tenth // 10, sorted=False).indices  # decides between equal ones as the metric does
        changed[..., gone // 32, gone % 32] = black[..., gone // 32, gone % 32]
        expected.append(vit.model(changed).logits.softmax(dim=1)[0, int(made.target.first[0])].item())
    np.testing.assert_allclose(row.maps[0].curve, expected, atol=1e-6)  # the preprocessing works in float32
    assert max(expected) - min(expected) > 0.01
    assert row.random[0] == pytest.approx(expected[0], abs=1e-6)


def test_the_curve_of_a_text_is_that_of_deleted_tokens(bert, tmp_path):
    (tmp_path / "one.txt").write_text("the quick brown fox sleeps .")
    (entry,) = report.of_inputs(bert, tmp_path / "one.txt", "attcat", curves=True).entries
    inputs = bert.text("the quick brown fox sleeps .").inputs
    made = vitrail.explain(bert.model, inputs, "attcat")
    order = [i for i in made.scores[0].argsort(descending=True).tolist() if 0 < i < 7]
    expected = []
    for tenth in range(11):
        kept = [i for i in range(8) if i not in order[: round(6 * tenth / 10)]]
        logits = bert.model(input_ids=inputs["input_ids"][:, kept]).logits
        expected.append(logits.softmax(dim=1)[0, int(made.target.first[0])].item())
    np.testing.assert_allclose(entry.rows[0].maps[0].curve, expected, atol=1e-6)  # the metric reads float32 logits


def test_agreement_is_spearmans_correlation_of_the_scores(vit, pictures):
    made = report.of_inputs(vit, pictures, ["gae", "attcat", "rollout"])
    picture = Image.open(pictures / "picture_00.png").convert("RGB")
    maps = vitrail.compare(vit.model, vit.image(picture).inputs, ["gae", "attcat", "rollout"])
    expected = spearmanr(np.stack([a.scores[0].numpy() for a in maps]), axis=1).statistic
    np.testing.assert_allclose(made.entries[0].rows[0].agreement, expected, atol=1e-12)
    mean = np.mean([entry.rows[0].agreement for entry in made.entries], axis=0)
    table = next(t for t in Reader(made.to_html()).tables if t[0] == ["method", "gae", "attcat", "rollout"])
    assert [row[1:] for row in table[1:]] == [[f"{x:.2f}" for x in row] for row in mean]


def test_a_method_that_fails_is_told_beside_those_that_work(vit, pictures):
    made = report.of_inputs(vit, pictures, ["gae", ("rollout", {"start_layer": 9})])
    assert [list(row.failed) for row in made.rows()] == [["rollout"]] * 3
    assert "No map of rollout: start_layer=9" in Reader(made.to_html()).text


def test_an_empty_folder_and_inputs_of_which_none_works_are_refused(vit, bert, tmp_path):
    with pytest.raises(InputError, match="no images in"):
        report.of_inputs(vit, tmp_path)
    with pytest.raises(InputError, match=r"no \.txt files in"):
        report.of_inputs(bert, tmp_path)
    with pytest.raises(InputError, match="no folder or file"):
        report.of_inputs(vit, tmp_path / "absent")
    (tmp_path / "bad.png").write_text("no picture")
    with pytest.raises(InputError, match=r"none of the 1 inputs could be explained; bad\.png: .*cannot be read"):
        report.of_inputs(vit, tmp_path)
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(InputError, match="is empty: write one sentence on each line"):
        report.of_inputs(bert, tmp_path / "blank.txt")


def test_wrong_words_are_refused_at_once(vit, pictures):
    with pytest.raises(MethodError, match="Did you mean gae"):
        report.of_inputs(vit, pictures, "gea")
    with pytest.raises(OptionError, match="at least one input"):
        report.of_inputs(vit, pictures, "gae", limit=0)


def test_a_limit_takes_inputs_at_even_distances(vit, save_pictures, tmp_path):
    folder = save_pictures(tmp_path / "many", 6)
    made = report.of_inputs(vit, folder, "gae", limit=3)
    assert [entry.name for entry in made.entries] == ["picture_00.png", "picture_02.png", "picture_04.png"]


def test_texts_may_be_lines_or_files_and_broken_ones_are_listed(bert, tmp_path):
    (tmp_path / "a.txt").write_text("the quick fox\n\na dull film .\n")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00caf\xe9")
    lines = report.of_inputs(bert, tmp_path / "a.txt", "attcat")
    assert [(e.name, e.text) for e in lines.entries] == [("line 1", "the quick fox"), ("line 3", "a dull film .")]
    files = report.of_inputs(bert, tmp_path, "attcat")
    assert [e.name for e in files.entries] == ["a.txt"]
    assert "is not text in UTF-8" in files.broken["b.txt"]
    (shown,) = lines.entries[0].rows[0].maps
    assert [piece.text for piece in shown.pieces] == ["[CLS]", "the", "quick", "fox", "[SEP]"]


def test_a_language_model_is_explained_but_has_no_curves(place, tmp_path):
    (tmp_path / "prompts.txt").write_text("the quick\n")
    (entry,) = report.of_inputs(str(place / "gpt2"), tmp_path / "prompts.txt", "gae").entries
    assert entry.rows[0].maps[0].pieces
    with pytest.raises(InputError, match="is a language model"):
        report.of_inputs(str(place / "gpt2"), tmp_path / "prompts.txt", curves=True)


def test_the_page_tells_where_everything_comes_from(vit, pictures):
    made = report.of_inputs(vit, pictures, [("attcat", {"preset": "paper"}), "attcat"])
    text = Reader(made.to_html()).text
    for words in (vit.name, "ViTForImageClassification", f"torch {torch.__version__.split('+')[0]}", "preset paper"):
        assert words in text
    assert len(made.methods) == 2
    assert f"{made.made:%Y-%m-%d}" in text


def test_tables_have_headings_and_pictures_words(vit, pictures):
    found = Reader(page_of(vit, pictures, ["gae", "attcat"], curves=True))
    assert all(attrs.get("scope") in {"row", "col"} for attrs in found.all("th"))
    assert all(attrs["alt"] for attrs in found.all("img"))
    assert all("aria-label" in attrs or attrs.get("aria-hidden") == "true" for attrs in found.all("svg"))
    assert found.all("html") == [{"lang": "en"}]


def test_without_its_script_the_page_hides_only_the_filter(vit, pictures):
    found = Reader(page_of(vit, pictures, "gae"))
    assert [attrs["id"] for _, attrs in found.tags if "hidden" in attrs] == ["controls"]


def test_a_page_is_written_whole_or_not_at_all(vit, pictures, tmp_path):
    made = report.of_inputs(vit, pictures, "gae")
    path = tmp_path / "page.html"
    path.write_text("old")
    assert made.save(path).read_text(encoding="utf-8") == made.to_html()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html", "pictures"]
    with pytest.raises(OutputError, match="cannot be written"):
        made.save(tmp_path / "absent" / "page.html")
