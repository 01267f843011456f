import numpy as np
import pytest
import torch
from golden_sets import golden
from numpy.testing import assert_allclose
from torch import nn

from vitrail.errors import InputError
from vitrail.evaluate import metrics


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(6))
        self.embed = nn.Linear(6, 5)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        x = self.embed(x + self.position)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_parts_are_randomised_from_the_output_down_and_stay_so():
    model = Tower()
    trained, before = state(model), state(model)
    changed = []
    for name, copy in metrics.randomised(model):
        now = state(copy)
        changed.append((name, sorted({key for key in now if not torch.equal(now[key], before[key])})))
        before = now
    assert changed == [
        ("head", ["head.bias", "head.weight"]),
        ("layers.1", ["layers.1.bias", "layers.1.weight"]),
        ("layers.0", ["layers.0.bias", "layers.0.weight"]),
        ("embed", ["embed.bias", "embed.weight"]),
        ("(input)", ["position"]),
    ]
    assert all(torch.equal(value, trained[name]) for name, value in model.state_dict().items())


def test_new_weights_keep_their_mean_and_spread_and_follow_the_seed():
    model = nn.Sequential(nn.Linear(300, 200))
    (_, copy), (_, again), (_, other) = (next(iter(metrics.randomised(model, seed=seed))) for seed in (1, 1, 2))
    old, new = model[0].weight.detach(), copy[0].weight.detach()
    assert abs(float(new.std() / old.std()) - 1) < 0.02  # 60,000 draws
    assert torch.equal(new, again[0].weight)
    assert not torch.equal(new, other[0].weight)


def test_tied_weights_are_drawn_once():
    model = Tower()
    model.layers[1].weight = model.layers[0].weight
    steps = {name: copy.layers[0].weight.clone() for name, copy in metrics.randomised(model)}
    assert torch.equal(steps["layers.1"], steps["layers.0"])
    assert not torch.equal(steps["head"], steps["layers.1"])


@pytest.mark.parametrize("name", ["v_tiny", "b_tiny"])
def test_the_blocks_of_a_transformer_are_parts(name):
    model = golden(name).model
    names = [part for part, _ in metrics.randomised(model)]
    depth = golden(name).config.get("depth") or golden(name).config["num_hidden_layers"]
    blocks = [part for part in names if part.split(".")[-1].isdigit()]
    assert [int(part.split(".")[-1]) for part in blocks] == list(reversed(range(depth)))
    assert names[0] in ("head", "classifier")


def test_a_faithful_map_loses_its_order_and_one_blind_to_weights_keeps_it():
    model, x = Tower(), torch.randn(4, 6)

    def gradient(model):
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(model(leaf)[:, 0].sum(), leaf)[0]

    faithful = metrics.cascading_randomisation(gradient, model)
    blind = metrics.cascading_randomisation(lambda model: x.abs(), model)
    assert faithful.parts == ("head", "layers.1", "layers.0", "embed", "(input)")
    assert faithful.correlation.shape == (5, 4)
    assert np.abs(faithful.correlation[-1]).mean() < 0.9
    assert_allclose(blind.correlation, 1)


def test_a_model_without_weights_is_refused():
    with pytest.raises(InputError, match="ReLU has no weights"):
        list(metrics.randomised(nn.ReLU()))
