import pytest
import torch
from layers import layer
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.errors import OptionError
from vitrail.methods import transformer_attribution as attribution

B, H, T = 2, 3, 5


def random_maps(count):
    torch.manual_seed(4)
    return [tuple(torch.randn(2, B, H, T, T, dtype=torch.float64)) for _ in range(count)]


def by_matrices(maps, *, normalise):
    """The product (I + A^L) ... (I + A^1), entry by entry, and the first row."""
    rows = []
    for b in range(B):
        product = torch.eye(T, dtype=torch.float64)
        for gradient, relevance in maps:
            mixing = torch.eye(T, dtype=torch.float64)
            for q in range(T):
                for k in range(T):
                    entries = [max(float(gradient[b, h, q, k] * relevance[b, h, q, k]), 0.0) for h in range(H)]
                    mixing[q, k] += sum(entries) / H
            if normalise:
                mixing = mixing / mixing.sum(dim=1, keepdim=True)
            product = mixing @ product
        rows.append(product[0])
    return torch.stack(rows)


@pytest.mark.parametrize("normalise", [False, True])
def test_the_row_walks_as_the_product_of_matrices_would(normalise):
    maps = random_maps(3)
    row = torch.zeros(B, T, dtype=torch.float64)
    row[:, 0] = 1
    for gradient, relevance in reversed(maps):
        row = sum(attribution.pull(row, attribution.weigh(gradient, relevance), normalise=normalise, carried=True))
    assert_close(row, by_matrices(maps, normalise=normalise))


def test_the_positive_part_is_taken_before_the_mean_over_heads():
    gradient = torch.tensor([1.0, -1.0]).double().view(1, 2, 1, 1)
    assert_close(attribution.weigh(gradient, torch.ones(1, 2, 1, 1).double()), torch.full((1, 1, 1), 0.5).double())


def test_the_readouts_own_entry_can_be_replaced():
    first = layer()
    row = torch.rand(first.valid.shape, dtype=torch.float64) + 1
    valid = first.valid.clone()
    valid[:, -1] = False
    row[:, -1] = 0.1  # padding is no minimum
    from dataclasses import replace

    padded = replace(first, valid=valid)
    least = attribution.least_at_readout(row, padded)
    assert_close(least[:, 0], row[:, :-1].amin(dim=1))
    assert_close(least[:, 1:], row[:, 1:])


@pytest.mark.parametrize(("preset", "options"), [
    ("paper", {"start_layer": 0, "normalise": False, "own": "keep"}),
    ("official", {"start_layer": -1, "normalise": True, "own": "minimum"}),
])  # fmt: skip
def test_presets_on_text(preset, options):
    found = vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), "transformer_attribution", preset=preset)
    assert {name: found.options[name] for name in options} == options


def test_the_last_layer_can_be_named_from_the_end():
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    a, b = (vitrail.explain(model, inputs, "transformer_attribution", start_layer=start).scores for start in (-1, 2))
    assert_close(a, b)
    for wrong in (3, -4):
        with pytest.raises(OptionError, match="layers are 0 to 2"):
            vitrail.explain(model, inputs, "transformer_attribution", start_layer=wrong)


def test_single_precision_is_near_double():
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    exact = vitrail.explain(model, inputs, "transformer_attribution", 1).scores
    quick = vitrail.explain(model, inputs, "transformer_attribution", 1, precision="float32").scores
    # Single precision is what the published code has; its own error reaches a few hundredths.
    assert_close(quick / quick.max(), exact / exact.max(), atol=0.03, rtol=0)
    assert not torch.equal(quick, exact)
