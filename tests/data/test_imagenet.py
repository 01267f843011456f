import json
import sys

import numpy as np
import pytest

from vitrail.errors import InputError, MissingExtraError, OptionError
from vitrail.evaluate.data import Box, load

HEADER = "file,class_idx,wnid,name,boxes_x0y0x1y1,fold\n"


@pytest.fixture
def table(tmp_path, save_picture):
    for name in ("a", "b"):
        save_picture(tmp_path / "images" / f"{name}.png")
    rows = "a.png,3,n01491361,tiger_shark,1.5 0 6 4;0 0 2 2,0\nb.png,7,n01514668,cock,,1\n"
    (tmp_path / "labels.csv").write_text(HEADER + rows)
    return tmp_path


def test_the_real_images_open_with_labels_boxes_and_folds(real):
    path = real("imagenet_val")
    whole = load("imagenet", path)
    assert len(whole) == 2000
    folds = [load("imagenet", path / "labels.csv", fold=fold) for fold in (0, 1)]
    assert set(folds[0].keys).isdisjoint(folds[1].keys)
    assert set(folds[0].keys) | set(folds[1].keys) == set(whole.keys)
    for example in folds[1].spread(7):
        width, height = example.image.size
        assert min(width, height) == 256
        assert example.boxes
        assert all(0 <= b.x0 < b.x1 <= width + 1 and 0 <= b.y0 < b.y1 <= height + 1 for b in example.boxes)
    assert {whole[0].label, whole[-1].label} == {0, 999}
    assert whole.classes[999] == "toilet_tissue"


def test_a_table_gives_label_boxes_and_pixels(table, save_picture):
    dataset = load("imagenet", table)
    assert dataset.keys == ["a", "b"]
    assert dataset[0].boxes == (Box(1.5, 0.0, 6.0, 4.0, 3), Box(0.0, 0.0, 2.0, 2.0, 3))
    assert dataset[1].boxes == ()
    assert dataset.classes == {3: "tiger_shark", 7: "cock"}
    np.testing.assert_array_equal(np.asarray(dataset[0].image), save_picture(table / "again.png"))
    assert dataset[0].mask is None
    assert load("imagenet", table, fold=1).keys == ["b"]


def test_a_damaged_picture_raises_only_when_it_is_opened_and_names_its_key(table):
    (table / "images" / "a.png").write_bytes(b"no picture")
    (table / "images" / "b.png").unlink()
    first, second = load("imagenet", table)
    with pytest.raises(InputError, match=r"^a: .*a.png cannot be read as an image"):
        _ = first.image
    with pytest.raises(InputError, match=r"^b: there is no image at .*b.png"):
        _ = second.image


def test_without_pillow_the_error_says_what_to_install(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vitrail\[data\]'"):
        _ = load("imagenet", table)[0].image


def test_a_truncated_picture_raises(table):
    path = table / "images" / "a.png"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"a: .*cannot be read as an image"):
        _ = load("imagenet", table)[0].image


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "labels.csv holds no examples"),
        ("a.png,1000,w,n,,0\n", "gives a.png the class '1000'"),
        ("a.png,x,w,n,,0\n", "gives a.png the class 'x'"),
        ("a.png,1,w,n,,0\na.png,2,w,n,,0\n", "names a twice"),
        ("../a.png,1,w,n,,0\n", "names the file '../a.png', which lies outside of its folder"),
        ("/etc/passwd,1,w,n,,0\n", "lies outside of its folder"),
        ("..\\\\a.png,1,w,n,,0\n", "lies outside of its folder"),
        ("a.png,1,w\n", "3 columns in this row, but 6"),
        ('a.png,1,w,"n,,0\n', "a quote in line 2 is never closed"),
    ],
)
def test_a_wrong_table_says_what_is_wrong(table, rows, message):
    (table / "labels.csv").write_text(HEADER + rows)
    with pytest.raises(InputError, match=message):
        load("imagenet", table)


def test_wrong_columns_boxes_and_folds_are_named(table):
    with pytest.raises(InputError, match="no fold 2; it has 0, 1"):
        load("imagenet", table, fold=2)
    (table / "labels.csv").write_text(HEADER + "a.png,1,w,n,1 2 3,0\n")
    with pytest.raises(InputError, match=r"^a: .*boxes that are not four numbers"):
        load("imagenet", table)[0]
    (table / "labels.csv").write_text("picture,class_idx\na.png,1\n")
    with pytest.raises(InputError, match="no column file; its columns are picture, class_idx"):
        load("imagenet", table)
    with pytest.raises(OptionError, match=r"no option 'folds'. Did you mean fold"):
        load("imagenet", table, folds=1)


def test_a_folder_of_synsets_needs_all_of_them_or_an_index(tmp_path, save_picture):
    save_picture(tmp_path / "val" / "n01443537" / "x_2.png")
    save_picture(tmp_path / "val" / "n01443537" / "x_1.png")
    save_picture(tmp_path / "val" / "n01440764" / "y.png")
    (tmp_path / "val" / "n01440764" / "notes.txt").write_text("no picture")
    with pytest.raises(InputError, match=r"has 2 synsets.*pass class_index="):
        load("imagenet", tmp_path / "val")
    index = tmp_path / "index.json"
    index.write_text(json.dumps({"000": ["n01440764", "tench"], "001": ["n01443537", "goldfish"]}))
    dataset = load("imagenet", tmp_path / "val", class_index=index)
    assert dataset.keys == ["n01440764/y", "n01443537/x_1", "n01443537/x_2"]
    assert [example.label for example in dataset] == [0, 1, 1]
    assert dataset.classes[1] == "goldfish"
    index.write_text(json.dumps({"0": ["n01440764", "tench"]}))
    with pytest.raises(InputError, match="does not name n01443537"):
        load("imagenet", tmp_path / "val", class_index=index)
    index.write_text("[1]")
    with pytest.raises(InputError, match=r"index.json is no class index"):
        load("imagenet", tmp_path / "val", class_index=index)
    with pytest.raises(InputError, match="no fold 1"):
        load("imagenet", tmp_path / "val", fold=1)


def test_all_thousand_synsets_are_numbered_in_order(tmp_path):
    for i in range(1000):
        folder = tmp_path / f"n{10000000 + 7 * i}"
        folder.mkdir()
        (folder / "x.JPEG").touch()
    assert [example.label for example in load("imagenet", tmp_path)] == list(range(1000))


def test_a_missing_or_empty_folder_is_named(tmp_path):
    with pytest.raises(InputError, match=r"there is no ImageNet folder at .*nowhere"):
        load("imagenet", tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"there is no table of labels at .*nowhere.csv"):
        load("imagenet", tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="no folders of pictures"):
        load("imagenet", tmp_path)
