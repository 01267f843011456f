import io
import json
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from training import photo
from training.images import UNLABELLED, Photos, read_archive, read_folder
from training.vit import load_teacher, tokens_at
from vitrail.evaluate.data.labelled import IMAGENETTE_SYNSETS

WIDTH, DEPTH = 64, 2


def picture(seed, size=40):
    noise = np.random.default_rng(seed).integers(0, 255, (size, size + 6, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def data(tmp_path):
    """Two training photographs of each class and one to validate, all noise, and two unlabelled."""
    for name, count in (("train", 2), ("val", 1)):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            for number, wnid in enumerate(IMAGENETTE_SYNSETS):
                for copy in range(count):
                    archive.writestr(f"{wnid}/{name}_{wnid}_{copy}.png", picture(10 * number + copy))
    (tmp_path / "more").mkdir()
    for name in ("fresh", "val_n01440764_0"):
        (tmp_path / "more" / f"{name}.png").write_bytes(picture(99))
    return tmp_path


def teacher_weights():
    """A ViT with 16-pixel patches under the names of timm."""
    shapes = {
        "cls_token": (1, 1, WIDTH),
        "pos_embed": (1, 1 + 4 * 4, WIDTH),
        "patch_embed.proj.weight": (WIDTH, 3, 16, 16),
        "patch_embed.proj.bias": (WIDTH,),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
        "head.weight": (1000, WIDTH),
        "head.bias": (1000,),
    }
    for n in range(DEPTH):
        for part, (rows, columns) in {
            "attn.qkv": (3 * WIDTH, WIDTH),
            "attn.proj": (WIDTH, WIDTH),
            "mlp.fc1": (4 * WIDTH, WIDTH),
            "mlp.fc2": (WIDTH, 4 * WIDTH),
        }.items():
            shapes |= {f"blocks.{n}.{part}.weight": (rows, columns), f"blocks.{n}.{part}.bias": (rows,)}
        for part in ("norm1", "norm2"):
            shapes |= {f"blocks.{n}.{part}.weight": (WIDTH,), f"blocks.{n}.{part}.bias": (WIDTH,)}
    return {name: torch.randn(shape) * 0.1 for name, shape in shapes.items()}


@pytest.fixture
def teacher(tmp_path):
    save_file(teacher_weights(), tmp_path / "teacher.safetensors")
    return tmp_path / "teacher.safetensors"


def arguments(data, teacher, steps):
    fixed = ["--data", data, "--teacher", teacher, "--unlabelled", data / "more", "--out", data / "out"]
    return [str(x) for x in [*fixed, "--steps", steps, "--batch", 4, "--device", "cpu", "--every", 1]]


def test_a_few_steps_write_a_model_a_log_and_a_checkpoint_to_go_on_from(data, teacher):
    photo.main(arguments(data, teacher, 1))
    photo.main([*arguments(data, teacher, 2), "--resume"])
    out = data / "out"
    assert torch.load(out / "checkpoint.pt")["step"] == 2
    log = (out / "photo.log").read_text()
    assert "21 photographs" in log  # twenty, and the unlabelled one that is not in the validation set
    assert "step 1: losses" in log
    assert "step 2: losses" in log
    assert json.loads((out / "training.json").read_text())["steps"] == 2
    assert load_file(out / "model" / "model.safetensors")["classifier.weight"].shape == (10, 256)


def test_a_run_of_the_same_seed_gives_the_same_weights(data, teacher):
    saved = []
    for _ in range(2):
        photo.main(arguments(data, teacher, 1))
        saved.append(load_file(data / "out" / "model" / "model.safetensors"))
    assert_close(saved[0], saved[1], rtol=0, atol=0)


def test_a_timm_vit_says_the_same_as_a_hugging_face_model(tmp_path):
    timm = pytest.importorskip("timm")
    reference = timm.create_model("vit_tiny_patch16_224", num_classes=23).double().eval()
    save_file(reference.state_dict(), tmp_path / "timm.safetensors")
    model = load_teacher(tmp_path / "timm.safetensors", grid=14).double()
    model.load_state_dict({n: w.double() for n, w in model.state_dict().items()})
    x = torch.randn(2, 3, 224, 224, dtype=torch.float64)
    with torch.no_grad():
        # The file passes through float32.
        assert_close(model(x).logits, reference(x), rtol=1e-4, atol=1e-5)


def test_the_tokens_end_where_the_model_ends(teacher):
    model = load_teacher(teacher, grid=3)
    x = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        _, last = tokens_at(model, x, middle=1)
        assert_close(model.classifier(model.vit.layernorm(last[:, 0])), model(x).logits)


def test_a_student_that_says_what_the_teacher_says_has_no_loss(teacher):
    model = load_teacher(teacher, grid=3)
    with torch.no_grad():
        taught = photo.teach(model, torch.randn(2, 3, 30, 30), 48)
    ten = [number for _, number in IMAGENETTE_SYNSETS.values()]
    found = photo.losses((taught[0][:, ten], *taught[1:]), taught, torch.zeros(2, 10), model)
    assert_close(found, torch.zeros(5), rtol=0, atol=1e-5)


def test_photographs_are_read_with_their_classes_and_without_the_skipped(data):
    photos = read_archive(data / "train.zip", size=32)
    assert photos.pixels.shape == (20, 3, 32, 32)
    assert photos.labels.tolist() == [n for n in range(10) for _ in range(2)]
    assert read_archive(data / "train.zip", size=32, limit=10).labels.tolist() == list(range(10))
    more = read_folder(data / "more", size=32, skip={"val_n01440764_0"})
    assert more.labels.tolist() == [UNLABELLED]


def test_an_unlabelled_view_asks_for_no_class():
    photos = Photos(torch.zeros(3, 3, 20, 20, dtype=torch.uint8), torch.tensor([UNLABELLED] * 3))
    pixels, wanted = photo.views(photos, photo.PhotoConfig(batch=5), calm=False)
    assert_close(wanted, torch.zeros(5, 10))
    assert_close(pixels, torch.full((5, 3, 20, 20), -1.0))
