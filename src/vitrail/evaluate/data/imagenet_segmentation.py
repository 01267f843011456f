"""ImageNet-Segmentation: 4,276 photographs with the outline of their object.

Guillaumin, Küttel and Ferrari, IJCV 2014; the file `gtsegs_ijcv.mat`, MATLAB 7.3, which is HDF5.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import InputError, MissingExtraError
from vitrail.evaluate.data.dataset import Dataset
from vitrail.evaluate.data.examples import ImageExample, Mask
from vitrail.evaluate.data.files import one_line, require_file
from vitrail.evaluate.data.masks import translate
from vitrail.evaluate.data.pictures import from_array

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES, MASKS = "/value/img", "/value/gt"
BROKEN = (OSError, KeyError, IndexError, ValueError, TypeError, AttributeError, RuntimeError)
"""What h5py raises on files that are damaged or built differently."""


def read_imagenet_segmentation(source: str | Path) -> Dataset[ImageExample]:
    """The photographs with masks 0 and 1; there are no labels, the protocol explains the model's prediction."""
    path = require_file(Path(source), "ImageNet-Segmentation file")
    h5py = _h5py()
    try:
        with h5py.File(path, "r") as file:
            count, masks = len(file[IMAGES]), len(file[MASKS])
    except BROKEN as error:
        raise InputError(f"{path} is not the HDF5 file of ImageNet-Segmentation: {one_line(error)}") from error
    if count != masks:
        raise InputError(f"{path} has {count} pictures, but {masks} masks.")
    names = {0: "background", 1: "object"}
    return Dataset("imagenet_segmentation", str(path), range(count), _key, partial(_example, path), mask_classes=names)


def _key(number: int) -> str:
    return f"{number:04d}"


def _example(path: Path, number: int) -> ImageExample:
    return ImageExample(_key(number), partial(_image, path, number), open_mask=partial(_mask, path, number))


def _image(path: Path, number: int) -> "Image":
    pixels = _stored(path, number, IMAGES)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[0] != 3):
        raise InputError(f"{_key(number)}: {path} has {pixels.dtype} {list(pixels.shape)} for a picture.")
    # MATLAB stores columns first: [channel, x, y].
    colour = np.stack([pixels] * 3) if pixels.ndim == 2 else pixels
    return from_array(np.ascontiguousarray(colour.transpose(2, 1, 0)))


def _mask(path: Path, number: int) -> Mask:
    values, size = _stored(path, number, MASKS), _stored(path, number, IMAGES).shape[-2:]
    if values.shape != size:
        raise InputError(
            f"{_key(number)}: {path} has a mask of shape {list(values.shape)} for a picture of {list(size)}."
        )
    return translate(_key(number), values.T, {0: 0, 1: 1})


def _stored(path: Path, number: int, where: str) -> np.ndarray:
    """What a cell of the file refers to; a mask lies in a cell within the cell."""
    h5py = _h5py()
    try:
        with h5py.File(path, "r") as file:
            stored = file[file[where][number, 0]]
            while stored.dtype == h5py.ref_dtype:
                stored = file[stored[0, 0]]
            return stored[()]
    except BROKEN as error:
        raise InputError(f"{_key(number)}: {path} cannot be read here: {one_line(error)}") from error


def _h5py() -> Any:  # noqa: ANN401
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError("ImageNet-Segmentation is an HDF5 file: pip install 'vitrail[data]'") from error
    return h5py
