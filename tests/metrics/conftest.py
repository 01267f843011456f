from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[1] / "golden" / "metrics"


@pytest.fixture(scope="session")
def given():
    return dict(np.load(FOLDER / "inputs.npz"))


@pytest.fixture(scope="session")
def expected():
    return dict(np.load(FOLDER / "expected.npz"))


@pytest.fixture(autouse=True)
def _one_thread():
    """These tensors are small: several threads would only wait for each other where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
