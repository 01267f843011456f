import pickle
import struct
import tarfile
from io import BytesIO

import numpy as np
import pytest

from vitrail.errors import InputError, OptionError
from vitrail.evaluate.data import load
from vitrail.evaluate.data.files import read_pickled_table

PIXELS = np.random.default_rng(0).integers(256, size=(4, 3072), dtype=np.uint8)
FINE, COARSE = [3, 99, 0, 7], [4, 19, 1, 4]
TEN = [3, 9, 0, 7]
NAMES = [b"airplane", b"automobile", b"bird", b"cat"]


class Python2:
    """Writes a table byte for byte as Python 2 pickled it with NumPy 1, as the published files are."""

    def __init__(self, table):
        self.out = b"\x80\x02" + self.dict(table) + b"."

    def put(self, value):
        kinds = {bytes: self.string, int: self.number, list: self.list, np.ndarray: self.array}
        return kinds[type(value)](value)

    def string(self, value):
        return b"T" + struct.pack("<i", len(value)) + value

    def number(self, value):
        return b"J" + struct.pack("<i", value)

    def list(self, values):
        return b"](" + b"".join(map(self.put, values)) + b"e"

    def dict(self, table):
        return b"}(" + b"".join(self.string(key.encode()) + self.put(value) for key, value in table.items()) + b"u"

    def array(self, value):
        ndarray = b"cnumpy\nndarray\n"
        start = (
            b"cnumpy.core.multiarray\n_reconstruct\n(" + ndarray + self.number(0) + b"\x85" + self.string(b"b") + b"tR"
        )
        kind = b"cnumpy\ndtype\n(" + self.string(b"u1") + self.number(0) + self.number(1) + b"tR"
        order = b"(" + self.number(3) + self.string(b"|") + b"NNN" + self.number(-1) * 2 + self.number(0) + b"tb"
        shape = self.number(value.shape[0]) + self.number(value.shape[1]) + b"\x86"
        return start + b"(" + self.number(1) + shape + kind + order + b"\x89" + self.string(value.tobytes()) + b"tb"


def records(*labels):
    return b"".join(bytes(row) + PIXELS[i].tobytes() for i, row in enumerate(zip(*labels, strict=True)))


PUBLISHED = {
    "cifar10": {
        "cifar-10-batches-bin": {"test_batch.bin": records(TEN), "batches.meta.txt": b"airplane\nautomobile\n\n"},
        "cifar-10-batches-py": {
            "test_batch": Python2({"data": PIXELS, "labels": TEN, "batch_label": b"testing batch 1 of 1"}).out,
            "batches.meta": Python2({"label_names": NAMES}).out,
        },
    },
    "cifar100": {
        "cifar-100-binary": {"test.bin": records(COARSE, FINE), "fine_label_names.txt": b"apple\naquarium_fish\n"},
        "cifar-100-python": {
            "test": Python2({"data": PIXELS, "fine_labels": FINE, "coarse_labels": COARSE}).out,
            "meta": Python2({"fine_label_names": [b"apple", b"aquarium_fish"], "coarse_label_names": [b"fish"]}).out,
        },
    },
}  # fmt: skip
VERSIONS = [(name, folder) for name, folders in PUBLISHED.items() for folder in folders]


def unpacked(root, name, folder):
    (root / folder).mkdir()
    for file, data in PUBLISHED[name][folder].items():
        (root / folder / file).write_bytes(data)
    return root


def packed(root, name, folder):
    with tarfile.open(root / "archive.tar.gz", "w:gz") as archive:
        for file, data in PUBLISHED[name][folder].items():
            info = tarfile.TarInfo(f"{folder}/{file}")
            info.size = len(data)
            archive.addfile(info, BytesIO(data))
    return root / "archive.tar.gz"


@pytest.mark.parametrize(("name", "folder"), VERSIONS)
@pytest.mark.parametrize("store", [unpacked, packed])
def test_all_published_versions_read_the_same(tmp_path, store, name, folder):
    dataset = load(name, store(tmp_path, name, folder))
    assert dataset.keys == ["test-00000", "test-00001", "test-00002", "test-00003"]
    assert [example.label for example in dataset] == (TEN if name == "cifar10" else FINE)
    assert dataset.classes[1] == ("automobile" if name == "cifar10" else "aquarium_fish")
    expected = PIXELS[2].reshape(3, 32, 32)
    np.testing.assert_array_equal(np.asarray(dataset[2].image), np.moveaxis(expected, 0, 2))


