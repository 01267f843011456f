"""Parts C and D of golden2: encoder-decoder models in both forms of GAE, Swin's windows and merges, in float64."""

from functools import cache

import pytest
import torch
from golden2_sets import difference, golden2

import vitrail
from vitrail import targets

TOLERANCE = {"encdec_bart": 1e-8, "encdec_detr": 1e-8, "encdec_t5": 1e-4, "swin": 1e-5}
PRESETS = {"gae_mm": "paper", "gae_walk": "recommended"}


def expected(folder, *methods):
    return {key: x for key, x in golden2(folder).expected.items() if key.split("/")[1] in methods}


@cache
def explained(folder, item, method, where):
    position, index = (int(x[1:]) for x in where.split("_"))
    target = targets.logit(index, position=position)
    found = golden2(folder)
    return vitrail.explain(found.model, found.item(item), method="gae", preset=PRESETS[method], target=target)


@pytest.mark.parametrize("folder", ["encdec_bart", "encdec_t5", "encdec_detr"])
def test_encoder_and_decoder_relevance_match(folder):
    found = expected(folder, *PRESETS)
    assert len(found) == 16
    for key, theirs in found.items():
        item, method, stream, where = key.split("/")
        ours = explained(folder, item, method, where)
        assert difference(ours.streams[stream].scores[0].numpy(), theirs) < TOLERANCE[folder], key
        assert torch.equal(ours.scores, ours.streams["encoder"].scores)


def test_swin_walks_through_shifted_windows_and_merges():
    swin = golden2("swin")
    found = expected("swin", "gae")
    assert len(found) == 4
    for key, theirs in found.items():
        item, _, where = key.split("/")
        ours = vitrail.explain(swin.model, swin.item(item), method="gae", target=int(where[1:]))
        assert ours.grid == (16, 16)
        assert difference(ours.scores[0].numpy(), theirs) < TOLERANCE["swin"], key
