import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

if "PYTEST_XDIST_WORKER" in os.environ:  # one worker a core: threads of several workers would wait for each other
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
