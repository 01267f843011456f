"""Models by name, folder or pair with their preprocessing, and classes by their names, from Python."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from saved_models import save_bert, save_vit

import vitrail
from vitrail.errors import InputError, ModelError, OptionError, TargetError
from vitrail.models.loading import Loaded


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(5)
    save_vit(folder / "vit")
    save_bert(folder / "bert")
    pixels = np.random.default_rng(0).integers(255, size=(80, 90, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "cat.png")
    return folder


def same(*results):
    first, *others = [one.scores for one in results]
    return all(torch.equal(first, one) for one in others)


def test_a_name_a_folder_and_a_loaded_model_are_one_model(place):
    picture = place / "cat.png"
    assert same(
        vitrail.explain("photo", str(picture), "gae", target="church"),
        vitrail.explain(vitrail.load("photo"), picture, "gae", target="church"),
        vitrail.explain("photo", Image.open(picture), "gae", target=4),
    )
    folder = str(place / "vit")
    assert same(
        vitrail.explain(folder, picture, "gae"),
        vitrail.explain(place / "vit", picture, "gae", device="cpu"),
        vitrail.explain(vitrail.load(folder), [picture], "gae"),
    )


def test_a_folder_whose_weights_changed_is_opened_again(tmp_path, place):
    torch.manual_seed(5)
    save_vit(tmp_path / "vit")
    before = vitrail.explain(tmp_path / "vit", place / "cat.png", "gae")
    torch.manual_seed(6)
    save_vit(tmp_path / "vit")
    after = vitrail.explain(tmp_path / "vit", place / "cat.png", "gae")
    assert not same(before, after)
    assert same(after, vitrail.explain(vitrail.load(tmp_path / "vit"), place / "cat.png", "gae"))


def test_a_model_and_its_processor_are_one_model(place):
    from transformers import AutoImageProcessor, AutoModelForImageClassification, AutoTokenizer
    from transformers import AutoModelForSequenceClassification as Sequences

    vit = AutoModelForImageClassification.from_pretrained(place / "vit").eval()
    pair = vit, AutoImageProcessor.from_pretrained(place / "vit")
    assert same(
        vitrail.explain(pair, place / "cat.png", "gae"), vitrail.explain(place / "vit", place / "cat.png", "gae")
    )
    bert = Sequences.from_pretrained(place / "bert").eval(), AutoTokenizer.from_pretrained(place / "bert")
    texts = ["the quick brown fox", "a dull film"]
    assert same(vitrail.explain(bert, texts, "gae"), vitrail.explain(place / "bert", texts, "gae"))
    with pytest.raises(InputError, match="a pair is a model of transformers and its tokenizer"):
        vitrail.explain((vit, 3), place / "cat.png", "gae")


def test_classes_are_targets_by_name_wherever_names_are_known(place):
    from transformers import AutoModelForImageClassification

    names = [name.split(",")[0] for name in vitrail.load(place / "vit").class_names]
    picture = torch.rand(2, 3, 32, 32)
    module = AutoModelForImageClassification.from_pretrained(place / "vit").eval()
    for model in (module, vitrail.load(place / "vit"), place / "vit"):
        found = vitrail.explain(model, picture, "gae", target=[names[1], names[0]])
        assert same(found, vitrail.explain(model, picture, "gae", target=[1, 0]))
    assert same(*vitrail.compare(place / "vit", picture, "gae", targets=[names[1], 1]))
    assert vitrail.explain("sentiment", "A fine film.", "gae", target="positive").target.first == (1,)


def test_a_token_of_a_language_model_is_a_target_by_its_text():
    text, loaded = "Anna: ring. Boris: key. Anna:", vitrail.load("lookup")
    found = vitrail.explain("lookup", text, "gae", target="ring.")
    assert same(found, vitrail.explain(loaded, text, "gae", target="ring."))
    assert found.target.first[0] == loaded.tokenizer.convert_tokens_to_ids("ring.")
    with pytest.raises(TargetError, match="'unheard-of' is no token of the model"):
        vitrail.explain("lookup", text, "gae", target="unheard-of")
    with pytest.raises(TargetError, match=r"'ring' is no token of the model.*Did you mean ring\."):
        vitrail.explain("lookup", text, "gae", target="ring")


def test_a_text_as_target_is_refused_where_no_name_is_known():
    from tiny_models import tiny

    with pytest.raises(TargetError, match="tokenizer of this language model is not known"):
        vitrail.explain(tiny("hf_gpt2"), {"input_ids": torch.tensor([[5, 6, 7]])}, "gae", target="ring.")
    with pytest.raises(TargetError, match="Did you mean parachute"):
        vitrail.explain("photo", torch.rand(1, 3, 160, 160), "gae", target="parachut")


def test_a_question_about_a_text_is_answered_and_explained(tmp_path):
    from saved_models import save_question_bert

    torch.manual_seed(5)
    save_question_bert(tmp_path / "asker")
    loaded = vitrail.load(tmp_path / "asker")
    given = "who sleeps", "the quick brown fox sleeps"
    plain = loaded.text(*given).inputs
    assert same(
        vitrail.explain(loaded, given, "gae"), vitrail.explain(loaded, plain, "gae", vitrail.targets.answer_span())
    )
    with pytest.raises(InputError, match=r"is given \(question, context\), one at a time, and not 1"):
        vitrail.explain(loaded, "who sleeps", "gae")
    with pytest.raises(TargetError, match="answers questions"):
        vitrail.explain(loaded, given, "gae", target="fox")


@pytest.mark.parametrize(
    ("model", "more", "kind", "words"),
    [
        ("phto", {}, ModelError, "Did you mean photo"),
        ("", {}, ModelError, "cannot be the name of a model"),
        ("./no/such/folder", {}, ModelError, "there is no model at"),
        ("photo", {"device": "no-such-device"}, OptionError, "cannot be used"),
    ],
)
def test_a_wrong_name_is_named(model, more, kind, words, place):
    with pytest.raises(kind, match=words):
        vitrail.explain(model, place / "cat.png", "gae", **more)


def test_a_device_is_for_models_given_by_name(place):
    with pytest.raises(InputError, match=r"Move your own: model.to\('cpu'\)"):
        vitrail.explain(vitrail.load("photo"), place / "cat.png", "gae", device="cpu")


def test_precision_and_random_weights():
    assert next(vitrail.load("photo", dtype="bfloat16").model.parameters()).dtype is torch.bfloat16
    with pytest.raises(OptionError, match="weights are real numbers"):
        vitrail.load("photo", dtype="int8")
    with pytest.raises(OptionError, match="comes with its weights"):
        vitrail.load("photo", pretrained=False)


def test_random_weights_of_a_folder(place):
    made = vitrail.load(place / "vit", pretrained=False)
    assert isinstance(made, Loaded)
    own, kept = (dict(one.model.named_parameters()) for one in (made, vitrail.load(place / "vit")))
    assert own.keys() == kept.keys()
    assert any(not torch.equal(own[name], kept[name]) for name in own)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "torchvision/vit_b_16"])
def test_architectures_of_libraries_without_a_download(name, place):
    loaded = vitrail.load(name, pretrained=False)
    assert loaded.image_size == (224, 224)
    assert loaded.find_class("tabby") == 281
    assert loaded.image(Image.open(place / "cat.png")).inputs.shape == (1, 3, 224, 224)


def test_torchvision_pictures_are_prepared_as_its_own_transforms_do(place):
    from torchvision.models import ViT_B_16_Weights

    picture = Image.open(place / "cat.png").convert("RGB").resize((400, 300))
    loaded = vitrail.load("torchvision/vit_b_16", pretrained=False)
    own = ViT_B_16_Weights.DEFAULT.transforms()(picture)[None]
    torch.testing.assert_close(loaded.image(picture).inputs, own, atol=0.03, rtol=0)


@pytest.mark.parametrize(("name", "words"), [("vit_b_17", "Did you mean vit_b_16"), ("fcn_resnet50", "no classifier")])
def test_a_name_that_torchvision_does_not_know_as_a_classifier(name, words):
    with pytest.raises(ModelError, match=words):
        vitrail.load(f"torchvision/{name}", pretrained=False)


def test_a_folder_named_like_a_model_of_the_package_is_given_by_its_path(tmp_path, monkeypatch, place):
    torch.manual_seed(5)
    save_vit(tmp_path / "photo")
    monkeypatch.chdir(tmp_path)
    for given in ("photo", vitrail.load("photo")):
        assert vitrail.explain(given, place / "cat.png", "gae").grid == (16, 16)
    assert vitrail.explain("photo", place / "cat.png", "gae", device="cpu").grid == (16, 16)
    assert vitrail.explain("./photo", place / "cat.png", "gae").grid != (16, 16)


def test_digits_are_a_name_where_a_class_has_it():
    from transformers import ViTConfig, ViTForImageClassification

    names = {0: "1", 1: "2", 2: "zero"}
    config = ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        id2label=names, label2id={name: index for index, name in names.items()},
    )  # fmt: skip
    model, x = ViTForImageClassification(config).eval(), torch.rand(1, 3, 32, 32)
    first = [vitrail.explain(model, x, "gae", target=target).target.first[0] for target in ("1", "2", "0", "zero")]
    assert first == [0, 1, 0, 2]
    for wrong in ("+-1", "--1"):
        with pytest.raises(TargetError, match="no class"):
            vitrail.explain(model, x, "gae", target=wrong)


def test_paths_are_models_too(place):
    assert vitrail.explain(Path(place / "bert"), "the quick fox", "gae").tokens[0]
