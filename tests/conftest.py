import atexit
import gc
import os
import secrets
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from type_checks import check_sparingly

gc.disable()  # until all tests are collected: imports make millions of objects and leave little garbage
check_sparingly()

# One token for all processes: clusters that start at once on a new machine would overwrite each other's file of it.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

if not torch.cuda.is_available():  # so that the kernels run, slowly, on any machine; read when Triton is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes():
    """One thread in each worker and in each process it starts: threads of several would wait for each other."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


SLOW = (
    "app/", "bench/", "cli/", "guided/", "report/", "training/", "zoo/", "methods/test_agcam.py",
    "methods/test_consensus", "methods/test_grad_eclip.py", "methods/test_integrated_gradients.py",
    "methods/test_le_grad.py", "methods/test_lrp.py", "methods/test_soft_ablation.py", "methods/test_tis.py",
    "methods/test_vit_cx.py", "plots/test_sheet.py", "relevance/test_fused.py", "rules/test_arguments.py",
    "rules/test_mode.py", "test_additions.py", "test_any_transformer.py", "test_caches_and_adapters.py", "test_clip.py",
    "test_consensus_search.py", "test_demo.py", "test_docs.py", "test_doors.py", "test_families.py",
    "test_golden", "test_graph_cuts.py",
    "test_integrity.py", "test_low_memory.py", "test_measure.py", "test_memory.py", "test_models_by_name.py",
    "test_own_methods.py", "test_prepare.py", "test_public_names.py", "test_random_models.py",
    "test_real_models.py", "test_shadow.py", "test_silent_errors.py", "test_stream_memory.py", "test_stream_methods.py",
    "test_stream_models.py", "test_stream_tokentm.py", "test_streams", "test_surroundings.py", "test_unusual_logits.py",
    "test_wrappers.py",
)  # fmt: skip
"""Folders and files whose tests start processes, train, or run whole models many times. Single tests that take more
than two seconds carry the mark themselves."""
FAST = ("bench/test_protocols.py", "bench/test_store.py", "guided/test_detail.py")
"""Files in those folders that are quick."""


HERE = Path(__file__).parent


@cache
def is_slow(path):
    """Whether all tests of a file, or of a folder, are slow."""
    name = path.relative_to(HERE).as_posix() + "/" * path.is_dir()
    return name.startswith(SLOW) and not any(fast.startswith(name) for fast in FAST)


def pytest_ignore_collect(collection_path, config):
    """Files and folders whose tests are all slow are not even imported where slow tests are left out."""
    known = HERE in collection_path.parents and (collection_path.suffix == ".py" or collection_path.is_dir())
    return True if known and "not slow" in config.option.markexpr and is_slow(collection_path) else None


def pytest_collection_finish():
    """Leave what was imported out of later searches for garbage: each would pass millions of objects.

    They are let go when Python ends, or libraries tell of leaks, and not before: pytest searches several times.
    """
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items):
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)
        if "browser" in item.path.stem:
            item.add_marker(pytest.mark.browser)
        if item.path.stem == "test_cuda":
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def little_to_search():
    """Leave all there is out of the searches for garbage that the tests of a file ask for."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def methods_as_they_were():
    """Methods that a test registers are gone after it."""
    from vitrail.methods import METHODS

    known = list(dict.keys(METHODS))
    yield
    for name in [name for name in dict.keys(METHODS) if name not in known]:
        dict.__delitem__(METHODS, name)
