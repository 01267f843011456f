import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from golden_sets import golden
from PIL import Image

from vitrail import Attribution, explain, targets
from vitrail.errors import OutputError
from vitrail.storage import load, save, save_figure, write_bytes

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
    back = load(save(image(scores=scores, target=targets.logit([3])), tmp_path / f"x{suffix}")).scores
    assert back.dtype == dtype
    assert torch.equal(back.signbit(), scores.signbit())
    assert torch.equal(back, scores)


@EXACT
def test_scores_with_a_gradient_are_saved(tmp_path, suffix):
    made = image(scores=torch.randn(1, 6, requires_grad=True), target=targets.logit([3]))
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
    assert kept["Title"] == "gae: class 3"
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
    with pytest.raises(
        OutputError, match=rf"{words}, but an attribution is saved as .json, .npz, .png, .pdf, .svg, .html"
    ):
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


def rewritten(path, change):
    """The file with its header and arrays changed, whatever its form."""
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        tensors = content.pop("tensors")
        arrays = {name: np.array(x["values"]).reshape(x["shape"]) for name, x in tensors.items()}
        change(content, arrays)
        kept = {name: {"shape": list(x.shape), "values": x.flatten().tolist()} for name, x in arrays.items()}
        path.write_text(json.dumps({**content, "tensors": kept}))
        return
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if name != "header"}
        header = json.loads(file["header"].tobytes())
    change(header, arrays)
    np.savez(path, header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **arrays)


def field(name, value):
    return lambda header, arrays: header.update({name: value})


def array(name, make):
    return lambda header, arrays: arrays.update({name: make(arrays[name])})


def dtype(name, value):
    return lambda header, arrays: header["dtypes"].update({name: value})


def aim(**changes):
    return lambda header, arrays: header["target"].update(changes)


def filled(value):
    return lambda x: np.where(np.arange(x.size).reshape(x.shape) == 1, value, x)


def without(name):
    return lambda header, arrays: arrays.pop(name)


def with_pixels():
    return image(pixels=torch.randn(2, 10, 15))


CONTRADICTIONS = {
    "five scores for a grid of 16 x 16": (image, [array("scores", lambda x: x[:, :5]), field("grid", [16, 16])]),
    "another grid": (image, [field("grid", [3, 3])]),
    "a negative grid": (image, [field("grid", [-2, -3])]),
    "half a grid": (image, [field("grid", [6])]),
    "a broken grid": (image, [field("grid", [2.0, 3.0])]),
    "a grid of truth values": (image, [field("grid", [True, 6])]),
    "a negative size": (image, [field("size", [-10, 15])]),
    "an empty size": (image, [field("size", [0, 15])]),
    "NaN": (image, [array("scores", filled(np.nan))]),
    "infinity": (image, [array("scores", filled(np.inf))]),
    "NaN in pixels": (with_pixels, [array("pixels", filled(np.nan))]),
    "infinity in layers": (text, [array("layers", filled(-np.inf))]),
    "version 0": (text, [field("version", 0)]),
    "a negative version": (text, [field("version", -1)]),
    "a later version": (text, [field("version", 3)]),
    "half a version": (text, [field("version", 0.5)]),
    "a version in words": (text, [field("version", "1")]),
    "a version of truth": (text, [field("version", value=True)]),
    "fewer tokens": (text, [field("tokens", [["a", "b"], ["c", "d"]])]),
    "tokens of fewer samples": (text, [field("tokens", [["a", "b", "c"]])]),
    "tokens that are no text": (text, [field("tokens", [[1, 2, 3], [4, 5, 6]])]),
    "one long token": (text, [field("tokens", ["abc", "def"])]),
    "fewer scores than tokens": (text, [array("scores", lambda x: x[:, :2])]),
    "layers of another length": (text, [array("layers", lambda x: x[:, :, :2])]),
    "heads of another length": (text, [array("heads", lambda x: x[:, :, :2])]),
    "layers of another batch": (text, [array("layers", lambda x: x[:1])]),
    "layers without layers": (text, [array("layers", lambda x: x[:, :0])]),
    "a mask of another length": (text, [array("valid", lambda x: x[:, :2])]),
    "a mask of numbers": (text, [array("valid", lambda x: x * 1.0), dtype("valid", "float64")]),
    "a readout outside": (text, [array("readout", lambda x: x * 0 + 3)]),
    "a readout below -1": (text, [array("readout", lambda x: x * 0 - 2)]),
    "readouts of another batch": (text, [array("readout", lambda x: x[:1])]),
    "a readout in halves": (text, [array("readout", lambda x: x + 0.5)]),
    "pixels of another size": (with_pixels, [field("size", [10, 14])]),
    "scores of three axes": (text, [array("scores", lambda x: x[..., None])]),
    "scores in whole numbers": (image, [array("scores", lambda x: x.astype(np.int64)), dtype("scores", "int64")]),
    "scores said to be whole": (image, [dtype("scores", "int64")]),
    "an unknown dtype": (image, [dtype("scores", "float8")]),
    "a dtype that is a function": (image, [dtype("scores", "load")]),
    "a dtype too small": (image, [array("scores", filled(1e300)), dtype("scores", "float32")]),
    "a missing array": (text, [without("heads")]),
    "no scores": (image, [without("scores"), lambda header, arrays: header["dtypes"].pop("scores")]),
    "an unknown array": (text, [lambda header, arrays: arrays.update(more=np.ones(2))]),
    "an unknown kind": (text, [field("kind", "sound")]),
    "signed by a word": (text, [field("signed", "no")]),
    "no method": (text, [field("method", None)]),
    "an empty method": (text, [field("method", "")]),
    "options in a list": (text, [field("options", [1])]),
    "classes of another batch": (text, [aim(first=[1, 0, 2])]),
    "a class in words": (text, [aim(first=["cat", "dog"])]),
    "a class of truth": (text, [aim(first=True)]),
    "a position in words": (text, [aim(position="last")]),
    "an unknown field of the target": (text, [aim(third=1)]),
}


