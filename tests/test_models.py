import json
import shutil
from pathlib import Path, PurePath

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from saved_models import ARCH, save_bert, save_gpt2, save_headless_bert, save_question_bert, save_timm, save_vit
from torch.testing import assert_close

from vitrail.api.many import picture_batches
from vitrail.apps.cli.explain import _readable, read_document
from vitrail.apps.cli.options import looks_like_file, read_text
from vitrail.apps.web import Limits
from vitrail.apps.web.explaining import read_picture
from vitrail.errors import InputError, ModelError, TargetError
from vitrail.evaluate.bench.opened import read_picture_folder
from vitrail.evaluate.data.labelled import IMAGENETTE, find_pictures
from vitrail.evaluate.data.segmented import read_text_layout
from vitrail.models.folders import PICTURES, images_in
from vitrail.models.loading import find_class, find_token, load
from vitrail.models.loading.images import FORMATS, View, open_image
from vitrail.models.taking import as_image
from vitrail.models.texts import read_text as read_text_file
from vitrail.plots.report.explaining import items_of
from vitrail.tools.audit import read_folders

NAMES = ["tench, Tinca tinca", "crane", "tabby, tabby cat", "crane"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_timm(folder)
    for save in (save_bert, save_question_bert, save_headless_bert, save_gpt2, save_vit):
        save(folder / save.__name__)
    return folder


@pytest.fixture(scope="module")
def photo():
    noise = np.random.default_rng(0).integers(256, size=(9, 13, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((300, 211))


def test_weights_of_an_architecture_give_their_own_number_of_classes(models):
    loaded = load(str(models / "weights.safetensors"), arch=ARCH)
    assert (loaded.classes, loaded.kind, loaded.class_names) == (10, "image", None)
    assert not loaded.model.training


def test_a_thousand_classes_are_called_as_imagenet_calls_them(tmp_path):
    loaded = load(str(save_timm(tmp_path, classes=1000)), arch=ARCH)
    assert loaded.class_names is not None
    assert find_class("Tiger Cat", loaded.class_names, 1000) == 282
    assert loaded.class_name(281) == "tabby"


@pytest.mark.parametrize("size", [(300, 211), (211, 300), (160, 160), (37, 41), (20, 400)])
@pytest.mark.parametrize("mode", ["center", "squash", "border"])
def test_the_view_equals_timms_own_transform(photo, size, mode):
    image = photo.resize(size)
    config = {"input_size": (3, 160, 160), "crop_pct": 0.9, "interpolation": "bicubic", "mean": (0.5, 0.4, 0.3)}
    config |= {"std": (0.5, 0.2, 0.1), "crop_mode": mode}
    reference = timm.data.create_transform(**config, is_training=False)
    view = View(config.pop("input_size")[1:], **config)
    assert_close(view(image).inputs, reference(image)[None], rtol=0, atol=0)


def test_the_picture_is_what_the_model_saw(models, photo):
    loaded = load(str(models / "weights.safetensors"), arch=ARCH)
    for squash in (False, True):
        sample = loaded.image(photo, squash=squash)
        view = loaded.preprocess
        again = torch.from_numpy(np.array(sample.picture)).permute(2, 0, 1)[None] / 255
        mean, std = (torch.tensor(x)[:, None, None] for x in (view.mean, view.std))
        assert_close(sample.inputs * std + mean, again, rtol=0, atol=1e-6)  # float32 pixels


@pytest.mark.parametrize("name", ["weights.safetensors", "save_vit", "photo"])
def test_pictures_in_0_to_1_become_the_inputs_and_logits_of_the_models_own_preprocessing(models, photo, name):
    known = models / name
    loaded = load(known if known.exists() else name, arch=ARCH if known.suffix else None)
    sample = loaded.image(photo, squash=True)
    inputs = sample.inputs if isinstance(sample.inputs, torch.Tensor) else sample.inputs["pixel_values"]
    pictures = torch.from_numpy(np.array(sample.picture)).permute(2, 0, 1)[None].double() / 255
    assert_close(loaded.normalise(pictures), inputs.double(), atol=1e-5, rtol=0)  # the inputs are of single precision
    assert_close(loaded.pictures(inputs), pictures.float(), atol=1e-5, rtol=0)
    given = pictures.float().requires_grad_()
    logits = loaded.logits(given)
    own = loaded.model(inputs)
    assert_close(logits, getattr(own, "logits", own), atol=1e-4, rtol=0)  # as above, after some layers
    assert bool(torch.autograd.grad(logits[0, 0], given)[0].any())


def test_squashing_keeps_the_border_that_cropping_loses(models):
    loaded = load(str(models / "weights.safetensors"), arch=ARCH)
    image = Image.new("RGB", (400, 100), "black")
    image.paste("white", (0, 0, 40, 100))
    assert np.array(loaded.image(image).picture).max() == 0
    assert np.array(loaded.image(image, squash=True).picture)[:, 0].min() == 255


def test_vit_tiny_is_normalised_as_its_training_was():
    config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg("vit_tiny_patch16_224").to_dict())
    assert config["mean"] == config["std"] == (0.5, 0.5, 0.5)


def test_a_huggingface_picture_is_the_unnormalised_input(models, photo):
    loaded = load(str(models / "save_vit"))
    sample = loaded.image(photo, squash=True)
    expected = photo.resize((32, 32))
    assert_close(np.array(sample.picture), np.array(expected))
    assert loaded.class_names == ("tabby, tabby cat", "boxer", "crane", "Crane")


@pytest.mark.parametrize(
    ("folder", "task", "classes"), [("save_bert", "sequence", 3), ("save_question_bert", "question", 2)]
)
def test_the_task_follows_the_architecture(models, folder, task, classes):
    loaded = load(str(models / folder))
    assert (loaded.task, loaded.kind, loaded.classes) == (task, "text", classes)


def test_a_language_model_has_its_tokens_as_classes(models):
    loaded = load(str(models / "save_gpt2"))
    assert loaded.classes == 13
    assert loaded.class_name(find_token("fox", loaded.tokenizer, loaded.classes)) == "'fox'"
    with pytest.raises(TargetError, match="2 tokens"):
        find_token("fox man", loaded.tokenizer, loaded.classes)


def test_a_model_without_logits_is_refused(models):
    with pytest.raises(ModelError, match=r"BertModel.*ForSequenceClassification"):
        load(str(models / "save_headless_bert"))


def test_a_head_that_the_weights_lack_is_not_filled_at_random(tmp_path):
    folder = save_headless_bert(tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForSequenceClassification"]}))
    with pytest.raises(ModelError, match=r"lack 2 tensors.*classifier\.bias"):
        load(str(folder))


def test_weights_that_are_pickles_are_refused(tmp_path):
    with pytest.raises(ModelError, match="pickle"):
        load("weights.pth")
    folder = save_bert(tmp_path / "bert")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="could not be loaded from this folder"):
        load(str(folder))


def test_an_architecture_must_be_named_be_known_and_fit(models):
    path = str(models / "weights.safetensors")
    with pytest.raises(ModelError, match="--arch"):
        load(path)
    with pytest.raises(ModelError, match="Did you mean test_vit"):
        load(path, arch="test_vitt")
    with pytest.raises(ModelError, match="does not fit vit_tiny_patch16_224"):
        load(path, arch="vit_tiny_patch16_224")
    with pytest.raises(ModelError, match=r"belongs to a \.safetensors file"):
        load(str(models / "save_bert"), arch=ARCH)
    with pytest.raises(ModelError, match="give the folder"):
        load(str(models / "save_vit" / "model.safetensors"))


def test_a_name_that_nobody_has_is_one_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="'no-such/model' could not be loaded") as caught:
        load("no-such/model")
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="there is no model at"):
        load("./no-such-folder")


