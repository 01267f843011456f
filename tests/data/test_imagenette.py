import zipfile

import numpy as np
import pytest

from vitrail.errors import InputError, OptionError
from vitrail.evaluate.data import load


@pytest.fixture
def folder(tmp_path, save_picture):
    save_picture(tmp_path / "val" / "n03888257" / "p.png", seed=1)
    save_picture(tmp_path / "val" / "n01440764" / "t.png", seed=2)
    return tmp_path


def zipped(folder, compression):
    with zipfile.ZipFile(folder / "val.zip", "w", compression) as archive:
        archive.writestr("README.txt", "words")
        for file in sorted((folder / "val").rglob("*.png")):
            archive.write(file, file.relative_to(folder / "val"))
    return folder / "val.zip"


def test_the_real_archive_holds_ten_classes(real):
    dataset = load("imagenette", real("imagenette160"))
    assert len(dataset) == 3925
    assert {example.label for example in dataset} == set(range(10))
    assert dataset.spread(5)[2].image.size == (160, 160)
    labels = {example.label for example in load("imagenette", real("imagenette160"), labels="imagenet")}
    assert labels == {0, 217, 482, 491, 497, 566, 569, 571, 574, 701}


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_reads_as_its_folder(folder, compression):
    plain, packed = load("imagenette", folder), load("imagenette", zipped(folder, compression))
    assert plain.keys == packed.keys == ["n01440764/t", "n03888257/p"]
    for one, other in zip(plain, packed, strict=True):
        assert one == other
        np.testing.assert_array_equal(np.asarray(one.image), np.asarray(other.image))
    assert [packed.classes[example.label] for example in packed] == ["tench", "parachute"]


def test_damage_inside_an_archive_is_one_broken_example(folder):
    path = zipped(folder, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    at = data.index(b"IDAT") + 20
    data[at] ^= 0xFF
    path.write_bytes(data)
    first, second = load("imagenette", path)
    with pytest.raises(InputError, match=r"n01440764/t: .*checksum"):
        _ = first.image
    assert second.image.size == (7, 5)


def test_wrong_archives_folders_and_options_are_named(folder, save_picture):
    (folder / "bad.zip").write_bytes(b"PK nothing")
    with pytest.raises(InputError, match=r"bad.zip cannot be read as a zip archive"):
        load("imagenette", folder / "bad.zip")
    with pytest.raises(InputError, match=r"looked for train or train.zip"):
        load("imagenette", folder, split="train")
    with zipfile.ZipFile(folder / "empty.zip", "w"):
        pass
    with pytest.raises(InputError, match=r"empty.zip holds no examples"):
        load("imagenette", folder / "empty.zip")
    with pytest.raises(OptionError, match="no labels 'wnid'"):
        load("imagenette", folder, labels="wnid")
    save_picture(folder / "val" / "n00000001" / "x.png")
    with pytest.raises(InputError, match="n00000001, which is no class"):
        load("imagenette", folder)


def test_an_archive_that_unpacks_a_hundredfold_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "val.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("n01440764/t.png", bytes(3_000_000))
    with pytest.raises(
        InputError, match=r"n01440764/t.png has 3,000,000 bytes unpacked and 2,9.. packed: more than 100"
    ):
        load("imagenette", path)


def test_a_file_of_an_archive_that_is_larger_than_announced_is_not_unpacked(tmp_path):
    path = tmp_path / "val.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("n01440764/t.png", bytes(3_000_000))
    data = path.read_bytes()
    path.write_bytes(data.replace((3_000_000).to_bytes(4, "little"), (9).to_bytes(4, "little")))
    (example,) = load("imagenette", path)
    with pytest.raises(InputError, match="its checksum differs"):
        _ = example.image