@EXACT
@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_file_that_contradicts_itself_is_refused(tmp_path, suffix, name):
    make, changes = CONTRADICTIONS[name]
    path = save(make(), tmp_path / f"x{suffix}")
    rewritten(path, lambda header, arrays: None)
    assert load(path).method  # writing it again alone changes nothing
    rewritten(path, lambda header, arrays: [change(header, arrays) for change in changes])
    with pytest.raises(OutputError, match="cannot be read as an attribution") as caught:
        load(path)
    assert "Type-check" not in str(caught.value)  # found by ourselves, not by the types that only tests check


@pytest.mark.parametrize("shape", [[-1, 6], [2, 6.0], [3, 4], [12], [2, 6, 0]])
def test_a_shape_that_does_not_hold_its_values_is_refused(tmp_path, shape):
    path = save(image(), tmp_path / "x.json")
    content = json.loads(path.read_text())
    content["tensors"]["scores"]["shape"] = shape
    path.write_text(json.dumps(content))
    with pytest.raises(OutputError, match="cannot be read as an attribution"):
        load(path)


@EXACT
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: image(scores=torch.full((2, 6), torch.nan)), "its scores hold 12 NaN or infinite values of 12"),
        (lambda: image(grid=(16, 16)), "it has 6 scores for a grid of 16 x 16"),
    ],
    ids=["NaN", "grid"],
)
def test_what_could_not_be_read_back_is_not_written(tmp_path, suffix, made, words):
    with pytest.raises(OutputError, match=words):
        save(made(), tmp_path / f"x{suffix}")
    assert not list(tmp_path.iterdir())


@EXACT
def test_infinite_numbers_of_options_and_provenance_come_back_and_are_no_words_in_json(tmp_path, suffix):
    made = image(options={"limit": float("inf"), "low": (-float("inf"), np.float32("inf"))}, provenance={"x": [1.0]})
    path = save(made, tmp_path / f"x{suffix}")
    assert b"Infinity" not in path.read_bytes()
    back = load(path)
    assert back.options == made.options
    assert np.isnan(load(save(image(options={"x": float("nan")}), path)).options["x"])


def test_threads_that_write_to_one_file_never_disturb_each_other(tmp_path):
    path, texts = tmp_path / "x.bin", [bytes([65 + n]) * 20_000 for n in range(4)]

    def many(data):
        for _ in range(100):
            write_bytes(path, data)
            assert path.read_bytes() in texts  # always all of one of them

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, texts))
    assert [file.name for file in tmp_path.iterdir()] == ["x.bin"]


def test_a_write_that_breaks_off_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = write_bytes(tmp_path / "x.bin", b"old")

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.bin"]


def test_a_name_as_long_as_the_system_allows_can_be_written(tmp_path):
    assert write_bytes(tmp_path / ("x" * 255), b"data").read_bytes() == b"data"


def test_a_link_is_followed_and_stays_one(tmp_path):
    made = image()
    (tmp_path / "real").mkdir()
    for name, target in {"old.json": "real/old.json", "new.json": "real/new.json"}.items():
        (tmp_path / name).symlink_to(target)
    (tmp_path / "real" / "old.json").write_text("old")
    for name in ("old.json", "new.json"):
        made.save(tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert Attribution.load(tmp_path / "real" / name).equals(made)
    assert sorted(path.name for path in (tmp_path / "real").iterdir()) == ["new.json", "old.json"]
    (tmp_path / "loop.json").symlink_to("loop.json")
    with pytest.raises(OutputError, match=r"loop.json cannot be written: Too many levels of symbolic links"):
        made.save(tmp_path / "loop.json")
    (tmp_path / "null.json").symlink_to("/dev/null")
    made.save(tmp_path / "null.json")
    assert (tmp_path / "null.json").is_symlink()