def test_any_synonym_names_a_class_in_any_case():
    assert find_class("TABBY cat", NAMES, 4) == find_class("tabby_cat", NAMES, 4) == find_class("2", NAMES, 4) == 2


@pytest.mark.parametrize(
    ("wanted", "words"),
    [("crane", r"1 \(crane\); 3 \(crane\)"), ("tabbi", "Did you mean tabby"), ("4", "0 to 3"), ("-1", "0 to 3")],
)
def test_a_class_that_is_not_there_is_an_error_that_helps(wanted, words):
    with pytest.raises(TargetError, match=words):
        find_class(wanted, NAMES, 4)


def test_classes_without_names_go_by_index():
    with pytest.raises(TargetError, match="no names"):
        find_class("cat", None, 4)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "YCbCr"])
def test_every_mode_of_image_becomes_rgb(tmp_path, mode):
    grey = np.linspace(0, 255, 12 * 7).reshape(7, 12).round()
    image = Image.fromarray(grey.astype(np.uint8))
    deep = Image.fromarray((grey * 257).astype(np.uint16))
    # Pillow 12.3 cannot read back the TIFF it writes of YCbCr, which is how every JPEG is kept.
    name, how = {"CMYK": ("x.tif", {}), "YCbCr": ("x.jpg", {"quality": 100, "subsampling": 0})}.get(mode, ("x.png", {}))
    path = tmp_path / name
    (deep if mode == "I;16" else image.convert(mode)).save(path, **how)
    found = open_image(path)
    assert (found.mode, found.size) == ("RGB", (12, 7))
    if mode != "1":
        assert np.abs(np.asarray(found)[..., 0] - grey).max() <= 3  # colour spaces round


