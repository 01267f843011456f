import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from transformers import BertForSequenceClassification, ViTForImageClassification

import vitrail
from vitrail import zoo
from vitrail.errors import InputError, ModelError
from vitrail.models.zoo import files

BUDGET = 30_000_000


@pytest.fixture(scope="module")
def photo():
    return zoo.load("photo")


@pytest.fixture(scope="module")
def sentiment():
    return zoo.load("sentiment")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The shipped files where a test may damage them."""
    shutil.copytree(str(files.WEIGHTS), tmp_path / "weights")
    monkeypatch.setattr(files, "WEIGHTS", tmp_path / "weights")
    return tmp_path / "weights"


def test_both_models_are_plain_hugging_face_models(photo, sentiment):
    assert type(photo.model) is ViTForImageClassification
    assert type(sentiment.model) is BertForSequenceClassification
    assert not photo.model.training
    assert not sentiment.model.training


@pytest.mark.parametrize("name", ["photo", "sentiment"])
def test_the_plain_modules_compute_what_those_of_hugging_face_do(name, request):
    other, own = request.getfixturevalue(name), zoo.load_plain(name)
    given = {
        "photo": lambda: {"pixel_values": own.preprocess(zoo.example("temple"))},
        "sentiment": lambda: dict(own.preprocess(["a fine film", "a dull one that never ends"])),
    }[name]()
    assert not own.model.training
    assert own.class_names == other.class_names
    with torch.no_grad():
        assert_close(own.model(**given).logits, other.model(**given).logits)
    for method in ("consensus", "tokentm", "attcat", "attn_lrp"):
        found, expected = (vitrail.explain(x.model, given, method).scores for x in (own, other))
        assert_close(found, expected, atol=1e-5, rtol=1e-4)  # float32 sums in another order


@pytest.fixture(scope="module")
def plain():
    return {name: zoo.load_plain(name).model for name in ("photo", "sentiment")}


def test_a_mask_with_one_row_for_all_queries_is_not_causal(sentiment, plain):
    read = sentiment.preprocess(["a fine film", "a dull one that never ends"])
    assert "causal" not in str(vitrail.structure(plain["sentiment"], read))


@pytest.mark.parametrize("wrong", [{}, {"input_ids": torch.ones(1, 3).long(), "inputs_embeds": torch.ones(1, 3, 384)}])
def test_the_sentiment_model_takes_ids_or_embeddings(plain, wrong):
    with pytest.raises(InputError, match="one of the two"):
        plain["sentiment"](**wrong)


def test_the_photo_model_names_the_shape_it_takes(plain):
    with pytest.raises(InputError, match=r"\[b, 3, 160, 160\], but these have the shape \[1, 3, 50, 50\]"):
        plain["photo"](torch.zeros(1, 3, 50, 50))


def test_all_weights_are_in_single_precision(photo, sentiment):
    kinds = {weight.dtype for loaded in (photo, sentiment) for weight in loaded.model.state_dict().values()}
    assert kinds - {torch.int64} == {torch.float32}


def test_the_photo_model_has_a_cls_token_and_a_fine_grid(photo):
    config = photo.model.config
    assert config.image_size // config.patch_size >= 14
    assert photo.model.vit.embeddings.cls_token.shape == (1, 1, config.hidden_size)


def test_the_class_names_are_the_models_own_in_order(photo, sentiment):
    assert photo.class_names[0] == "tench"
    assert photo.class_names[-1] == "parachute"
    assert len(photo.class_names) == photo.model.config.num_labels == 10
    assert sentiment.class_names == ("negative", "positive")


def test_all_shipped_files_together_stay_within_the_budget():
    assert sum(path.stat().st_size for path in Path(str(files.WEIGHTS)).rglob("*") if path.is_file()) < BUDGET


def test_loading_twice_gives_equal_and_separate_models(photo):
    other = zoo.load("photo")
    assert other.model is not photo.model
    assert_close(dict(other.model.state_dict()), dict(photo.model.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["photo/model.safetensors", "photo/config.json"])
def test_a_changed_file_is_named(copied, name):
    content = bytearray((copied / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / name).write_bytes(content)
    with pytest.raises(ModelError, match=f"{name} is corrupt or cut short"):
        zoo.load("photo")


def test_a_file_cut_short_is_named(copied):
    path = copied / "sentiment" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1_000_000])
    with pytest.raises(ModelError, match=r"sentiment/model\.safetensors is corrupt or cut short: its 1,000,000 bytes"):
        zoo.load("sentiment")


def test_a_missing_file_is_named(copied):
    (copied / "sentiment" / "vocab.txt").unlink()
    with pytest.raises(ModelError, match=r"vocab\.txt cannot be read"):
        zoo.load("sentiment")


@pytest.mark.parametrize("table", ["", "[]", "{}"])
def test_a_damaged_table_of_hashes_is_reported(copied, table):
    (copied / files.HASHES).write_text(table)
    with pytest.raises(ModelError, match=r"sha256\.json"):
        zoo.load("photo")


def test_weights_of_another_shape_are_refused(copied):
    """A file that is whole but belongs to another version: the hash fits, the names do not."""
    from safetensors.torch import load_file, save_file

    path = copied / "photo" / "model.safetensors"
    weights = load_file(path)
    weights["stranger"] = weights.pop("classifier.bias")
    save_file(weights, path)
    table = json.loads((copied / files.HASHES).read_text())
    table["photo/model.safetensors"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (copied / files.HASHES).write_text(json.dumps(table))
    with pytest.raises(ModelError, match=r"missing \['classifier.bias'\].*unknown \['stranger'\]"):
        zoo.load("photo")


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ModelError, match="Did you mean photo"):
        zoo.load("foto")


@pytest.mark.parametrize("drawn", [True, False])
def test_loading_draws_no_progress_bar_and_leaves_the_setting_as_it_was(capfd, drawn):
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    (logging.enable_progress_bar if drawn else logging.disable_progress_bar)()
    try:
        zoo.load("photo")
        assert logging.is_progress_bar_enabled() is drawn
        assert capfd.readouterr().err == ""
    finally:
        (logging.enable_progress_bar if before else logging.disable_progress_bar)()


def test_the_models_can_be_explained(photo, sentiment):
    from PIL import Image

    seen = vitrail.explain(photo.model, photo.preprocess(Image.new("RGB", (50, 70), "green")), method="gae")
    assert seen.grid == (16, 16)
    read = vitrail.explain(sentiment.model, sentiment.preprocess(["a fine film"]), method="gae")
    assert read.tokens == (("[CLS]", "a", "fine", "film", "[SEP]"),)
