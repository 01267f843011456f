"""CLIP: pictures compared with texts, a class being a text."""

import pytest
import torch
from applying import WITH_SOURCES, applying
from tiny_models import MODELS, texts, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.errors import InputError
from vitrail.models.anatomy import known_anatomy
from vitrail.models.inputs import read_inputs
from vitrail.tools.doctor import examine

CLIP = "hf_clip"


def square_inputs():
    """As many texts as pictures, where an axis could be taken for another."""
    return {"pixel_values": MODELS[CLIP].inputs()["pixel_values"], **texts((6, 4))}


def test_a_text_is_a_class():
    clip, inputs = tiny(CLIP), MODELS[CLIP].inputs()
    recording = vitrail.record(clip, inputs, 3)
    assert torch.equal(recording.logits, clip(**inputs).logits_per_image)
    assert_close(recording.scalar, clip(**inputs).logits_per_image[:, 3].detach())


def test_taking_samples_leaves_the_texts_alone():
    inputs = read_inputs(square_inputs())
    one = inputs.take(torch.tensor([1]))
    assert one.batch == 1
    assert torch.equal(one.kwargs["pixel_values"], inputs.kwargs["pixel_values"][1:])
    assert torch.equal(one.kwargs["input_ids"], inputs.kwargs["input_ids"])
    assert torch.equal(one.kwargs["attention_mask"], inputs.kwargs["attention_mask"])


def test_the_mask_of_the_texts_is_none_of_the_picture():
    assert read_inputs(square_inputs()).attention_mask is None
    recording = vitrail.record(tiny(CLIP), square_inputs(), 0)
    assert recording.layers[0].valid.shape == (2, 17)
    assert bool(recording.layers[0].valid.all())


@pytest.mark.parametrize("name", [CLIP, "hf_clip_eager"])
def test_only_the_image_tower_is_recorded(name):
    recording = vitrail.record(tiny(name), MODELS[name].inputs(), 0)
    assert [one.owner for one in recording.layers] == [f"vision_model.encoder.layers.{i}.self_attn" for i in range(3)]
    assert [one.probs.shape for one in recording.layers] == [(2, 3, 17, 17)] * 3


def test_the_doctor_passes_both_towers():
    for name in (CLIP, "hf_clip_text"):
        assert examine(tiny(name), MODELS[name].inputs()).passed


def test_texts_beside_the_one_explained_change_nothing():
    clip, inputs = tiny(CLIP), MODELS[CLIP].inputs()
    alone = inputs | {name: inputs[name][2:3] for name in ("input_ids", "attention_mask")}
    for method in ("gae", "grad_eclip", "attcat", "input_x_gradient"):
        expected = vitrail.explain(clip, inputs, method, 2).scores
        assert_close(vitrail.explain(clip, alone, method, 0).scores, expected, atol=1e-11, rtol=1e-8)


def test_a_wrapped_model_is_found_and_read_at_the_class_token():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny(CLIP)

        def forward(self, **given):
            return self.inner(**given)

    inputs = MODELS[CLIP].inputs()
    for method in ("gae", "grad_eclip"):
        expected = vitrail.explain(tiny(CLIP), inputs, method, 1).scores
        assert_close(vitrail.explain(Wrapper(), inputs, method, 1).scores, expected)


def test_a_head_of_ones_own_on_the_image_tower_is_measured():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = tiny(CLIP).vision_model
            self.head = nn.Linear(24, 4, dtype=torch.float64)

        def forward(self, pixel_values):
            return self.head(self.tower(pixel_values).pooler_output)

    model, pixels = Classifier(), MODELS[CLIP].inputs()["pixel_values"]
    assert known_anatomy(model).readout == "auto"
    layer = vitrail.record(model, {"pixel_values": pixels}, 0).layers[-1]
    assert_close(layer.readout, torch.eye(17, dtype=torch.float64)[:1].expand(2, 17))
    assert "grad_eclip" not in applying(model, {"pixel_values": pixels})


def test_pictures_without_texts_are_an_error_that_says_what_to_add():
    pixels = MODELS[CLIP].inputs()["pixel_values"]
    for inputs in (pixels, {"pixel_values": pixels}, texts()):
        with pytest.raises(InputError, match="compares pictures with texts"):
            vitrail.explain(tiny(CLIP), inputs)


def test_every_method_applies_to_some_family():
    names = (CLIP, "hf_vit", "hf_bert", "hf_gpt2")
    found = {method for name in names for method in applying(tiny(name), MODELS[name].inputs())}
    assert found == set(vitrail.METHODS) - WITH_SOURCES
