from pathlib import Path

import numpy as np
import pytest
from PIL import Image

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def real():
    """Where a real data set lies, beside the project; the test is skipped where it does not."""

    def find(name):
        if not (DATA / name).exists():
            pytest.skip(f"{name} (../shared/data) is not at hand")
        return DATA / name

    return find


@pytest.fixture
def save_picture():
    """Writes noise as a picture and gives its pixels."""

    def save(path, size=(7, 5), seed=0):
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(256, size=(size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        return pixels

    return save


@pytest.fixture
def save_values():
    """Writes numbers as a picture with a palette, as masks are stored."""

    def save(path, values):
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(np.array(values, dtype=np.uint8)).convert("P")
        image.putdata(np.array(values).flatten().tolist())
        image.save(path)

    return save
