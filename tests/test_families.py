"""One walk over every supported family: what the recorder saw, and what every method made of it."""

from functools import cache

import pytest
import torch
from applying import WALKING, applying, cheaply
from tiny_models import MODELS, tiny
from torch.testing import assert_close
from type_checks import unchecked

import vitrail
from vitrail.capture.outputs import read_output
from vitrail.models.anatomy import known_anatomy

every_family = pytest.mark.parametrize("name", MODELS)
# Hugging Face computes norms and rotary tables of these in float32, so sums in another order differ.
SINGLE = {
    "hf_vit_eager",
    "hf_clip_eager",
    "hf_llama",
    "hf_llama_classifier",
    "hf_llama_eager",
    "hf_qwen3",
    "hf_modernbert",
    "hf_modernbert_mean",
}
MAY_BE_ZERO = {
    "grad_cam", "feature_grad_cam", "gradtoken", "grad_eclip", "grad_eclip_heads", "bi_head", "bi_token", "tam",
    "partial_lrp",
}  # fmt: skip


def call(model, inputs):
    return read_output(model(**inputs) if isinstance(inputs, dict) else model(inputs)).logits


def taken(inputs, rows):
    if not isinstance(inputs, dict):
        return inputs[rows]
    shared = {"input_ids", "attention_mask"} if "pixel_values" in inputs else set()  # CLIP's texts are its classes
    return {n: x if n in shared else x[rows] for n, x in inputs.items()}


def padded(inputs):
    """A text with four more tokens that are none."""
    if not isinstance(inputs, dict):
        return torch.nn.functional.pad(inputs, (0, 4))
    return {name: torch.nn.functional.pad(x, (0, 4)) for name, x in inputs.items()}


def everything(model, inputs, target):
    return vitrail.compare(model, inputs, cheaply(applying(model, inputs)), target)


@cache
def together(name):
    """What every method makes of two samples, each with a class of its own."""
    return everything(tiny(name), MODELS[name].inputs(), [0, 2])


DECODERS = ("hf_gpt2", "hf_llama", "hf_qwen3")
FOUND = [name for name, model in MODELS.items() if model.kind == "text"]
FOUND.remove("hf_clip_text")  # a tower of a family with pictures


@pytest.mark.parametrize("name", FOUND)
def test_models_of_text_are_in_no_table_and_their_blocks_are_found(name):
    model = tiny(name)
    found = vitrail.structure(model, MODELS[name].inputs())
    assert known_anatomy(model) is None
    assert [block.name.rpartition(".")[2] for block in found.blocks] == [str(i) for i in range(len(found.calls))]
    assert all(call.causal == name.startswith(DECODERS) and call.kind == "self" for call in found.calls)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in FOUND])
def test_the_anatomy_is_what_the_config_says(name):
    found = known_anatomy(tiny(name))
    assert (found.prefix, found.readout) == (MODELS[name].prefix, MODELS[name].readout)


@every_family
def test_attention_times_values_is_what_the_model_computed(name):
    recording = vitrail.record(tiny(name), MODELS[name].inputs())
    for layer in recording.layers:
        assert (layer.weights is None) == (MODELS[name].seam == "fused")
        atol = 1e-6 if name in SINGLE else 1e-12
        assert_close(layer.probs @ layer.values, layer.output, atol=atol, rtol=0)
        assert_close(layer.probs.sum(dim=3), torch.ones_like(layer.probs[..., 0]))


@every_family
def test_logits_are_bit_for_bit_those_of_a_plain_run(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    assert torch.equal(vitrail.record(model, inputs).logits, call(model, inputs).detach())


@every_family
def test_every_method_gives_one_finite_score_per_patch_or_token(name):
    case = MODELS[name]
    for attribution in together(name):
        assert attribution.scores.dtype == torch.float64
        assert bool(torch.isfinite(attribution.scores).all())
        if case.kind == "image":
            assert attribution.grid is not None
            assert attribution.scores.shape == (2, attribution.grid[0] * attribution.grid[1])
            assert case.size[0] / attribution.grid[0] == case.size[1] / attribution.grid[1]
        else:
            assert attribution.scores.shape == (2, 9)
        assert float(attribution.scores.abs().sum()) > 0 or attribution.method in MAY_BE_ZERO


@every_family
def test_a_batch_gives_what_a_sample_gives_alone_and_padding_changes_nothing(name):
    """The second sample, which is wrong wherever something of the first one is used for all; a text with padding."""
    inputs, text = taken(MODELS[name].inputs(), slice(1, 2)), MODELS[name].kind == "text"
    tolerance = {"atol": 1e-5, "rtol": 1e-4} if name in SINGLE else {"atol": 1e-10, "rtol": 1e-7}
    whole = together(name)
    with unchecked():  # the same functions have just run on the same model
        alone = everything(tiny(name), padded(inputs) if text else inputs, 2)
    for a, b in zip(whole, alone, strict=True):
        real = a.scores.shape[1]
        assert b.scores.shape[1] == real + 4 * text
        assert_close(b.scores[0, :real], a.scores[1], **tolerance, msg=lambda m, a=a: f"{a.method}: {m}")
        assert not bool(b.scores[:, real:].any()), a.method


IN_BLOCKS = (
    "hf_vit", "hf_vit_eager", "hf_deit_teacher", "hf_beit", "hf_clip", "hf_bert", "hf_modernbert", "hf_gpt2",
    "hf_llama", "hf_llama_eager", "timm_vit_avg", "timm_siglip", "own_time_first",
)  # fmt: skip
"""Every kind of seam, readout, mask, bias and shared key head once: blocks of rows know nothing else of a family."""


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_chunked_gives_what_dense_gives(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    read = {*WALKING, "bi_head", "bi_token", "tam", "dix"}
    dense = [one for one in together(name) if one.method in read]
    methods = cheaply(one.method for one in dense)
    chunked = vitrail.compare(model, inputs, methods, [0, 2], backend="chunked", chunk_rows=3)
    for a, b in zip(dense, chunked, strict=True):
        used = (a.provenance["backend"], b.provenance["backend"])
        assert used in (("dense", "chunked"), ("none", "none"))  # some methods read no maps
        assert_close(a.scores, b.scores, atol=1e-11, rtol=1e-9, msg=lambda m, a=a: f"{a.method}: {m}")
