import pytest

from vitrail.errors import InputError
from vitrail.evaluate.data import load, resize_mask

TRIMAP = [[1, 2, 3], [2, 2, 1]]


@pytest.fixture
def published(tmp_path, save_picture, save_values):
    for key in ("Abyssinian_1", "saint_bernard_2"):
        save_picture(tmp_path / "images" / f"{key}.jpg", size=(3, 2))
        save_values(tmp_path / "annotations" / "trimaps" / f"{key}.png", TRIMAP)
    (tmp_path / "annotations" / "list.txt").write_text(
        "#Image CLASS-ID SPECIES BREED ID\nAbyssinian_1 1 1 1\nsaint_bernard_2 29 2 20\n"
    )
    (tmp_path / "annotations" / "test.txt").write_text("saint_bernard_2 29 2 20\n")
    return tmp_path


def test_the_real_trimaps_cover_what_the_table_says(real):
    import csv

    dataset = load("pets", real("pets"))
    assert len(dataset) == 459
    with (real("pets") / "labels.csv").open() as file:
        fractions = {row["id"]: float(row["fg_fraction"]) for row in csv.DictReader(file)}
    for example in dataset.spread(9):
        assert example.image.size == (320, 320)
        assert resize_mask(example.mask, (224, 224)).unique().tolist() == [-1, 0, 1]
        # The table was measured before the pictures were squashed.
        assert (example.mask == 1).double().mean().item() == pytest.approx(fractions[example.key], abs=5e-3)
        assert example.label in dataset.classes


def test_the_published_layout_numbers_breeds_from_zero(published):
    dataset = load("pets", published)
    assert [(example.key, example.label) for example in dataset] == [("Abyssinian_1", 0), ("saint_bernard_2", 28)]
    assert dataset.classes == {0: "Abyssinian", 28: "saint_bernard"}
    assert dataset[0].mask.tolist() == [[1, 0, -1], [0, 0, 1]]
    assert load("pets", published, split="test").keys == ["saint_bernard_2"]


def test_missing_parts_and_wrong_lines_are_named(published, save_values, tmp_path):
    save_values(published / "annotations" / "trimaps" / "Abyssinian_1.png", [[0, 1, 2], [1, 1, 1]])
    with pytest.raises(InputError, match=r"Abyssinian_1: the mask holds \[0\]"):
        _ = load("pets", published)[0].mask
    (published / "annotations" / "trimaps" / "Abyssinian_1.png").unlink()
    with pytest.raises(InputError, match=r"Abyssinian_1: there is no image at .*trimaps"):
        _ = load("pets", published)[0].mask
    (published / "annotations" / "list.txt").write_text("Abyssinian_1 one 1 1\n")
    with pytest.raises(InputError, match=r"list.txt has the line 'Abyssinian_1 one 1 1'"):
        load("pets", published)
    (published / "annotations" / "list.txt").write_text("../Abyssinian_1 1 1 1\n")
    with pytest.raises(InputError, match=r"'../Abyssinian_1', which lies outside of its folder"):
        load("pets", published)
    with pytest.raises(InputError, match=r"there is no list of pets at .*val.txt"):
        load("pets", published, split="val")
    (published / "labels.csv").write_text("id,breed\na,b\n")
    with pytest.raises(InputError, match="no column imagenet_idx; its columns are id, breed"):
        load("pets", published)
    (published / "labels.csv").write_text("id,imagenet_idx,imagenet_name\na,,b\n")
    with pytest.raises(InputError, match="no class number for a"):
        load("pets", published)
    with pytest.raises(InputError, match="has no splits"):
        load("pets", published, split="test")
    with pytest.raises(InputError, match="there is no folder of pets"):
        load("pets", tmp_path / "nowhere")
