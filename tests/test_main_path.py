"""How many functions one explanation passes, which may only go down; and that a warm call explains the model as it is.

What is known of a model is kept between calls. A call after any change must give what it gives for a fresh copy.
"""

import copy
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.capture import torch_private
from vitrail.errors import SeamError

SOURCE = str(Path(vitrail.__file__).parent)
MOST = {"gae": (124, 26), "auto": (279, 43)}
"""For each method, the functions of the package and the files they are in. Ten of the functions compare what a call
does to its tokens with what was measured."""


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


@pytest.mark.parametrize("method", MOST)
def test_an_explanation_passes_no_more_functions_than_it_did(method):
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    vitrail.explain(model, inputs, method, 1)  # the first call measures the model's structure
    found = passed(lambda: vitrail.explain(model, inputs, method, 1))
    functions, files = MOST[method]
    assert len(found) > 20  # the profile sees the package
    assert len(found) <= functions
    assert len({file for file, _ in found}) <= files


def written(model):
    model.blocks[1].attn.qkv.weight.data.mul_(1.5)


def exchanged(model):
    model.blocks[1].attn.proj.weight = nn.Parameter(model.blocks[1].attn.proj.weight.detach() * 1.5)


def moved(model):
    model.norm.weight.data = model.norm.weight.data * torch.linspace(0.5, 2, len(model.norm.weight))


def another_block(model):
    model.blocks[1] = copy.deepcopy(model.blocks[0])


def without_a_block(model):
    del model.blocks[-1]


def hooked(model):
    model.blocks[0].register_forward_hook(lambda module, args, out: out * 1.5)


def in_single_precision(model):
    model.float()


def another_setting(model):
    model.blocks[1].attn.scale *= 3
    model.blocks[1].attn.fused_attn = False


def another_forward(model):
    own = model.blocks[1].mlp.forward
    model.blocks[1].mlp.forward = lambda x: own(x) * 2


def frozen(model):
    model.requires_grad_(requires_grad=False)


def another_pool(model):
    model.global_pool = "avg"


def another_buffer(model):
    model.gate.mul_(3)


class Gated(nn.Module):
    """A model with a buffer that its head reads."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.register_buffer("gate", torch.linspace(0.5, 2, 3, dtype=torch.float64))

    def forward(self, x):
        return (self.inner(x)[:, :3] * self.gate) ** 2


CHANGES = [written, exchanged, moved, another_block, without_a_block, hooked, in_single_precision, another_setting,
           another_forward, frozen, another_pool, another_buffer]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_warm_call_explains_the_model_as_it_is_now(change):
    model, inputs = copy.deepcopy(tiny("timm_vit")), MODELS["timm_vit"].inputs()
    model = Gated(model) if change is another_buffer else model
    warm = [vitrail.explain(model, inputs, "gae", 1) for _ in range(2)][1]
    change(model)
    inputs = inputs.float() if change is in_single_precision else inputs
    fresh, now = copy.deepcopy(model), vitrail.explain(model, inputs, "gae", 1)
    expected = vitrail.explain(fresh, inputs, "gae", 1)
    assert_close(now.scores, expected.scores)
    assert now.provenance["model_hash"] == expected.provenance["model_hash"]
    if change is not frozen:
        assert not torch.equal(now.scores, warm.scores)


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
