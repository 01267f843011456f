import numpy as np
import pytest
import torch
from PIL import Image
from saved_models import ARCH, save_bert, save_gpt2, save_timm, save_vit

from vitrail.models.loading import load


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    torch.manual_seed(3)
    save_timm(folder)
    for save in (save_bert, save_gpt2, save_vit):
        save(folder / save.__name__.removeprefix("save_"))
    return folder


@pytest.fixture(scope="session")
def vit(place):
    return lively(load(str(place / "vit")))


@pytest.fixture(scope="session")
def bert(place):
    return lively(load(str(place / "bert")))


@pytest.fixture(scope="session")
def timm_vit(place):
    return load(str(place / "weights.safetensors"), arch=ARCH)


def lively(loaded):
    """Random weights large enough that what is removed changes what is predicted; in double precision."""
    loaded.model.double()
    generator = torch.Generator().manual_seed(1)
    for weight in loaded.model.parameters():
        if weight.ndim > 1:
            weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.float64) * 0.4
    return loaded


@pytest.fixture(scope="session")
def save_pictures():
    """Coloured blotches, the finer the rougher."""

    def save(folder, count, *, size=(48, 40), rough=8):
        folder.mkdir()
        rng = np.random.default_rng(count)
        for number in range(count):
            pixels = rng.integers(256, size=(rough, rough, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize(size).save(folder / f"picture_{number:02}.png")
        return folder

    return save


@pytest.fixture
def pictures(save_pictures, tmp_path):
    return save_pictures(tmp_path / "pictures", 3)
