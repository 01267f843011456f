import builtins

import numpy as np
import pytest

from vitrail.errors import InputError, MissingExtraError
from vitrail.evaluate.data import load

h5py = pytest.importorskip("h5py")


@pytest.fixture
def file(tmp_path):
    """Two examples as MATLAB 7.3 stores them: cells of references, columns first, a mask in a cell of its own."""
    path = tmp_path / "gtsegs_ijcv.mat"
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as out:
        images = out.create_dataset("value/img", (2, 1), dtype=h5py.ref_dtype)
        masks = out.create_dataset("value/gt", (2, 1), dtype=h5py.ref_dtype)
        for i, (height, width) in enumerate([(4, 6), (5, 3)]):
            pixels = random.integers(256, size=(3, width, height), dtype=np.uint8)
            images[i, 0] = out.create_dataset(f"#refs#/i{i}", data=pixels).ref
            inner = out.create_dataset(f"#refs#/m{i}", data=np.eye(width, height, dtype=np.uint8)).ref
            cell = out.create_dataset(f"#refs#/c{i}", (1, 1), dtype=h5py.ref_dtype)
            cell[0, 0] = inner
            masks[i, 0] = cell.ref
    return path


def test_pictures_and_masks_are_turned_upright(file):
    dataset = load("imagenet_segmentation", file)
    assert dataset.keys == ["0000", "0001"]
    with h5py.File(file) as raw:
        stored = raw["#refs#/i0"][()]
    assert dataset[0].image.size == (6, 4)
    np.testing.assert_array_equal(np.asarray(dataset[0].image)[1, 5], stored[:, 5, 1])
    assert dataset[0].mask.tolist() == np.eye(4, 6).tolist()
    assert dataset[1].mask.shape == (5, 3)
    assert dataset[0].mask_labels == (1,)
    assert dataset[0].label is None


def test_broken_cells_raise_only_for_their_example(file):
    with h5py.File(file, "r+") as out:
        out["#refs#/m0"][0, 0] = 2
        out["value/img"][1, 0] = out["value"].ref
    first, second = load("imagenet_segmentation", file)
    assert first.image.size == (6, 4)
    with pytest.raises(InputError, match=r"0000: the mask holds \[2\]"):
        _ = first.mask
    with pytest.raises(InputError, match=r"0001: .*gtsegs_ijcv.mat cannot be read"):
        _ = second.image


def test_a_mask_of_another_size_raises(file):
    with h5py.File(file, "r+") as out:
        out["value/img"][0, 0], out["value/img"][1, 0] = out["value/img"][1, 0], out["value/img"][0, 0]
    with pytest.raises(InputError, match=r"0000: .*mask of shape"):
        _ = load("imagenet_segmentation", file)[0].mask


def test_missing_and_foreign_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"there is no ImageNet-Segmentation file at .*x.mat"):
        load("imagenet_segmentation", tmp_path / "x.mat")
    (tmp_path / "y.mat").write_bytes(b"MATLAB 5.0 MAT-file")
    with pytest.raises(InputError, match=r"y.mat is not the HDF5 file"):
        load("imagenet_segmentation", tmp_path / "y.mat")
    with h5py.File(tmp_path / "z.mat", "w") as out:
        out["other"] = 1
    with pytest.raises(InputError, match=r"z.mat is not the HDF5 file"):
        load("imagenet_segmentation", tmp_path / "z.mat")


def test_without_h5py_the_error_says_what_to_install(file, monkeypatch):
    real_import = builtins.__import__

    def no_h5py(name, *args, **more):
        if name == "h5py":
            raise ImportError(name)
        return real_import(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", no_h5py)
    with pytest.raises(MissingExtraError, match=r"pip install 'vitrail\[data\]'"):
        load("imagenet_segmentation", file)
