"""Nothing of a pass outlives it."""

import copy
import gc
import importlib
import weakref

import pytest
import torch
from applying import applying, cheaply
from tiny_models import MODELS, tiny

import vitrail

pytestmark = pytest.mark.usefixtures("little_to_search")
record = importlib.import_module("vitrail.capture.recording.forward")


@pytest.mark.parametrize("name", ["timm_vit", "hf_bert", "hf_llama"])
def test_no_pass_is_kept_alive_by_the_rules_it_was_bent_by(name, monkeypatch):
    seen: list[tuple[str, weakref.ref]] = []

    class Watched(record.Capture):
        def root(self, x):
            made = super().root(x)
            seen.append((current, weakref.ref(made)))
            return made

    monkeypatch.setattr(record, "Capture", Watched)
    model, inputs = tiny(name), MODELS[name].inputs()
    for method in cheaply(applying(model, inputs)):
        current = method[0]
        vitrail.compare(model, inputs, [method], 1)
    gc.collect()
    assert {name for name, _ in seen} >= {"gae", "lrp", "conservative_lrp"}
    assert [name for name, root in seen if root() is not None] == []
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", ["hf_bert", "hf_gpt2", "hf_vit"])
def test_no_graph_outlives_a_call(name):
    """What a model's structure is measured in would hold a whole pass for as long as the process lives."""
    model, inputs = copy.deepcopy(tiny(name)), MODELS[name].inputs()

    def with_graph():
        gc.collect()
        return {id(x) for x in gc.get_objects() if isinstance(x, torch.Tensor) and x.grad_fn is not None}

    before = with_graph()
    vitrail.explain(model, inputs, "gae")
    assert not with_graph() - before
