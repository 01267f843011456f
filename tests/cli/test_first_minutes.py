"""What a newcomer meets first: results in a pipe, notices, and the likeliest first calls."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import vitrail
from vitrail import Attribution, targets
from vitrail.apps.cli.options import check_model, check_presets, read_text
from vitrail.apps.cli.session import ExplainedTarget
from vitrail.errors import InputError, ModelError
from vitrail.methods import METHODS
from vitrail.models.loading.images import LONGEST_RATIO, within_ratio


def test_json_goes_to_stdout_alone_with_a_line_for_each_map(run, tmp_path):
    result = run("explain", "cat.png", "-m", "vit", "--method", "gae", "--method", "rollout", "-o", "-")
    assert (result.exit_code, result.stderr) == (0, "")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["method"] for one in found] == ["gae", "rollout"]
    (tmp_path / "map.json").write_text(result.stdout.splitlines()[0])
    assert Attribution.load(tmp_path / "map.json").method == "gae"


def test_a_pipe_gets_numbers_between_tabs(run):
    result = run("explain", "a dull film", "-m", "bert", "--method", "gae")
    _, tokens = result.stdout.split("\n\n")
    head, *rows = [line.split("\t") for line in tokens.splitlines()]
    assert head == ["method", "target", "token", "score"]
    assert all(len(row) == 4 and np.isfinite(float(row[3])) for row in rows)


def test_a_demonstration_model_that_is_unsure_names_its_classes(run, tmp_path):
    noise = np.random.default_rng(0).integers(256, size=(200, 300, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    result = run("explain", tmp_path / "noise.png", "-m", "photo", "--method", "rollout")
    assert result.exit_code == 0
    assert "This demonstration model knows 10 classes (tench, " in result.stderr
    assert "pass another model with --model" in result.stderr
    sure = run("explain", vitrail.zoo.example(), "-m", "photo", "--method", "rollout")
    assert sure.stderr == ""


def test_a_sentence_that_ends_in_a_file_name_is_a_sentence():
    assert read_text("I saved it to notes.txt") == "I saved it to notes.txt"


def test_a_closed_stdin_is_named(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="stdin is closed"):
        read_text("-")


@pytest.mark.parametrize("name", ["phto", "Photo", "sentimnt", "photo "])
def test_a_misspelt_embedded_model_is_answered_without_other_libraries(name):
    with pytest.raises(ModelError, match=r"Did you mean (photo|sentiment)"):
        check_model(name)


@pytest.mark.parametrize("name", ["photo", "vit_tiny_patch16_224", "owner/phto", "gpt2"])
def test_other_names_pass(name):
    check_model(name)


def test_a_heading_has_the_probability_of_its_class():
    made = Attribution(torch.rand(1, 6), "gae", targets.logit(1), "image", grid=(2, 3), size=(32, 48))
    assert ExplainedTarget("church", [made]).heading == "church"
    known = Attribution(**{**vars(made), "provenance": {"probability": [0.9321]}})
    assert ExplainedTarget("church", [known]).heading == "church, 93.2%"


def test_a_model_that_knows_its_preprocessing_takes_what_people_pass_first():
    photo, path = vitrail.zoo.load("photo"), vitrail.zoo.example()
    picture = Image.open(path)
    expected = vitrail.explain(photo.model, photo.preprocess(picture), "rollout").scores
    for model, given in (
        (photo, path), (photo, str(path)), (photo, picture), (photo, np.asarray(picture)), ("photo", [picture]),
        (photo, photo.preprocess(str(path))),
    ):  # fmt: skip
        assert_close(vitrail.explain(model, given, "rollout").scores, expected)


def test_the_ends_of_a_strip_are_cut_off_before_it_is_resized():
    assert within_ratio(Image.new("RGB", (20_000, 2))).size == (2 * LONGEST_RATIO, 2)
    assert within_ratio(Image.new("RGB", (2, 20_000))).size == (2, 2 * LONGEST_RATIO)
    assert within_ratio(Image.new("RGB", (30, 20))).size == (30, 20)


@pytest.mark.parametrize("preset", sorted({"recommended", *(p for entry in METHODS.values() for p in entry.presets)}))
def test_every_preset_of_a_method_may_be_named_where_no_method_is(preset):
    check_presets((), preset)
