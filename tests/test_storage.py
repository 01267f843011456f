import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from golden_sets import golden
from PIL import Image

from vitrail import Attribution, explain, targets
from vitrail.errors import OutputError
from vitrail.storage import load, save, save_figure

EXACT = pytest.mark.parametrize("suffix", [".json", ".npz"])


def image(dtype=torch.float64, **fields):
    made = Attribution(torch.randn(2, 6).to(dtype), "gae", targets.logit([3, 4]), "image", grid=(2, 3), size=(10, 15))
    return replace(made, **fields)


def text():
    return Attribution(
        scores=torch.randn(2, 3, dtype=torch.float64),
        method="attcat",
        target=targets.difference([1, 0], [0, 1]),
        kind="text",
        signed=True,
        preset="official",
        options={"states": "input", "depth": 2, "rate": 0.1, "mask": True, "none": None},
        tokens=(("a", "Ġb", "\ud800"), ("日", "[PAD]", '"')),
        valid=torch.tensor([[True, True, True], [True, False, True]]),
        readout=torch.tensor([0, -1]),
        layers=torch.randn(2, 4, 3, dtype=torch.float64),
        heads=torch.randn(2, 5, 3, dtype=torch.float64),
        provenance={
            "versions": {"torch": "2"},
            "shape": (1, [2, (3,)]),
            "seconds": 0.1 + 0.2,
            "$tuple": 1,
            "n": {1: ()},
        },
    )


@EXACT
def test_what_was_saved_comes_back_equal(tmp_path, suffix):
    for made in (text(), image(), image(pixels=torch.randn(2, 10, 15, dtype=torch.float64))):
        back = load(save(made, tmp_path / f"x{suffix}"))
        assert back.equals(made)
        assert {n: type(v) for n, v in vars(back).items()} == {n: type(v) for n, v in vars(made).items()}


@EXACT
def test_lists_and_tuples_come_back_as_they_were(tmp_path, suffix):
    back = load(save(text(), tmp_path / f"x{suffix}"))
    assert back.provenance["shape"] == (1, [2, (3,)])
    assert isinstance(back.provenance["shape"][1], list)
    assert [type(v) for v in back.options.values()] == [str, int, float, bool, type(None)]


@EXACT
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_bit_of_every_dtype_comes_back(tmp_path, suffix, dtype):
    scores = torch.tensor([[0.1, -0.0, 1e-7, 3.0, 1 / 3, -2.5]], dtype=dtype)
    back = load(save(image(scores=scores), tmp_path / f"x{suffix}")).scores
    assert back.dtype == dtype
    assert torch.equal(back.signbit(), scores.signbit())
    assert torch.equal(back, scores)


@EXACT
def test_scores_with_a_gradient_are_saved(tmp_path, suffix):
    made = image(scores=torch.randn(1, 6, requires_grad=True))
    assert load(save(made, tmp_path / f"x{suffix}")).equals(made)


@EXACT
def test_the_explanation_of_a_real_model_comes_back_equal(tmp_path, suffix):
    item = next(name for name in golden("v_tiny").inputs if name.startswith("image/"))
    made = explain(golden("v_tiny").model, golden("v_tiny").item("xxx" + item.split("/")[1]), "tokentm")
    assert Attribution.load(made.save(tmp_path / f"x{suffix}")).equals(made)


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".html", b"<!doctype")])
def test_pictures_are_written_for_images_and_texts(tmp_path, suffix, start):
    for made in (image(), replace(text(), tokens=(("a", "b", "c"), ("d", "e", "f")))):
        assert save(made, tmp_path / f"x{suffix.upper()}").read_bytes().startswith(start)


def test_a_picture_says_how_it_was_made(tmp_path):
    kept = Image.open(save(image(preset="paper"), tmp_path / "x.png")).info
    assert kept["Title"] == "gae: logit of 3/4"
    assert "preset paper" in kept["Subject"]


def test_a_figure_is_saved_by_its_suffix(tmp_path):
    assert save_figure(image().plot(), tmp_path / "x.svg").read_text().startswith("<?xml")
    with pytest.raises(OutputError, match=r"'x.gif' ends in '.gif', but a figure is saved as .png, .pdf, .svg"):
        save_figure(image().plot(), tmp_path / "x.gif")


def test_json_and_npz_need_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert load(save(image(), tmp_path / "x.json")).kind == "image"


@pytest.mark.parametrize(("name", "words"), [("x.txt", "ends in '.txt'"), ("x", "has no suffix")])
def test_an_unknown_suffix_is_named_with_those_that_are_known(tmp_path, name, words):
    with pytest.raises(OutputError, match=rf"{words}, but an attribution is saved as .json, .npz, .png, .pdf, .html"):
        save(image(), tmp_path / name)
    with pytest.raises(OutputError, match=rf"{words}, but an attribution is read from .json, .npz"):
        load(tmp_path / name)


@EXACT
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, suffix):
    (tmp_path / "file").write_text("")
    for folder in ("missing", "file"):
        with pytest.raises(OutputError, match=r"cannot be written: .* Choose a folder"):
            save(image(), tmp_path / folder / f"x{suffix}")


def test_a_failed_save_leaves_nothing_behind(tmp_path):
    (tmp_path / "x.json").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        save(image(), tmp_path / "x.json")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


@EXACT
def test_a_file_that_is_not_there_is_named(tmp_path, suffix):
    with pytest.raises(OutputError, match="there is no file"):
        load(tmp_path / f"x{suffix}")


@EXACT
def test_a_damaged_file_is_refused_wherever_it_is_cut_or_changed(tmp_path, suffix):
    path = save(text(), tmp_path / f"x{suffix}")
    whole = path.read_bytes()
    for cut in (0, 1, len(whole) // 3, len(whole) - 2):
        path.write_bytes(whole[:cut])
        with pytest.raises(OutputError, match="damaged or was not written by vitrail"):
            load(path)


def test_a_changed_byte_of_an_npz_is_noticed(tmp_path):
    path = save(text(), tmp_path / "x.npz")
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 3] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(OutputError, match="damaged"):
        load(path)


@pytest.mark.parametrize("content", [{}, [], 1, None, {"format": "other"}, {"scores": [1]}])
def test_json_of_someone_else_is_refused(tmp_path, content):
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(OutputError, match="not marked as an attribution"):
        load(tmp_path / "x.json")


def test_npz_of_someone_else_is_refused_and_never_unpickled(tmp_path):
    np.savez(tmp_path / "x.npz", header=np.array([{"a": 1}], dtype=object))
    with pytest.raises(OutputError, match="cannot be read as an attribution"):
        load(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", a=np.ones(3))
    with pytest.raises(OutputError, match="cannot be read as an attribution"):
        load(tmp_path / "x.npz")
    with open(tmp_path / "x.npz", "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(OutputError, match="cannot be read as an attribution"):
        load(tmp_path / "x.npz")


def test_a_file_of_a_later_version_asks_for_an_upgrade(tmp_path):
    path = save(image(), tmp_path / "x.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    with pytest.raises(OutputError, match=r"version 99.*upgrade"):
        load(path)


@EXACT
def test_an_option_that_no_file_can_hold_is_named(tmp_path, suffix):
    with pytest.raises(OutputError, match="a dtype, which a file cannot hold"):
        save(image(options={"dtype": torch.float32}), tmp_path / f"x{suffix}")
