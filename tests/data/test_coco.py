import json

import pytest

from vitrail.errors import InputError, OptionError
from vitrail.evaluate.data import load
from vitrail.evaluate.data.segmented import COCO, NUMBERS
from vitrail.evaluate.data.segmented import VOC as VOC

SQUARE = [1, 1, 3, 1, 3, 4, 1, 4]


def test_every_voc_class_is_a_class_of_coco():
    assert sorted(NUMBERS["voc"].values()) == list(range(1, len(VOC)))
    assert len(COCO) == 81


def test_the_real_polygons_lie_in_their_boxes(real):
    dataset = load("coco", real("coco128-seg"))
    assert len(dataset) == 128
    assert sum(len(example.boxes) for example in dataset) == 929
    assert sum(not example.boxes for example in dataset) == 2  # pictures without a label file
    for example in (example for example in dataset.spread(6) if example.boxes):
        mask = example.mask
        assert tuple(mask.shape) == example.image.size[::-1]
        assert set(example.mask_labels) <= {box.label for box in example.boxes}
        covered = (mask > 0).nonzero().double()
        far = max(box.x1 for box in example.boxes), max(box.y1 for box in example.boxes)
        assert covered[:, 1].max() <= far[0]
        assert covered[:, 0].max() <= far[1]


def test_the_real_polygons_as_voc_are_a_part_of_them(real):
    every, voc = (load("coco", real("coco128-seg"), classes=classes) for classes in ("coco", "voc"))
    found = {name for example in voc[::16] for name in map(voc.mask_classes.get, example.mask_labels)}
    assert found
    assert found <= set(VOC)
    assert sum(len(example.boxes) for example in voc) < sum(len(example.boxes) for example in every)


@pytest.fixture
def text(tmp_path, save_picture):
    for key in ("1", "2", "3"):
        save_picture(tmp_path / "images" / "val" / f"{key}.jpg", size=(10, 4))
    (tmp_path / "labels" / "val").mkdir(parents=True)
    (tmp_path / "labels" / "val" / "1.txt").write_text("0 0.1 0.25 0.3 0.25 0.3 1 0.1 1\n58 0.5 0 1 0 1 0.5\n")
    (tmp_path / "labels" / "val" / "2.txt").write_text("")
    return tmp_path


def test_lines_of_text_become_a_mask_and_boxes(text):
    first, second, third = load("coco", text)
    expected = [[0] * 10 for _ in range(4)]
    for row in (1, 2, 3):
        expected[row][1:3] = [1, 1]
    expected[0][6:] = [59] * 4
    expected[1][9] = 59
    assert first.mask.tolist() == expected
    assert first.boxes[0].label == 1
    assert [getattr(first.boxes[0], side) for side in ("x0", "y0", "x1", "y1")] == pytest.approx([1, 1, 3, 4])
    assert second.boxes == third.boxes == ()
    assert not second.mask.any()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("80 0 0 1 0 1 1", "has the class '80'; needs 0 to 79"),
        ("0 0.5 0.5 0.2 0.2", "4 numbers after the class, which is no polygon"),
        ("0 0 0 1 0 1", "no polygon"),
        ("0 0 0 1 0 1 x", "a corner that is not a number"),
    ],
)
def test_a_wrong_line_raises_for_its_example(text, line, message):
    (text / "labels" / "val" / "2.txt").write_text(line)
    dataset = load("coco", text)
    assert dataset[0].boxes
    with pytest.raises(InputError, match=f"^2: .*2.txt.*{message}"):
        dataset[1]


def test_a_damaged_picture_raises_for_its_example(text):
    (text / "images" / "val" / "2.jpg").write_bytes(b"nothing")
    dataset = load("coco", text)
    with pytest.raises(InputError, match=r"^2: .*cannot be read as an image"):
        dataset[1]
    assert dataset[2].key == "3"


def note(image, category, outline, box, *, crowd=0):
    return {"image_id": image, "category_id": category, "segmentation": outline, "bbox": box, "iscrowd": crowd}


