"""Every method on a GPU gives what it gives on the CPU."""

import copy

import pytest
import torch
from applying import applying, cheaply
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail

FAMILIES = ("hf_vit", "timm_deit3", "torchvision_vit", "hf_bert", "hf_gpt2", "hf_llama", "hf_clip")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_gpu_gives_what_the_cpu_gives(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    there = {n: x.cuda() for n, x in inputs.items()} if isinstance(inputs, dict) else inputs.cuda()
    methods = cheaply(applying(model, inputs))
    here = vitrail.compare(model, inputs, methods, 1)
    far = vitrail.compare(copy.deepcopy(model).cuda(), there, methods, 1)
    for a, b in zip(here, far, strict=True):
        assert b.scores.is_cuda
        tolerance = 1e-2 if (name, a.method) == ("hf_llama", "lrp") else 1e-4
        scale = a.scores.abs().max().clamp(min=1e-300)
        # Norms and rotary tables of some families are in single precision, and full LRP is badly conditioned.
        assert_close(
            b.scores.cpu() / scale, a.scores / scale, atol=tolerance, rtol=0, msg=lambda m, a=a: f"{a.method}: {m}"
        )
