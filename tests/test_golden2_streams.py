"""Parts C and D of golden2: encoder-decoder models in both forms of GAE, Swin's windows and merges, in float64."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import vitrail
from vitrail import targets

HERE = Path(__file__).parent / "golden2"
TOLERANCE = {"encdec_bart": 1e-8, "encdec_detr": 1e-8, "encdec_t5": 1e-4, "swin": 1e-5}
PRESETS = {"gae_mm": "paper", "gae_walk": "recommended"}


@cache
def model_of(folder):
    config = json.loads((HERE / folder / "config.json").read_text())
    kind = getattr(transformers, config["class"])
    given = dict(config["config"])
    if "backbone_config" in given:
        given["backbone_config"] = transformers.ResNetConfig(**given["backbone_config"])
    made = kind.config_class(**given)
    made._attn_implementation = "eager"
    model = kind(made)
    _, unexpected = model.load_state_dict(load_file(HERE / folder / "weights.safetensors"), strict=False)
    assert not unexpected
    model.tie_weights()
    return model.double().eval(), config


def inputs_of(folder, item):
    found = np.load(HERE / folder / "inputs.npz")
    names = {name.split("/")[0] for name in found.files}
    given = {name: torch.from_numpy(found[f"{name}/{item[3:]}"])[None] for name in names}
    return {name: x.double() if x.is_floating_point() else x for name, x in given.items()}


def expected(folder, *methods):
    arrays = np.load(HERE / folder / "expected.npz")
    return {key: arrays[key] for key in arrays.files if key.split("/")[1] in methods}


def difference(ours, theirs):
    ours = ours.numpy()
    assert ours.shape == theirs.shape
    return np.abs(ours / np.abs(ours).max() - theirs / np.abs(theirs).max()).max()


@cache
def explained(folder, item, method, where):
    position, index = (int(x[1:]) for x in where.split("_"))
    target = targets.logit(index, position=position)
    return vitrail.explain(
        model_of(folder)[0], inputs_of(folder, item), method="gae", preset=PRESETS[method], target=target
    )


@pytest.mark.parametrize("folder", ["encdec_bart", "encdec_t5", "encdec_detr"])
def test_encoder_and_decoder_relevance_match(folder):
    found = expected(folder, *PRESETS)
    assert len(found) == 16
    for key, theirs in found.items():
        item, method, stream, where = key.split("/")
        ours = explained(folder, item, method, where)
        assert difference(ours.streams[stream].scores[0], theirs) < TOLERANCE[folder], key
        assert torch.equal(ours.scores, ours.streams["encoder"].scores)


def test_swin_walks_through_shifted_windows_and_merges():
    model, _ = model_of("swin")
    found = expected("swin", "gae")
    assert len(found) == 4
    for key, theirs in found.items():
        item, _, where = key.split("/")
        ours = vitrail.explain(model, inputs_of("swin", item), method="gae", target=int(where[1:]))
        assert ours.grid == (16, 16)
        assert difference(ours.scores[0], theirs) < TOLERANCE["swin"], key