@pytest.mark.parametrize("folder", PUBLISHED["cifar100"])
def test_coarse_labels_are_the_other_ones(tmp_path, folder):
    dataset = load("cifar100", unpacked(tmp_path, "cifar100", folder), labels="coarse")
    assert [example.label for example in dataset] == COARSE


def test_parts_of_the_training_split_follow_one_another(tmp_path):
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}.bin").write_bytes(bytes([i]) + PIXELS[0].tobytes())
    assert [example.label for example in load("cifar10", tmp_path, split="train")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "value",
    [len, np.float64(1), np.zeros(3), {1, 2}.union, BytesIO(b"")],
    ids=["function", "scalar", "floats", "bound method", "file"],
)
def test_a_pickle_that_holds_anything_but_plain_data_is_refused(value):
    for protocol in (2, 4):
        data = pickle.dumps({"data": value}, protocol=protocol)
        with pytest.raises(InputError, match="batch is refused as a pickle"):
            read_pickled_table(data, "batch")


def test_a_pickle_never_calls_what_it_names(tmp_path):
    evil = b"\x80\x02cos\nmkdir\n" + Python2({}).string(str(tmp_path / "made").encode()) + b"\x85R."
    with pytest.raises(InputError, match=r"asks for os.mkdir, which data does not need"):
        read_pickled_table(evil, "batch")
    dotted = b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93."
    with pytest.raises(InputError, match=r"numpy.ndarray.__class__"):
        read_pickled_table(dotted, "batch")
    assert not (tmp_path / "made").exists()


def test_pickles_written_by_python_3_are_read_too():
    table = read_pickled_table(pickle.dumps({b"data": PIXELS, "labels": [1]}, protocol=2), "batch")
    np.testing.assert_array_equal(table["data"], PIXELS)
    assert table["labels"] == [1]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "does not hold the test split of cifar10: needs test_batch.bin or test_batch"),
        ({"test_batch.bin": b"\x00" * 3000}, "test_batch.bin is cut off"),
        ({"test_batch.bin": b""}, "holds no examples of cifar10"),
        ({"test_batch.bin": b"\x0a" * 3073}, "a label beyond the 10 classes"),
        ({"test_batch": b"\x80\x02garbage"}, "test_batch is refused as a pickle"),
        ({"test_batch": Python2({"labels": TEN}).out}, r"needs data of shape \[n, 3072\]"),
        ({"test_batch": Python2({"data": PIXELS, "labels": TEN[:2]}).out}, "as many labels as pictures, 4"),
        ({"test_batch": Python2({"data": PIXELS, "labels": [b"x"] * 4}).out}, "as many labels as pictures, 4"),
        ({"test_batch": pickle.dumps([1])}, "holds a list, not a table"),
    ],
)
def test_wrong_files_are_named(tmp_path, files, message):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message):
        load("cifar10", tmp_path)


def test_wrong_archives_and_options_are_named(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(b"not packed")
    with pytest.raises(InputError, match=r"x.tar.gz cannot be read as a tar archive"):
        load("cifar10", tmp_path / "x.tar.gz")
    archive = packed(tmp_path, "cifar10", "cifar-10-batches-bin")
    archive.write_bytes(archive.read_bytes()[:3000])
    with pytest.raises(InputError, match=r"archive.tar.gz"):
        load("cifar10", archive)
    with pytest.raises(InputError, match="there is no cifar10 at"):
        load("cifar10", tmp_path / "nowhere")
    with pytest.raises(OptionError, match="no split 'val'"):
        load("cifar10", tmp_path, split="val")
    with pytest.raises(OptionError, match="no labels 'medium'"):
        load("cifar100", tmp_path, labels="medium")


def test_an_archive_that_unpacks_a_hundredfold_is_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("test_batch.bin")
        info.size = 5_000_000
        archive.addfile(info, BytesIO(bytes(info.size)))
    with pytest.raises(InputError, match=r"x.tar.gz has 5,000,512 bytes unpacked and .* packed: more than 100 times"):
        load("cifar10", tmp_path / "x.tar.gz")
