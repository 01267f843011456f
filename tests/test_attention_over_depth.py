"""Attention that chooses among the states that each token had: all of them are followed back to the one input."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vitrail

BATCH, TOKENS, WIDTH, DEPTH = 2, 6, 8, 3


class Choice(nn.Module):
    """A learned query that asks for the states that one token had so far."""

    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.randn(WIDTH))
        self.ask, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, history, maps):
        states = torch.stack(history, dim=2).flatten(0, 1)
        query = self.ask(self.query.expand(len(states), 1, WIDTH))
        weights = (query @ self.key(states).mT * WIDTH**-0.5).softmax(dim=-1)
        maps.append(weights)
        return (weights @ self.value(states)).view(-1, TOKENS, WIDTH)


class Mixer(nn.Module):
    """Self-attention without a skip connection."""

    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, maps):
        q, k, v = self.mix(x).chunk(3, dim=-1)
        weights = (q @ k.mT * WIDTH**-0.5).softmax(dim=-1)
        maps.append(weights)
        return self.out(weights @ v)


class OverDepth(nn.Module):
    """The first layer reads the words, each further one a choice of all states so far, and so does the head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 3)
        self.choices = nn.ModuleList(Choice() for _ in range(DEPTH))
        self.mixers = nn.ModuleList(Mixer() for _ in range(DEPTH))

    def forward(self, input_ids):
        return self.logits(input_ids, [])

    def logits(self, input_ids, maps):
        history = [self.words(input_ids)]
        history.append(self.mixers[0](history[0], maps))
        for choice, mixer in zip(self.choices, self.mixers[1:], strict=False):
            history.append(mixer(choice(history, maps), maps))
        return self.head(self.choices[-1](history, maps).mean(dim=1))


def walked(model, input_ids, weigh, half):
    """The walk over every state as plain loops, last to first."""
    maps = []
    logits = model.logits(input_ids, maps)
    gradients = torch.autograd.grad(logits[:, 1].sum(), maps)
    weights = [weigh(x, g).detach() for x, g in zip(maps, gradients, strict=True)]
    states = [torch.zeros(BATCH, TOKENS).double() for _ in range(DEPTH + 1)]

    def choose(relevance, among, chosen):
        shares = chosen.view(BATCH, TOKENS, -1)
        for number in range(among):
            states[number] += half * relevance * shares[:, :, number]

    def mix(relevance, mixed):
        return half * (relevance + torch.einsum("bq,bqk->bk", relevance, mixed))

    choose(torch.full((BATCH, TOKENS), 1 / TOKENS).double(), DEPTH + 1, weights[-1])
    for layer in range(DEPTH, 1, -1):
        chosen, mixed = weights[2 * layer - 3], weights[2 * layer - 2]
        choose(mix(states[layer], mixed), layer, chosen)
    return states[0] + mix(states[1], weights[0])


@pytest.mark.parametrize(
    ("method", "weigh", "half"),
    [("gae", lambda x, g: (x * g).clamp(min=0), 1.0), ("rollout", lambda x, g: x, 0.5)],
)
def test_a_walk_follows_every_state_back_to_the_words(method, weigh, half):
    model = OverDepth().double().eval()
    input_ids = torch.randint(20, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1))
    found = vitrail.explain(model, {"input_ids": input_ids}, method, 1)
    assert not found.streams
    assert_close(found.scores, walked(model, input_ids, weigh, half))
