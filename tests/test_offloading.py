"""Models whose weights wait on the CPU or on the disk (accelerate): explained as if they were not."""

import pytest
import torch
from any_models import TABLE
from applying import cheaply
from torch.testing import assert_close

import vitrail

accelerate = pytest.importorskip("accelerate")
METHODS = cheaply(["auto", "gae", "tokentm", "attn_lrp", "integrated_gradients"])


def on_the_cpu(model, folder):
    return accelerate.cpu_offload(model, execution_device=torch.device("cpu"))


def on_the_disk(model, folder):
    accelerate.disk_offload(model, str(folder), execution_device=torch.device("cpu"))
    return model


def by_a_device_map(model, folder):
    first, *others = (name for name, _ in model.named_children())
    places = {first: "cpu", **dict.fromkeys(others, "disk")}
    return accelerate.dispatch_model(model, places, offload_dir=str(folder), main_device="cpu", force_hooks=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "offload"),
    [("decoder/gemma", on_the_cpu), ("vision/vit", on_the_disk), ("encoder/bert", by_a_device_map)],
)
def test_offloaded_weights_change_nothing(name, offload, tmp_path):
    torch.manual_seed(0)
    model, inputs = TABLE[name].build().eval(), TABLE[name].inputs()
    inputs = {key: x.float() if x.is_floating_point() else x for key, x in inputs.items()}
    expected = [found.scores for found in vitrail.compare(model, inputs, METHODS, 1)]
    model = offload(model, tmp_path)
    assert any(p.is_meta for p in model.parameters())
    for (method, options), scores in zip(METHODS, expected, strict=True):
        assert_close(vitrail.explain(model, inputs, method, 1, **options).scores, scores, atol=1e-5, rtol=1e-5)
    assert any(p.is_meta for p in model.parameters())
