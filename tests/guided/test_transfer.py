import json
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from golden_sets import golden
from PIL import Image
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.api.requests import read_request
from vitrail.capture.recording.forward import find_body
from vitrail.capture.seams.intercept import in_place_of, on_top_of
from vitrail.errors import AnatomyError, OptionError, OutputError, TargetError
from vitrail.models.inputs import read_inputs
from vitrail.tools.transfer import METHOD, Rule, Scene, distribution


def scene_of(model, inputs, target=1):
    read = read_inputs(inputs)
    return Scene(
        model, find_body(model, None, read), read, read_request(METHOD, "recommended", read, targets.logit(target))
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_unchanged_maps_give_the_logits_of_the_model_bit_for_bit(name):
    entry = MODELS[name]
    film = vitrail.transfer(tiny(name), entry.inputs(1), steps=1, gradient="leaf")
    assert torch.equal(film.logits[0], film.clean)
    assert film.deviation == 0


@pytest.mark.parametrize("name", ["hf_vit", "hf_vit_eager", "hf_bert", "timm_vit", "torchvision_vit", "own_pre_norm"])
def test_the_logits_at_the_start_are_those_of_a_plain_call(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    plain = model(inputs) if isinstance(inputs, torch.Tensor) else model(**inputs)
    assert_close(
        vitrail.transfer(model, inputs, steps=1).clean, getattr(plain, "logits", plain).detach(), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("name", ["timm_vit", "hf_bert"])
def test_the_unchanged_maps_are_bit_for_bit_in_single_precision_too(name):
    model = MODELS[name].build().eval()
    film = vitrail.transfer(model, MODELS[name].inputs(dtype=torch.float32), steps=1)
    assert torch.equal(film.logits[0], film.clean)


@pytest.mark.parametrize("put", [in_place_of, on_top_of])
def test_the_gradient_of_the_maps_is_a_finite_difference_where_they_are_leaves(put):
    """A leaf's gradient is that of the logit with all other maps held fast; the full graph adds queries and keys."""
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs(1)
    scene, _, maps = scene_of(model, inputs).start()
    gradient = scene.see(maps, put).gradients[0][0, 1, 2, 3]
    change = torch.zeros_like(maps[0])
    change[0, 1, 2, 3] = 1e-5
    up, down = (scene.see({**maps, 0: maps[0] + sign * change}, in_place_of).scalar for sign in (1, -1))
    slope = ((up - down) / 2e-5)[0]
    if put is in_place_of:
        assert_close(gradient, slope, rtol=1e-6, atol=1e-12)
    else:
        assert abs(float(gradient - slope)) > 1e-3 * abs(float(slope))


@pytest.mark.parametrize(("item", "target"), [("img0", 8), ("img0", 9), ("img1", 0), ("img1", 4)])
def test_leaves_give_the_golden_map_of_leaf_attention(item, target):
    data = golden("v_tiny")
    film = vitrail.transfer(data.model, data.item(item), target, steps=1, gradient="leaf")
    expected = torch.from_numpy(data.expected[f"{item}/cui/complete_logit_leafattention/t{target}"])
    assert_close(film.maps[0, 0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert_eager", "hf_llama", "timm_siglip"])
def test_the_first_map_is_that_of_the_model_as_it_is(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    film = vitrail.transfer(model, inputs, steps=1)
    expected = vitrail.explain(model, inputs, "complete_gradient")
    assert_close(film.maps[0], expected.scores, rtol=1e-9, atol=1e-12)
    assert film.target == expected.target


def test_one_update_of_the_last_block_is_eta_times_its_gradient():
    """Above the last attention there are no queries and keys, so leaf and full gradient are one."""
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    layer = vitrail.record(model, inputs, 2).layers[-1]
    film = vitrail.transfer(model, inputs, 2, steps=1, eta=0.3)
    assert_close(film.attention[-1], layer.probs - 0.3 * layer.probs_grad)


@pytest.mark.parametrize(("direction", "sign"), [("away", -1), ("toward", 1)])
def test_a_small_step_changes_the_target_by_eta_times_the_squared_gradient(direction, sign):
    model, inputs, eta = tiny("timm_vit"), MODELS["timm_vit"].inputs(), 1e-6
    scene, _, maps = scene_of(model, inputs).start()
    squares = sum(g.square().sum(dim=(1, 2, 3)) for g in scene.see(maps, in_place_of).gradients.values())
    film = vitrail.transfer(model, inputs, 1, steps=1, eta=eta, direction=direction)
    assert_close(film.scalar[1] - film.scalar[0], sign * eta * squares, rtol=1e-3, atol=0)  # first order in eta


def test_the_target_falls_in_every_step_and_stays_the_same_class():
    film = vitrail.transfer(tiny("torchvision_vit"), MODELS["torchvision_vit"].inputs(), steps=6, eta=4e-4)
    assert bool((film.scalar.diff(dim=0) < 0).all())
    assert film.target.first == tuple(film.logits[0].argmax(dim=1).tolist())
    assert {a.target for a in film.attributions} == {film.target}


@pytest.mark.parametrize("gradient", ["full", "leaf"])
def test_a_batch_is_its_samples_one_by_one(gradient):
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs(3)
    film = vitrail.transfer(model, inputs, [1, 0, 3], steps=2, eta=0.01, gradient=gradient)
    for row, target in enumerate([1, 0, 3]):
        one = vitrail.transfer(model, inputs[row : row + 1], target, steps=2, eta=0.01, gradient=gradient)
        assert_close(film.logits[:, row], one.logits[:, 0])
        assert_close(film.maps[:, row], one.maps[:, 0])


def test_padding_is_never_looked_at():
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs(1)
    ids = torch.cat([inputs["input_ids"], torch.zeros(1, 3, dtype=torch.long)], dim=1)
    padded = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    short, long = (vitrail.transfer(model, x, 1, steps=3, eta=0.1) for x in (inputs, padded))
    assert_close(long.logits, short.logits)
    assert_close(long.maps[:, :, :9], short.maps)
    assert all(bool((attention[..., 9:] == 0).all()) for attention in long.attention)


def test_no_token_looks_ahead_in_a_causal_model():
    film = vitrail.transfer(tiny("hf_gpt2"), MODELS["hf_gpt2"].inputs(), steps=2, eta=0.1)
    assert film.logits.shape == (3, 2, 60)
    assert all(bool((attention.triu(1) == 0).all()) for attention in film.attention)


def test_renormalised_rows_are_distributions_and_others_are_not():
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    plain, renormalised = (
        vitrail.transfer(model, inputs, 1, steps=2, eta=5.0, renormalise=flag) for flag in (False, True)
    )
    for attention in renormalised.attention:
        assert bool((attention >= 0).all())
        assert_close(attention.sum(dim=-1), torch.ones_like(attention.sum(dim=-1)))
    assert any(float((attention.sum(dim=-1) - 1).abs().max()) > 1e-3 for attention in plain.attention)


def test_a_row_that_sees_nothing_stays_empty():
    assert_close(distribution(torch.tensor([[0.0, 0.0], [-1.0, 2.0]])), torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    maps, visible = {0: torch.eye(2)[None, None]}, {0: torch.eye(2)[None, None]}
    assert_close(Rule(1.0, -1.0, renormalise=False).step(maps, {0: torch.ones(1, 1, 2, 2)}, visible)[0], 0 * maps[0])


def test_the_model_is_as_it_was_also_after_an_error():
    def broken(logits):
        raise ZeroDivisionError

    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    before = model(inputs)
    model.train()
    with pytest.raises(TargetError, match="broken raised ZeroDivisionError"):
        vitrail.transfer(model, inputs, broken)
    assert model.training
    model.eval()
    assert torch.equal(model(inputs), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_any_target_is_followed():
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    contrast = vitrail.transfer(model, inputs, targets.difference(1, 2), steps=1)
    assert_close(contrast.scalar, contrast.logits[..., 1] - contrast.logits[..., 2])
    custom = vitrail.transfer(model, inputs, lambda logits: logits[:, 1] - logits[:, 2], steps=1)
    assert_close(custom.scalar, contrast.scalar)
    assert_close(contrast.probabilities.sum(dim=2), torch.ones(2, 2, dtype=torch.float64))


WRONG = [
    ({"eta": 0.0}, OptionError, "above 0"),
    ({"eta": float("nan")}, OptionError, "above 0"),
    ({"steps": 0}, OptionError, "steps=0"),
    ({"direction": "up"}, OptionError, "Known: away, toward"),
    ({"gradient": "leav"}, OptionError, "Did you mean leaf"),
    ({"target": 9}, TargetError, "out of range"),
]


@pytest.mark.parametrize(("options", "error", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_what_cannot_be_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        vitrail.transfer(tiny("hf_vit"), MODELS["hf_vit"].inputs(), **options)


def test_a_model_without_known_blocks_is_refused():
    model = tiny("timm_vit")
    with pytest.raises(AnatomyError, match="transfer needs the blocks"):
        vitrail.transfer(model, MODELS["timm_vit"].inputs(), anatomy=vitrail.Anatomy(prefix=1, readout="cls"))


def test_films_are_drawn_for_pictures_and_sentences(tmp_path):
    image = np.random.default_rng(0).random((32, 32, 3))
    film = vitrail.transfer(tiny("hf_vit"), MODELS["hf_vit"].inputs(), steps=8)
    assert len(film.plot(image, index=1, frames=4).axes) == 1 + 4 + 1  # the input, four steps, a colour bar
    with Image.open(BytesIO(film.gif(image))) as moving:
        assert moving.n_frames == len(film) == 9
    text = vitrail.transfer(tiny("hf_bert"), MODELS["hf_bert"].inputs(), steps=2)
    assert text.save(tmp_path / "strip.png").read_bytes().startswith(b"\x89PNG")
    assert text.save(tmp_path / "film.gif").read_bytes().startswith(b"GIF89a")
    numbers = json.loads(text.save(tmp_path / "film.json").read_text())
    assert_close(torch.tensor(numbers["scores"], dtype=torch.float64), text.maps)
    with pytest.raises(OutputError, match="known ending"):
        text.save(tmp_path / "film.mp4")
    with pytest.raises(OptionError, match="frames=1"):
        film.plot(image, frames=1)


def test_every_step_says_how_it_was_made():
    film = vitrail.transfer(tiny("hf_vit"), MODELS["hf_vit"].inputs(), steps=2, gradient="leaf")
    about = film.attributions[2].provenance
    assert about["transfer"]["step"] == 2
    assert about["transfer"]["gradient"] == "leaf"
    assert about["model_class"] == "ViTForImageClassification"
    assert replace(film, clean=film.clean + 1).deviation == pytest.approx(1)