def content(**changes):
    size = {"height": 5, "width": 6}
    return {
        "images": [{"id": 9, "file_name": "b.jpg", **size}, {"id": 4, "file_name": "a.jpg", **size}],
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}, {"id": 25, "name": "giraffe"}],
        "annotations": [
            note(4, 18, [SQUARE, [4, 0, 6, 0, 6, 1, 4, 1]], [1, 1, 2, 3]),
            note(4, 1, {"counts": [28, 2], "size": [5, 6]}, [5, 3, 1, 2], crowd=1),
            note(4, 25, [[0, 4, 2, 4, 2, 5, 0, 5]], [0, 4, 2, 1]),
        ],
        **changes,
    }


@pytest.fixture
def annotated(tmp_path, save_picture):
    for name in ("a", "b"):
        save_picture(tmp_path / "val2017" / f"{name}.jpg", size=(6, 5))
    (tmp_path / "annotations").mkdir()

    def write(changed):
        (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(changed))
        return tmp_path

    return write


def test_json_gives_polygons_crowds_and_boxes(annotated):
    dataset = load("coco", annotated(content()))
    assert dataset.keys == ["a", "b"]
    dog, giraffe = NUMBERS["coco"]["dog"], NUMBERS["coco"]["giraffe"]
    assert dataset[0].mask.tolist() == [
        [0, 0, 0, 0, dog, dog],
        [0, dog, dog, 0, 0, 0],
        [0, dog, dog, 0, 0, 0],
        [0, dog, dog, 0, 0, -1],
        [giraffe, giraffe, 0, 0, 0, -1],
    ]
    assert [box.label for box in dataset[0].boxes] == [dog, giraffe]
    assert dataset[1].mask_labels == ()
    voc = load("coco", annotated(content()), classes="voc")
    assert voc[0].mask_labels == (VOC.index("dog"),)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": []}, "holds no examples of coco"),
        ({"images": [{"file_name": "b.jpg"}]}, "not in the format of COCO: KeyError"),
        ({"categories": [{"id": 1, "name": "dragon"}]}, "names dragon, which is no class"),
        ({"annotations": 3}, "not in the format of COCO"),
        ({"images": [{"id": 1, "file_name": "x/../../b.jpg"}]}, "which lies outside of its folder"),
    ],
)
def test_json_of_another_format_is_named(annotated, changes, message):
    with pytest.raises(InputError, match=f"instances_val2017.json.*{message}"):
        load("coco", annotated(content(**changes)))


@pytest.mark.parametrize(
    "outline", [[[1, 1, 2]], {"counts": "packed", "size": [5, 6]}, {"counts": [3], "size": [5, 6]}, None]
)
def test_a_broken_outline_raises_for_its_example(annotated, outline):
    dataset = load("coco", annotated(content(annotations=[note(9, 1, outline, [0, 0, 1, 1])])))
    assert dataset[0].boxes == ()
    with pytest.raises(InputError, match=r"^b: .*an object that cannot be read"):
        dataset[1]


def test_a_picture_of_another_size_than_annotated_has_no_mask(annotated):
    changed = content()
    changed["images"][0]["height"] = 7
    with pytest.raises(InputError, match=r"b: .*annotations say"):
        _ = load("coco", annotated(changed))[1].mask


def test_missing_parts_and_unclear_splits_are_named(annotated, text, tmp_path):
    root = annotated(content())
    (text / "labels" / "train").mkdir()
    with pytest.raises(InputError, match="has the splits train, val; name one with split="):
        load("coco", text)
    with pytest.raises(InputError, match=r"there is no folder of pictures at .*train"):
        load("coco", text, split="train")
    for folder in ("labels", "images"):
        (text / folder).rename(text / f"no_{folder}")
    with pytest.raises(InputError, match=r"one file instances_test.json, but there is none"):
        load("coco", root, split="test")
    (root / "val2017").rename(root / "elsewhere")
    with pytest.raises(InputError, match=r"no folder of pictures in .*val2017"):
        load("coco", root)
    assert load("coco", root, images=root / "elsewhere")[0].image.size == (6, 5)
    with pytest.raises(OptionError, match="no classes 'pascal'"):
        load("coco", root, classes="pascal")
    (root / "annotations" / "instances_val2017.json").write_text("{")
    with pytest.raises(InputError, match=r"instances_val2017.json is not JSON"):
        load("coco", root)
    with pytest.raises(InputError, match="there is no COCO annotations at"):
        load("coco", tmp_path / "nowhere.json")