def test_transparent_parts_are_white(tmp_path):
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert np.asarray(open_image(tmp_path / "clear.png")).min() == 255


def test_a_photo_taken_upright_is_shown_upright(tmp_path):
    image = Image.new("RGB", (12, 7))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)
    assert open_image(tmp_path / "turned.jpg").size == (7, 12)


def test_bombs_and_broken_files_are_refused(tmp_path, monkeypatch):
    Image.new("RGB", (40, 40)).save(tmp_path / "large.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "large.png").read_bytes()[:60])
    with pytest.raises(InputError, match="cannot be read as an image"):
        open_image(tmp_path / "cut.png")
    with pytest.raises(InputError, match="there is no image"):
        open_image(tmp_path / "absent.png")
    monkeypatch.setattr("vitrail.models.loading.images.MOST_PIXELS", 1000)
    with pytest.raises(InputError, match="40 x 40 pixels, but at most 1,000 are read"):
        open_image(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)  # Pillow raises above twice its limit
    with pytest.raises(InputError, match="is too large to open: at most 1,000 pixels are read"):
        open_image(tmp_path / "large.png")


@pytest.mark.parametrize(("name", "kind"), [("photo", "image"), ("sentiment", "text")])
def test_the_embedded_models_are_loaded_by_name(name, kind):
    from vitrail.tools.doctor import examine

    loaded = load(name)
    assert loaded.kind == kind
    assert len(loaded.class_names) == loaded.classes
    assert examine(loaded.model, loaded.example().inputs).passed


MIXED = ("b.JPEG", "c.png", "d.webp", "e.bmp", "f.gif", "g.tif", "a.jpg", "._a.jpg", ".hidden.png")


@pytest.fixture
def mixed(tmp_path):
    """A folder of ImageNet with pictures, and with what is none: a text, hidden files, a folder and a broken link."""
    folder = tmp_path / "synsets" / "n01440764"
    folder.mkdir(parents=True)
    for name in MIXED:
        Image.new("RGB", (8, 6), "red").save(folder / name)
    (folder / "h.txt").write_text("no picture")
    (folder / "x.png").mkdir()
    (folder / "y.png").symlink_to("y.png")
    return folder


def of_text_layout(folder, root):
    (root / "images").mkdir()
    (root / "images" / "val").symlink_to(folder)
    for name in ("val", ".ipynb_checkpoints"):
        (root / "labels" / name).mkdir(parents=True)
    return [read_text_layout(root, None, "coco")[i].open_image.source.name for i in range(7)]


def zipped(folder, root):
    return Path(shutil.make_archive(str(root / "packed"), "zip", folder))


DOORS = {
    "explain": lambda folder, root: [path.name for path in images_in(folder)],
    "parquet": lambda folder, root: [path.name for path in _readable(folder)[0]],
    "explain_many": lambda folder, root: [name for one in picture_batches(folder, np.array) for name in one.names],
    "report": lambda folder, root: [name for name, _ in items_of(folder, load("photo"), squash=False, limit=None)],
    "bench": lambda folder, root: read_picture_folder(folder).keys,
    "audit": lambda folder, root: [path.name for path, _ in read_folders(folder.parent, IMAGENETTE).pictures],
    "synsets": lambda folder, root: [path.name for path in find_pictures(folder.parent).files],
    "text layout": of_text_layout,
    "archive": lambda folder, root: [
        PurePath(file.name).name for file in find_pictures(zipped(folder.parent, root)).files
    ],
}


@pytest.mark.parametrize("door", DOORS)
def test_a_folder_has_the_same_pictures_through_every_door(door, mixed, tmp_path):
    assert list(DOORS[door](mixed, tmp_path)) == sorted(name for name in MIXED if name[0] != ".")


@pytest.mark.parametrize("door", ["explain", "explain_many", "bench", "parquet"])
def test_a_folder_that_is_missing_empty_or_none_is_refused_in_the_same_words(door, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.png").touch()
    for name, words in (
        ("absent", f"there is no folder of pictures at {tmp_path / 'absent'}."),
        ("empty", f"there are no images in {tmp_path / 'empty'}."),
        ("file.png", f"{tmp_path / 'file.png'} is no folder."),
    ):
        with pytest.raises(InputError) as caught:
            DOORS[door](tmp_path / name, tmp_path)
        assert str(caught.value) == words


def test_the_endings_are_those_that_pillow_knows_of_the_formats_that_are_opened():
    Image.init()
    assert {ending for ending, form in Image.registered_extensions().items() if form in FORMATS} == PICTURES
    assert all(looks_like_file(f"absent{ending}") for ending in PICTURES)


TEXT_DOORS = {
    "explain": lambda path: read_text(str(path)),
    "answer": read_document,
    "report": lambda path: items_of(path.parent, load("sentiment"), squash=False, limit=None)[0][1]()[1],
    "rationales": lambda path: read_text_file(path, key="").strip(),
}


@pytest.mark.parametrize("door", TEXT_DOORS)
def test_a_text_is_read_the_same_through_every_door(door, tmp_path):
    path = tmp_path / "one.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree")
    assert TEXT_DOORS[door](path) == "one\ntwo\nthree"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"one\.txt is not text in UTF-8: byte 3 cannot be read"):
        TEXT_DOORS[door](path)


PICTURE_DOORS = {
    "explain": open_image,
    "many": lambda path: picture_batches([path], np.array)[0].load(),
    "bench": lambda path: read_picture_folder(path.parent)[0].image,
    "page": lambda path: read_picture(path.read_bytes(), Limits()),
    "python": lambda path: as_image(Image.open(path)),
}


@pytest.mark.parametrize("door", PICTURE_DOORS)
def test_a_picture_that_is_cut_short_is_refused_in_the_same_words(door, tmp_path):
    Image.effect_noise((64, 64), 90).save(tmp_path / "one.png")
    whole = (tmp_path / "one.png").read_bytes()
    (tmp_path / "one.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cannot be read as an image: image file is truncated"):
        PICTURE_DOORS[door](tmp_path / "one.png")
