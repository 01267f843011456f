"""How many functions one explanation passes, which may only go down, and the private names of torch it needs."""

import sys
from pathlib import Path

import pytest
import torch
from tiny_models import MODELS, tiny

import vitrail
from vitrail.capture import torch_private
from vitrail.errors import SeamError

SOURCE = str(Path(vitrail.__file__).parent)
MOST_FUNCTIONS, MOST_FILES = 119, 24


def passed(call) -> set[tuple[str, str]]:
    """The functions of the package that a call passes, each with its file."""
    found = set()

    def profile(frame, event, arg):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<"):
            found.add((code.co_filename, code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def test_an_explanation_passes_no_more_functions_than_it_did():
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    vitrail.explain(model, inputs, "gae", 1)  # the first call measures the model's structure
    found = passed(lambda: vitrail.explain(model, inputs, "gae", 1))
    files = {file for file, _ in found}
    assert len(found) > 20  # the profile sees the package
    assert len(found) <= MOST_FUNCTIONS
    assert len(files) <= MOST_FILES


def test_a_private_name_that_torch_lacks_is_named_with_its_purpose():
    with pytest.raises(ImportError, match=r"torch\._C\._no_such_name, which vitrail needs to test this message"):
        torch_private._private("_C._no_such_name", "test this message")


def test_torch_keeps_what_the_core_reads():
    torch_private.check_interfaces()
    x = torch.zeros(2)
    before = torch_private.writes_to(x)
    x.add_(1)
    assert torch_private.writes_to(x) == before + 1
    assert torch_private.saving_hooks() is None
    with torch.autograd.graph.save_on_cpu():
        assert torch_private.saving_hooks() is not None


def test_a_structure_that_changes_between_calls_is_checked_again():
    """What is remembered of a shadow belongs to one structure: an unreadable implementation is seen on a later call."""
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    before = model.config._attn_implementation
    vitrail.explain(model, inputs, "gae", 1)
    model.config._attn_implementation = "flash_attention_2"
    try:
        with pytest.raises(SeamError, match="flash_attention_2"):
            vitrail.explain(model, inputs, "gae", 1)
    finally:
        model.config._attn_implementation = before
    assert bool(vitrail.explain(model, inputs, "gae", 1).scores.isfinite().all())
