"""Photographs as one uint8 tensor, read from the Imagenette archives or from a folder."""

import io
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from vitrail.evaluate.data.labelled import IMAGENETTE_SYNSETS

SUFFIXES = {".webp", ".jpg", ".jpeg", ".png"}
UNLABELLED = -1


@dataclass(frozen=True)
class Photos:
    """Square photographs and their class numbers; -1 where there is no label."""

    pixels: Tensor  # uint8 [n, 3, size, size]
    labels: Tensor  # int64 [n]

    def to(self, device: str) -> "Photos":
        """The same photographs on another device."""
        return Photos(self.pixels.to(device), self.labels.to(device))


def join(parts: Iterable[Photos]) -> Photos:
    """Several sets as one."""
    parts = list(parts)
    return Photos(torch.cat([p.pixels for p in parts]), torch.cat([p.labels for p in parts]))


def read_archive(path: Path, *, size: int, limit: int | None = None) -> Photos:
    """The photographs of an archive laid out as `<wnid>/<name>`; with a limit, evenly spaced ones."""
    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if Path(n).suffix in SUFFIXES]
        count = len(names) if limit is None else min(limit, len(names))
        names = [names[i * len(names) // count] for i in range(count)]
        files = [archive.read(name) for name in names]  # one thread: a ZipFile is not to be shared
    order = {wnid: number for number, wnid in enumerate(IMAGENETTE_SYNSETS)}
    labels = [order[Path(name).parent.name] for name in names]
    return Photos(_decode_all([lambda data=data: data for data in files], size), torch.tensor(labels))


def archive_stems(path: Path) -> set[str]:
    """The names in an archive without folder and suffix."""
    with zipfile.ZipFile(path) as archive:
        return {Path(name).stem for name in archive.namelist()}


def read_folder(path: Path, *, size: int, skip: set[str]) -> Photos:
    """The photographs of a folder without labels, but for the names in `skip`.

    Args:
        skip: stems of the training and validation sets. ImageNet's own validation images sit in both, and a
            validation image must not be seen in training even without its label.
    """
    files = sorted(f for f in path.rglob("*") if f.suffix.lower() in SUFFIXES and f.stem not in skip)
    pixels = _decode_all([file.read_bytes for file in files], size)
    return Photos(pixels, torch.full((len(files),), UNLABELLED))


def _decode_all(sources: list[Callable[[], bytes]], size: int) -> Tensor:
    with ThreadPoolExecutor() as pool:
        arrays = list(pool.map(lambda read: _decode(read(), size), sources))
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()


def _decode(data: bytes, size: int) -> np.ndarray:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC))
