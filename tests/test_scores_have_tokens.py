"""Scores belong to parts of the input, which are named; tokens that come from none have no score."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.errors import SeamError


def attend(q, k, v):
    return nn.functional.scaled_dot_product_attention(q, k, v)


class Table(nn.Module):
    """A class token and one token for each number of a table; the last layer asks for the class token alone."""

    def __init__(self, *, first=True, numbers=7):
        super().__init__()
        self.first, self.mark = first, nn.Parameter(torch.randn(1, 1, 12))
        self.weight, self.bias = nn.Parameter(torch.randn(numbers, 12)), nn.Parameter(torch.randn(numbers, 12))
        self.layers = nn.ModuleList(nn.Linear(12, 36) for _ in range(2))
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        tokens = x[:, :, None] * self.weight + self.bias
        mark = self.mark.expand(len(x), -1, -1)
        tokens = torch.cat([mark, tokens] if self.first else [tokens, mark], dim=1)
        place = slice(0, 1) if self.first else slice(-1, None)
        for index, layer in enumerate(self.layers):
            q, k, v = layer(tokens).unflatten(2, (9, 4)).transpose(1, 2).split(3, dim=1)
            if index == 1:
                q, tokens = q[:, :, place], tokens[:, place]
            tokens = tokens + attend(q, k, v).transpose(1, 2).flatten(2)
        return self.head(tokens[:, 0])


class Latents(nn.Module):
    """Learned latents that read an input and then each other."""

    def __init__(self, channels):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 6, 12))
        self.queries, self.read = nn.Linear(12, 12), nn.Linear(channels, 24)
        self.mixes, self.own, self.head = nn.Linear(6, 6), nn.Linear(12, 36), nn.Linear(12, 3)

    def forward(self, data):
        flat = data.flatten(1, -2)
        flat = flat + flat.mean(dim=1, keepdim=True)
        x = self.latents.expand(len(data), -1, -1)
        k, v = self.read(flat).unflatten(2, (6, 4)).transpose(1, 2).split(3, dim=1)
        x = x + attend(self.queries(x).unflatten(2, (3, 4)).transpose(1, 2), k, v).transpose(1, 2).flatten(2)
        q, k, v = self.own(x).unflatten(2, (9, 4)).transpose(1, 2).split(3, dim=1)
        x = x + attend(q, k, v).transpose(1, 2).flatten(2)
        return self.head(x.mean(dim=1))


@pytest.mark.parametrize("method", ["auto", "gae", "rollout", "attn_lrp", "integrated_gradients", "input_x_gradient"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("numbers", [2, 7])
def test_a_table_has_a_score_for_each_of_its_numbers(method, first, numbers):
    x = torch.randn(3, numbers).double()
    found = vitrail.explain(Table(first=first, numbers=numbers).double().eval(), x, method, 1)
    assert found.scores.shape == (3, numbers)
    assert found.tokens == (tuple(f"place {i}" for i in range(numbers)),) * 3
    assert bool((found.scores != 0).all())


@pytest.mark.parametrize("first", [True, False])
def test_the_scores_of_a_walk_are_those_of_the_tokens_that_the_numbers_feed(first):
    """Gradient times attention of the last layer alone, where the first one adds nothing."""
    model, x = Table(first=first).double().eval(), torch.randn(2, 7).double()
    with torch.no_grad():
        model.layers[0].weight[24:] = 0
        model.layers[0].bias[24:] = 0
    found = vitrail.explain(model, x, "rollout", 1)
    tokens = x[:, :, None] * model.weight + model.bias
    mark = model.mark.expand(2, -1, -1)
    every = torch.cat([mark, tokens] if first else [tokens, mark], dim=1)
    maps = []
    for layer in model.layers:
        q, k, _ = layer(every).unflatten(2, (9, 4)).transpose(1, 2).split(3, dim=1)
        maps.append((q @ k.mT / 2).softmax(dim=-1).mean(dim=1))
    eye = torch.eye(8).double()
    place = 0 if first else 7
    rows = ((maps[1] + eye) @ (maps[0] + eye))[:, place]
    own = rows[:, 1:] if first else rows[:, :7]
    share = found.scores / own.detach()
    assert_close(share, share[:, :1].expand_as(share))
    assert "1 of 8 tokens come from no number of the input" in found.provenance["assumed"][-1]
    assert found.provenance["signal"] == "table"


@pytest.mark.parametrize("method", ["gae", "rollout"])
@pytest.mark.parametrize("shape", [(2, 8, 8, 3), (2, 9, 5)])
def test_scores_of_learned_latents_alone_are_refused(method, shape):
    model = Latents(shape[-1]).double().eval()
    with pytest.raises(SeamError, match="6 tokens that are learned"):
        vitrail.explain(model, torch.randn(shape).double(), method, 1)


def test_the_default_is_then_a_gradient_at_the_input():
    model, x = Latents(5).double().eval(), torch.randn(2, 9, 5).double()
    assert vitrail.explain(model, x, target=1).scores.shape == (2, 9)


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(12, 36)

    def forward(self, tokens, asking, maps):
        q, k, v = self.mix(tokens).unflatten(2, (9, 4)).transpose(1, 2).split(3, dim=1)
        maps.append((q[:, :, asking] @ k.mT / 2).softmax(dim=-1))
        return (maps[-1] @ v).transpose(1, 2).flatten(2)


class Mixed(Table):
    """Numbers and categories, whose words of one table begin at an offset of each column."""

    def __init__(self, *, thin):
        super().__init__(first=False, numbers=4)
        self.words, self.offsets, self.thin = nn.Embedding(9, 12), torch.tensor([0, 3, 6]), thin
        self.layers = nn.ModuleList(Attends() for _ in range(2))

    def forward(self, numbers, categories):
        return self.states(numbers, categories, [])

    def states(self, numbers, categories, maps):
        tokens = numbers[:, :, None] * self.weight + self.bias
        mark = self.mark.expand(len(numbers), -1, -1)
        tokens = torch.cat([tokens, self.words(categories + self.offsets), mark], dim=1)
        for index, layer in enumerate(self.layers):
            asking = slice(-1, None) if index == 1 and self.thin else slice(None)
            tokens = tokens[:, asking] + layer(tokens, asking, maps)
        return self.head(tokens[:, -1])


@pytest.mark.parametrize("thin", [True, False])
def test_numbers_and_categories_have_scores_or_it_is_said_that_they_have_none(thin):
    model = Mixed(thin=thin).double().eval()
    given = {"numbers": torch.randn(2, 4).double(), "categories": torch.tensor([[0, 2, 1], [1, 0, 2]])}
    maps = []
    logits = model.states(**given, maps=maps)
    first, last = (
        (x * g).clamp(min=0).mean(dim=1)
        for x, g in zip(maps, torch.autograd.grad(logits[:, 1].sum(), maps), strict=True)
    )
    row = torch.eye(8).double()[-1] + last[:, -1]
    expected = row + torch.einsum("bq,bqk->bk", row, first)
    found = vitrail.explain(model, given, "gae", 1)
    assert_close(found.scores, expected[:, :4].detach())
    if thin:
        assert_close(found.streams["text_2"].scores, expected[:, 4:7].detach())
    rest = "1 of 8 tokens" if thin else "4 of 8 tokens"
    assert rest in found.provenance["assumed"][-1]
    found = vitrail.explain(model, given, "input_x_gradient", 1)
    assert found.scores.shape == (2, 4)
    assert "categories" in found.provenance["assumed"][-1]
